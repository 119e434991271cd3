//! A loaded version of a model.

use std::any::Any;
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;

use galatea_backend::{
    Device, ExecutionGuarantee, Host, InputMemory, Instance, InstanceCreation, LogLevel, Model,
    Placement,
};
use galatea_config::{InstanceGroup, InstanceKind, ModelSpec};
use galatea_devices::{Devices, Stream};
use galatea_gate::ledger::Account;
use galatea_infer::Status;
use galatea_stdx::Lock;

use crate::accelerators::{Processor, Providers};
use crate::api::{DeviceSession, OrtEnvironment, Session, SessionOptions};
use crate::graph::is_model_predictable;
use crate::instance::{Executor, OnnxInstance};
use crate::model_file::ModelPaths;
use crate::op_libraries::ModelLibraries;
use crate::settings::ModelSettings;
use crate::signature::ModelSignature;
use crate::threads::ThreadSource;

/// The machine's resources that models use.
#[derive(Clone)]
pub(crate) struct Machine {
    pub(crate) devices: Devices,
    pub(crate) threads: ThreadSource,
    /// The account for the memory of strings.
    pub(crate) account: Arc<Account>,
}

/// A model with one session for the CPU and one for each instance on a GPU.
pub(crate) struct OnnxModel {
    environment: Arc<OrtEnvironment>,
    machine: Machine,
    paths: ModelPaths,
    op_libraries: Arc<ModelLibraries>,
    spec: Arc<ModelSpec>,
    settings: ModelSettings,
    host: Arc<dyn Host>,
    sessions: Lock<Sessions>,
}

/// The sessions opened so far.
#[derive(Default)]
struct Sessions {
    /// The session of all instances on the CPU, whose runs may overlap. Each instance has its own
    /// run options and its own memory for gathering inputs.
    cpu: Option<LoadedSession<Arc<Session>>>,
    /// The session that was opened to compare the model with its configuration, for the first
    /// instance on its GPU. On a GPU, each instance has its own session, which executes on the
    /// instance's stream.
    first_on_gpu: Option<LoadedSession<DeviceSession>>,
}

/// A session, its tensors, and the guarantee of executing it.
#[derive(Clone)]
struct LoadedSession<S> {
    session: S,
    signature: Arc<ModelSignature>,
    guarantee: ExecutionGuarantee,
}

impl OnnxModel {
    /// Loads the model for the processor of its first instance group, and compares the model with
    /// its configuration.
    pub(crate) fn load(
        environment: Arc<OrtEnvironment>,
        machine: Machine,
        paths: ModelPaths,
        op_libraries: Arc<ModelLibraries>,
        spec: Arc<ModelSpec>,
        host: Arc<dyn Host>,
    ) -> Result<Self, Status> {
        let settings = ModelSettings::parse(&spec)?;
        let sessions = Lock::new(Sessions::default());
        let model =
            Self { environment, machine, paths, op_libraries, spec, settings, host, sessions };
        match model.first_processor() {
            Some(Processor::Cpu) => {
                model.shared_session()?;
            }
            Some(Processor::Gpu(gpu)) => {
                let first = model.open_on_device(gpu)?;
                model.sessions.lock("keep the first session").first_on_gpu = Some(first);
            }
            None => {}
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

    /// The number of instances that share a session on a processor.
    fn sharing_instances(&self, processor: Processor) -> u32 {
        if processor != Processor::Cpu {
            return 1;
        }
        // Passive instances execute nothing.
        let groups = self.spec.instance_groups.iter().filter(|group| !group.passive);
        let counts = groups.map(|group| match group.kind {
            InstanceKind::Cpu | InstanceKind::Model => group.count,
            InstanceKind::Gpu => 0,
        });
        counts.fold(0, u32::saturating_add)
    }

    /// The session of the instances on the CPU, created when the first one needs it.
    fn shared_session(&self) -> Result<LoadedSession<Arc<Session>>, Status> {
        let mut sessions = self.sessions.lock("find or create a session");
        if let Some(loaded) = &sessions.cpu {
            return Ok(loaded.clone());
        }
        let options = self.session_options(Processor::Cpu, None)?;
        let path = self.path(Processor::Cpu)?;
        let opened = Session::open(self.environment.clone(), path, &options);
        let session = Arc::new(opened.map_err(|status| not_loaded(status, path))?);
        let signature = Arc::new(ModelSignature::new(&self.spec, &session)?);
        let guarantee = self.guarantee(Processor::Cpu, path);
        Ok(sessions.cpu.insert(LoadedSession { session, signature, guarantee }).clone())
    }

    fn path(&self, processor: Processor) -> Result<&Path, Status> {
        self.paths.of(processor).ok_or_else(|| {
            Status::internal(format!("model '{}' has no group on {processor:?}", self.spec.name))
        })
    }

    /// A session for one instance on a GPU.
    fn device_session(&self, gpu: u32) -> Result<LoadedSession<DeviceSession>, Status> {
        let mut sessions = self.sessions.lock("take the first session");
        let is_here =
            |first: &mut LoadedSession<DeviceSession>| first.session.memory().device() == gpu;
        let first = sessions.first_on_gpu.take_if(is_here);
        drop(sessions);
        first.map_or_else(|| self.open_on_device(gpu), Ok)
    }

    fn open_on_device(&self, gpu: u32) -> Result<LoadedSession<DeviceSession>, Status> {
        let processor = Processor::Gpu(gpu);
        // The check comes before anything is made on the GPU.
        Providers::of(&self.spec, processor)?.require(self.environment.library())?;
        let number = i32::try_from(gpu).unwrap_or(i32::MAX);
        // The stream has the usual priority: as in Triton, the model's priority is for its TensorRT
        // backend.
        let stream = self.machine.devices.device(number).and_then(galatea_devices::Device::stream);
        let stream = stream
            .map_err(|error| Status::internal(format!("unable to create stream: {error}")))?;
        let options = self.session_options(processor, Some(&stream))?;
        let path = self.path(processor)?;
        let opened = DeviceSession::open(self.environment.clone(), path, &options, stream);
        let session = opened.map_err(|status| not_loaded(status, path))?;
        let signature = Arc::new(ModelSignature::new(&self.spec, session.session())?);
        let guarantee = self.guarantee(processor, path);
        Ok(LoadedSession { session, signature, guarantee })
    }

    /// The options of a session on a processor; on a GPU it executes on the stream.
    fn session_options(
        &self,
        processor: Processor,
        stream: Option<&Stream>,
    ) -> Result<SessionOptions, Status> {
        let environment = &self.environment;
        let instances = self.sharing_instances(processor);
        let demand = self.settings.thread_demand(instances);
        if let Some(excess) = self.machine.threads.oversubscription(demand) {
            let line = format!(
                "model '{}' may keep {} threads busy on {} processors: it has {instances} \
                 instances, and intra_op_thread_count counts for each of them",
                self.spec.name, excess.threads, excess.processors
            );
            self.host.log(LogLevel::Warning, &line);
        }
        // A host policy binds the thread that loads the model, and thereby the session's threads.
        let bound_to = std::thread::available_parallelism().map_or(usize::MAX, NonZero::get);
        let pool = self.machine.threads.pool(demand, bound_to);
        let mut options = self.settings.session_options(environment, instances, pool)?;
        let providers = Providers::of(&self.spec, processor)?;
        for line in providers.warnings(&self.spec.name) {
            self.host.log(LogLevel::Warning, &line);
        }
        providers.append(&mut options, stream, environment.library())?;
        self.op_libraries.register(&mut options, environment)?;
        Ok(options)
    }

    /// Only plain CPU execution is predictable: other providers may depend on the calling thread. A
    /// library with operators may do anything, including waiting for another model.
    fn guarantee(&self, processor: Processor, path: &Path) -> ExecutionGuarantee {
        if !self.op_libraries.is_empty() {
            return ExecutionGuarantee::Unspecified;
        }
        let is_accelerated = !self.spec.optimization.cpu_execution_accelerators.is_empty();
        let is_plain_cpu = processor == Processor::Cpu && !is_accelerated;
        if is_plain_cpu && is_model_predictable(path) {
            ExecutionGuarantee::Predictable
        } else {
            ExecutionGuarantee::NonBlocking
        }
    }
}

fn not_loaded(status: Status, path: &Path) -> Status {
    status.prefixed(format!("failed to load '{}': ", path.display()))
}

impl Model for OnnxModel {
    fn create_instance(&self, at: &Placement) -> Result<Box<dyn Instance>, Status> {
        let (devices, account) = (self.machine.devices.clone(), self.machine.account.clone());
        let (executor, signature, guarantee) = match at.device {
            Device::Cpu | Device::Model => {
                let loaded = self.shared_session()?;
                let executor = Executor::on_cpu(loaded.session, devices, account);
                (executor, loaded.signature, loaded.guarantee)
            }
            Device::Gpu(gpu) => {
                let loaded = self.device_session(gpu)?;
                let pinned = self.spec.optimization.input_pinned_memory;
                let executor = Executor::on_device(loaded.session, devices, account, pinned);
                (executor, loaded.signature, loaded.guarantee)
            }
        };
        let (settings, host) = (&self.settings, self.host.clone());
        let policy = at.host_policy(&self.spec);
        let instance = OnnxInstance::new(executor, signature, guarantee, settings, policy, host)?;
        Ok(Box::new(instance))
    }

    /// The libraries with operators, on which responses also depend.
    fn underlying(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.op_libraries.clone())
    }

    /// Instances on GPUs accept inputs in GPU memory. So do those on the CPU, if the model has
    /// both.
    fn input_memory(&self) -> InputMemory {
        let on_gpu = |group: &InstanceGroup| group.kind == InstanceKind::Gpu;
        if self.spec.instance_groups.iter().any(on_gpu) {
            InputMemory::Device
        } else {
            InputMemory::Host
        }
    }

    fn instance_creation(&self) -> InstanceCreation {
        InstanceCreation::Parallel
    }
}
