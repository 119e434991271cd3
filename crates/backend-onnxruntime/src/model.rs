//! A loaded version of a model.

use std::any::Any;
use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use galatea_backend::{
    Device, ExecutionGuarantee, Host, Instance, InstanceCreation, LogLevel, Model, Placement,
};
use galatea_config::{InstanceKind, ModelSpec};
use galatea_infer::Status;

use crate::accelerators::{self, Processor};
use crate::api::{Environment, Session};
use crate::instance::OnnxInstance;
use crate::op_libraries::ModelLibraries;
use crate::operators;
use crate::settings::Settings;
use crate::signature::Signature;
use crate::threads::ThreadSource;

/// A model with a session for each processor that it has instances on.
pub(crate) struct OnnxModel {
    environment: Arc<Environment>,
    threads: ThreadSource,
    path: PathBuf,
    op_libraries: Arc<ModelLibraries>,
    spec: Arc<ModelSpec>,
    settings: Settings,
    host: Arc<dyn Host>,
    /// Sessions made so far: instances on the same processor share one, whose
    /// runs may overlap. What instances have of their own is memory for
    /// gathering inputs and their run options.
    sessions: Mutex<BTreeMap<Processor, Loaded>>,
}

/// A session and what its tensors are called.
#[derive(Clone)]
struct Loaded {
    session: Arc<Session>,
    signature: Arc<Signature>,
    guarantee: ExecutionGuarantee,
}

impl OnnxModel {
    /// Loads the model for the processor of its first instance group, and
    /// compares it with its configuration.
    pub(crate) fn load(
        environment: Arc<Environment>,
        threads: ThreadSource,
        path: PathBuf,
        op_libraries: Arc<ModelLibraries>,
        spec: Arc<ModelSpec>,
        host: Arc<dyn Host>,
    ) -> Result<Self, Status> {
        let settings = Settings::parse(&spec)?;
        let sessions = Mutex::new(BTreeMap::new());
        let model =
            Self { environment, threads, path, op_libraries, spec, settings, host, sessions };
        if let Some(processor) = model.first_processor() {
            model.session(processor)?;
        }
        Ok(model)
    }

    fn first_processor(&self) -> Option<Processor> {
        let group = self.spec.instance_groups.first()?;
        match group.kind {
            InstanceKind::Cpu | InstanceKind::Model => Some(Processor::Cpu),
            InstanceKind::Gpu => {
                group.gpus.first().and_then(|&gpu| u32::try_from(gpu).ok()).map(Processor::Gpu)
            }
        }
    }

    /// How many instances the configuration puts on a processor.
    fn instances(&self, processor: Processor) -> u32 {
        // Passive instances execute nothing.
        let groups = self.spec.instance_groups.iter().filter(|group| !group.passive);
        let counts = groups.map(|group| match (group.kind, processor) {
            (InstanceKind::Cpu | InstanceKind::Model, Processor::Cpu) => group.count,
            (InstanceKind::Gpu, Processor::Gpu(gpu)) => {
                let here = group.gpus.iter().filter(|&&other| u32::try_from(other) == Ok(gpu));
                here.fold(0, |sum: u32, _| sum.saturating_add(group.count))
            }
            (InstanceKind::Gpu, Processor::Cpu)
            | (InstanceKind::Cpu | InstanceKind::Model, Processor::Gpu(_)) => 0,
        });
        counts.fold(0, u32::saturating_add)
    }

    /// The session for a processor, made when the first instance asks.
    fn session(&self, processor: Processor) -> Result<Loaded, Status> {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = sessions.get(&processor) {
            return Ok(loaded.clone());
        }
        let loaded = self.open(processor)?;
        sessions.insert(processor, loaded.clone());
        Ok(loaded)
    }

    fn open(&self, processor: Processor) -> Result<Loaded, Status> {
        let environment = &self.environment;
        let instances = self.instances(processor);
        let wish = self.settings.thread_wish(instances);
        if let Some(excess) = self.threads.excess(wish) {
            let line = format!(
                "model '{}' may keep {} threads busy on {} processors: it has {instances} \
                 instances, and intra_op_thread_count counts for each of them",
                self.spec.name, excess.threads, excess.processors
            );
            self.host.log(LogLevel::Warning, &line);
        }
        // A host policy binds the thread that loads the model, and with it those of
        // the session.
        let bound_to = std::thread::available_parallelism().map_or(usize::MAX, NonZero::get);
        let pool = self.threads.pool(wish, bound_to);
        let mut options = self.settings.session_options(environment, instances, pool)?;
        let library = environment.library();
        accelerators::append(&mut options, &self.spec, processor, library, self.host.as_ref())?;
        self.op_libraries.register(&mut options, environment)?;
        let session =
            Session::open(environment.clone(), &self.path, &options).map_err(|status| {
                status.prefixed(format!("failed to load '{}': ", self.path.display()))
            })?;
        let signature = Signature::new(&self.spec, &session)?;
        let guarantee = self.guarantee(processor);
        Ok(Loaded { session: Arc::new(session), signature: Arc::new(signature), guarantee })
    }

    /// Other processors than the CPU may care which thread calls. What a library with
    /// operators does nobody knows: it may ask another model, and wait.
    fn guarantee(&self, processor: Processor) -> ExecutionGuarantee {
        if !self.op_libraries.is_empty() {
            return ExecutionGuarantee::Unspecified;
        }
        let is_accelerated = !self.spec.optimization.cpu_execution_accelerators.is_empty();
        let is_plain = processor == Processor::Cpu && !is_accelerated;
        if is_plain && operators::are_steady(&self.path) {
            ExecutionGuarantee::Predictable
        } else {
            ExecutionGuarantee::NonBlocking
        }
    }
}

impl Model for OnnxModel {
    fn create_instance(&self, at: &Placement) -> Result<Box<dyn Instance>, Status> {
        let processor = match at.device {
            Device::Cpu | Device::Model => Processor::Cpu,
            Device::Gpu(gpu) => Processor::Gpu(gpu),
        };
        let Loaded { session, signature, guarantee } = self.session(processor)?;
        let (settings, host) = (&self.settings, self.host.clone());
        let policy = at.host_policy(&self.spec);
        let instance = OnnxInstance::new(session, signature, guarantee, settings, policy, host)?;
        Ok(Box::new(instance))
    }

    /// Answers depend on these libraries too.
    fn underlying(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.op_libraries.clone())
    }

    fn instance_creation(&self) -> InstanceCreation {
        InstanceCreation::Parallel
    }
}
