//! A loaded version of a model.

use std::any::Any;
use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;

use galatea_backend::{
    Device, ExecutionGuarantee, Host, Instance, InstanceCreation, LogLevel, Model, Placement,
};
use galatea_config::{InstanceKind, ModelSpec};
use galatea_infer::Status;
use galatea_stdx::Lock;

use crate::accelerators::{self, Processor};
use crate::api::{OrtEnvironment, Session};
use crate::graph::is_model_predictable;
use crate::instance::OnnxInstance;
use crate::op_libraries::ModelLibraries;
use crate::settings::ModelSettings;
use crate::signature::ModelSignature;
use crate::threads::ThreadSource;

/// A model, with a session for each processor that has instances of it.
pub(crate) struct OnnxModel {
    environment: Arc<OrtEnvironment>,
    threads: ThreadSource,
    path: PathBuf,
    op_libraries: Arc<ModelLibraries>,
    spec: Arc<ModelSpec>,
    settings: ModelSettings,
    host: Arc<dyn Host>,
    /// The sessions so far. Instances on the same processor share one, and their runs may
    /// overlap. Each instance has its own run options and memory for gathering inputs.
    sessions: Lock<BTreeMap<Processor, LoadedSession>>,
}

/// A session, its tensors, and what executing it guarantees.
#[derive(Clone)]
struct LoadedSession {
    session: Arc<Session>,
    signature: Arc<ModelSignature>,
    guarantee: ExecutionGuarantee,
}

impl OnnxModel {
    /// Loads the model for the processor of its first instance group, and
    /// compares it with its configuration.
    pub(crate) fn load(
        environment: Arc<OrtEnvironment>,
        threads: ThreadSource,
        path: PathBuf,
        op_libraries: Arc<ModelLibraries>,
        spec: Arc<ModelSpec>,
        host: Arc<dyn Host>,
    ) -> Result<Self, Status> {
        let settings = ModelSettings::parse(&spec)?;
        let sessions = Lock::new(BTreeMap::new());
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

    /// The number of instances that the configuration has on a processor.
    fn instance_count(&self, processor: Processor) -> u32 {
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

    /// The session for a processor, created for the first instance.
    fn session(&self, processor: Processor) -> Result<LoadedSession, Status> {
        let mut sessions = self.sessions.lock("find or create a session");
        if let Some(loaded) = sessions.get(&processor) {
            return Ok(loaded.clone());
        }
        let loaded = self.open(processor)?;
        sessions.insert(processor, loaded.clone());
        Ok(loaded)
    }

    fn open(&self, processor: Processor) -> Result<LoadedSession, Status> {
        let environment = &self.environment;
        let instances = self.instance_count(processor);
        let demand = self.settings.thread_demand(instances);
        if let Some(excess) = self.threads.oversubscription(demand) {
            let line = format!(
                "model '{}' may keep {} threads busy on {} processors: it has {instances} \
                 instances, and intra_op_thread_count counts for each of them",
                self.spec.name, excess.threads, excess.processors
            );
            self.host.log(LogLevel::Warning, &line);
        }
        // A host policy binds the thread that loads the model, and thereby the threads of
        // the session.
        let bound_to = std::thread::available_parallelism().map_or(usize::MAX, NonZero::get);
        let pool = self.threads.pool(demand, bound_to);
        let mut options = self.settings.session_options(environment, instances, pool)?;
        let library = environment.library();
        accelerators::append_providers(
            &mut options,
            &self.spec,
            processor,
            library,
            self.host.as_ref(),
        )?;
        self.op_libraries.register(&mut options, environment)?;
        let session =
            Session::open(environment.clone(), &self.path, &options).map_err(|status| {
                status.prefixed(format!("failed to load '{}': ", self.path.display()))
            })?;
        let signature = ModelSignature::new(&self.spec, &session)?;
        let guarantee = self.guarantee(processor);
        Ok(LoadedSession { session: Arc::new(session), signature: Arc::new(signature), guarantee })
    }

    /// Only plain CPU execution is predictable: other providers may depend on the calling
    /// thread. A library with operators may do anything, even wait for another model.
    fn guarantee(&self, processor: Processor) -> ExecutionGuarantee {
        if !self.op_libraries.is_empty() {
            return ExecutionGuarantee::Unspecified;
        }
        let is_accelerated = !self.spec.optimization.cpu_execution_accelerators.is_empty();
        let is_plain_cpu = processor == Processor::Cpu && !is_accelerated;
        if is_plain_cpu && is_model_predictable(&self.path) {
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
        let LoadedSession { session, signature, guarantee } = self.session(processor)?;
        let (settings, host) = (&self.settings, self.host.clone());
        let policy = at.host_policy(&self.spec);
        let instance = OnnxInstance::new(session, signature, guarantee, settings, policy, host)?;
        Ok(Box::new(instance))
    }

    /// The libraries with operators, on which responses depend too.
    fn underlying(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.op_libraries.clone())
    }

    fn instance_creation(&self) -> InstanceCreation {
        InstanceCreation::Parallel
    }
}
