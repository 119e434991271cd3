//! A model's sessions.

use std::any::Any;
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;

use galatea_backend::{ExecutionPredictability, LogLevel, ModelHost};
use galatea_config::ModelSpec;
use galatea_devices::{CudaStream, Devices};
use galatea_infer::Status;
use galatea_runtime::threads::ThreadPoolSource;
use galatea_runtime::{CpuOrGpu, ModelFilesByProcessor, OpenedModel, SessionSource};

use crate::accelerators::Providers;
use crate::api::{DeviceSession, ModelSession, OrtEnvironment, SessionOptions};
use crate::graph::is_model_predictable;
use crate::op_libraries::ModelLibraries;
use crate::session::{AnySession, OnnxSession};
use crate::settings::ModelSettings;

/// Opens the sessions of one model version.
pub(crate) struct OnnxSource {
    pub(crate) environment: Arc<OrtEnvironment>,
    pub(crate) devices: Devices,
    pub(crate) threads: ThreadPoolSource,
    pub(crate) paths: ModelFilesByProcessor,
    pub(crate) op_libraries: Arc<ModelLibraries>,
    pub(crate) spec: Arc<ModelSpec>,
    pub(crate) settings: ModelSettings,
    pub(crate) host: Arc<dyn ModelHost>,
}

impl SessionSource for OnnxSource {
    /// A session whose runs may overlap.
    type Shared = Arc<ModelSession>;
    type Session = OnnxSession;

    fn open_shared(&self) -> Result<OpenedModel<Arc<ModelSession>>, Status> {
        let options = self.session_options(CpuOrGpu::Cpu, None)?;
        let path = self.paths.for_processor(CpuOrGpu::Cpu)?;
        let opened = ModelSession::open(self.environment.clone(), path, &options);
        let (session, interface) = opened.map_err(|status| not_loaded(status, path))?;
        let guarantee = self.guarantee(CpuOrGpu::Cpu, path);
        Ok(OpenedModel { session: Arc::new(session), interface, guarantee })
    }

    fn session(&self, shared: Arc<ModelSession>) -> Result<OnnxSession, Status> {
        OnnxSession::new(AnySession::Shared(shared), &self.environment, &self.settings)
    }

    fn open_on_gpu(&self, gpu: u32) -> Result<OpenedModel<OnnxSession>, Status> {
        let processor = CpuOrGpu::Gpu(gpu);
        // The check precedes any allocation on the GPU.
        Providers::of(&self.spec, processor)?.require(self.environment.library())?;
        let number = i32::try_from(gpu).unwrap_or(i32::MAX);
        // The stream has normal priority: as in Triton, the model's priority only applies to the
        // TensorRT backend.
        let stream = self.devices.device(number).and_then(galatea_devices::Device::stream);
        let stream = stream
            .map_err(|error| Status::internal(format!("unable to create stream: {error}")))?;
        let options = self.session_options(processor, Some(&stream))?;
        let path = self.paths.for_processor(processor)?;
        let opened = DeviceSession::open(self.environment.clone(), path, &options, stream);
        let (session, interface) = opened.map_err(|status| not_loaded(status, path))?;
        let session = AnySession::OnDevice(Box::new(session));
        let session = OnnxSession::new(session, &self.environment, &self.settings)?;
        Ok(OpenedModel { session, interface, guarantee: self.guarantee(processor, path) })
    }

    /// The operator libraries, on which responses also depend.
    fn underlying(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.op_libraries.clone())
    }
}

impl OnnxSource {
    /// The options for a session on a processor. A session on a GPU executes on the stream.
    fn session_options(
        &self,
        processor: CpuOrGpu,
        stream: Option<&CudaStream>,
    ) -> Result<SessionOptions, Status> {
        let environment = &self.environment;
        let instances = processor.sharing_instance_count(&self.spec);
        let demand = self.settings.thread_demand(instances);
        if let Some(excess) = self.threads.oversubscription(demand) {
            let line = format!(
                "model '{}' may keep {} threads busy on {} processors: it has {instances} \
                 instances, and intra_op_thread_count counts for each of them",
                self.spec.name, excess.threads, excess.processors
            );
            self.host.log(LogLevel::Warning, &line);
        }
        // A host policy binds the thread that loads the model, and therefore also the session's
        // threads.
        let bound_to = std::thread::available_parallelism().map_or(usize::MAX, NonZero::get);
        let pool = self.threads.pool(demand, bound_to);
        let mut options = self.settings.session_options(environment, instances, pool)?;
        let providers = Providers::of(&self.spec, processor)?;
        for line in providers.warnings(&self.spec.name) {
            self.host.log(LogLevel::Warning, &line);
        }
        providers.append(&mut options, stream, environment.library())?;
        self.op_libraries.register(&mut options, environment)?;
        Ok(options)
    }

    /// Only plain CPU execution is predictable. Other providers may depend on the calling thread,
    /// and an operator library may do anything, including waiting for another model.
    fn guarantee(&self, processor: CpuOrGpu, path: &Path) -> ExecutionPredictability {
        if !self.op_libraries.is_empty() {
            return ExecutionPredictability::Unspecified;
        }
        let is_accelerated = !self.spec.optimization.cpu_execution_accelerators.is_empty();
        let is_plain_cpu = processor == CpuOrGpu::Cpu && !is_accelerated;
        if is_plain_cpu && is_model_predictable(path) {
            ExecutionPredictability::Predictable
        } else {
            ExecutionPredictability::NonBlocking
        }
    }
}

fn not_loaded(status: Status, path: &Path) -> Status {
    status.prefixed(format!("failed to load '{}': ", path.display()))
}
