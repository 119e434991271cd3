//! The backend, which all models share.

use std::collections::BTreeMap;
use std::sync::Arc;

use galatea_backend::{
    Backend, BackendFingerprint, ExecutionPolicy, LoadedVersion, LogLevel, Model, ModelFiles,
    ModelHost,
};
use galatea_config::{ConfigDraft, ModelSpec};
use galatea_devices::Devices;
use galatea_gate::ledger::MemoryAccount;
use galatea_infer::Status;
use galatea_runtime::parameters::{bool_parameter, default_max_batch_size, integer_parameter};
use galatea_runtime::threads::ThreadPoolSource;
use galatea_runtime::{
    MachineResources, ModelFilesByProcessor, OnOff, RuntimeModel, auto_complete, model_path,
};

use crate::accelerators;
use crate::api::{
    GlobalThreads, GraphLevel, LogFunction, ModelSession, OrtEnvironment, OrtLibrary,
    SessionOptions,
};
use crate::op_libraries::{ModelLibraries, OpLibraries};
use crate::settings::ModelSettings;
use crate::source::OnnxSource;

/// The name of a model's file.
const MODEL_FILE: &str = "model.onnx";

/// The backend's options.
pub struct BackendOptions {
    /// The number of processors that the process may use, which is the size of the pool that
    /// sessions share. Values below 1 are treated as 1.
    pub processors: usize,
    /// The backend's command-line settings: `enable-global-threadpool`, `intra_op_thread_count` and
    /// `inter_op_thread_count` for the shared pool, and `default-max-batch-size`. Other settings
    /// are ignored.
    pub backend_config: BTreeMap<String, String>,
    /// Receives the library's warnings and errors.
    pub log: LogFunction,
    /// The GPUs that models may use.
    pub devices: Devices,
    /// The account for string memory; the library stores strings as objects.
    pub account: Arc<MemoryAccount>,
}

/// The `onnxruntime` backend.
pub struct OnnxRuntimeBackend {
    environment: Arc<OrtEnvironment>,
    machine: MachineResources,
    threads: ThreadPoolSource,
    default_max_batch_size: i32,
    fingerprint: Option<BackendFingerprint>,
    op_libraries: OpLibraries,
}

impl OnnxRuntimeBackend {
    /// Creates the backend from an open library.
    ///
    /// The library has only one environment per process, so all backends use the first backend's
    /// log and thread pools.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for an invalid value in `backend_config`, or the library's error.
    pub fn new(library: Arc<OrtLibrary>, options: BackendOptions) -> Result<Self, Status> {
        let BackendOptions { processors, backend_config, log, devices, account } = options;
        let processors = processors.max(1);
        let (threads, pools) = thread_pools(&backend_config, processors)?;
        let default_max_batch_size = default_max_batch_size(&backend_config)?;
        let fingerprint = fingerprint(&library, backend_config);
        let environment = OrtEnvironment::new(library, log, pools)?;
        let op_libraries = OpLibraries::default();
        Ok(Self {
            environment,
            machine: MachineResources { devices, account },
            threads,
            default_max_batch_size,
            fingerprint,
            op_libraries,
        })
    }

    fn open_op_libraries(
        &self,
        names: &[String],
        files: &dyn ModelFiles,
    ) -> Result<Arc<ModelLibraries>, Status> {
        let runtime_directory = self.environment.library().file().path().parent();
        self.op_libraries.open(names, files, runtime_directory)
    }
}

fn fingerprint(
    library: &OrtLibrary,
    settings: BTreeMap<String, String>,
) -> Option<BackendFingerprint> {
    let files = vec![library.file().fingerprint()?.clone()];
    Some(BackendFingerprint { version: library.version().to_owned(), settings, files })
}

/// The source of the sessions' threads, and the corresponding pools of the environment.
fn thread_pools(
    config: &BTreeMap<String, String>,
    processors: usize,
) -> Result<(ThreadPoolSource, Option<GlobalThreads>), Status> {
    match bool_parameter(config, "enable-global-threadpool")? {
        Some(OnOff::Off) => Ok((ThreadPoolSource::Session { processors }, None)),
        Some(OnOff::On) => {
            let intra_op = integer_parameter(config, "intra_op_thread_count")?.unwrap_or(0);
            let inter_op = integer_parameter(config, "inter_op_thread_count")?.unwrap_or(0);
            let pools = GlobalThreads { intra_op, inter_op, spinning: OnOff::On };
            Ok((ThreadPoolSource::Environment, Some(pools)))
        }
        None => {
            let intra_op = i32::try_from(processors).unwrap_or(i32::MAX);
            // Threads that spin while they wait would take processors from other models. With a
            // single inter-op thread, different operators execute on the caller's thread.
            let pools = GlobalThreads { intra_op, inter_op: 1, spinning: OnOff::Off };
            Ok((ThreadPoolSource::Shared { processors }, Some(pools)))
        }
    }
}

impl Backend for OnnxRuntimeBackend {
    fn execution_policy(&self, _spec: &ModelSpec) -> ExecutionPolicy {
        ExecutionPolicy::Blocking
    }

    fn gpus_refused(&self) -> Option<String> {
        let library = self.environment.library();
        accelerators::gpus_refused(library)
    }

    fn auto_complete_config(
        &self,
        draft: &mut ConfigDraft,
        files: &dyn ModelFiles,
    ) -> Result<(), Status> {
        if auto_complete::is_config_complete(draft) {
            return Ok(());
        }
        // This session is only inspected and never run, so it doesn't need to be optimized.
        let mut options = SessionOptions::new(&self.environment)?;
        options.set_graph_level(GraphLevel::None)?;
        match self.threads {
            ThreadPoolSource::Environment => options.use_global_threads()?,
            ThreadPoolSource::Session { .. } | ThreadPoolSource::Shared { .. } => {
                options.set_intra_op_threads(1)?;
            }
        }
        self.open_op_libraries(draft.op_library_filenames(), files)?
            .register(&mut options, &self.environment)?;
        let path = model_path(files, draft.default_model_filename(), MODEL_FILE, draft.name())?;
        let (_, interface) = ModelSession::open(self.environment.clone(), &path, &options)
            .map_err(|status| status.prefixed(format!("failed to open '{}': ", path.display())))?;
        let batching = interface.batching_by_first_dimension();
        let size = self.default_max_batch_size;
        auto_complete::complete_config(draft, &interface.reversed(), batching, size)
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
        host: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn Model>, Status> {
        let paths = ModelFilesByProcessor::new(&spec, files, MODEL_FILE)?;
        let op_libraries = self.open_op_libraries(&spec.op_library_filenames, files)?;
        for warning in op_libraries.warnings() {
            host.log(LogLevel::Warning, &format!("model '{}': {warning}", spec.name));
        }
        let source = OnnxSource {
            environment: self.environment.clone(),
            devices: self.machine.devices.clone(),
            threads: self.threads,
            paths,
            op_libraries,
            spec: spec.clone(),
            settings: ModelSettings::parse(&spec)?,
            host: host.clone(),
        };
        let model = RuntimeModel::load(source, self.machine.clone(), spec, host)?;
        Ok(Box::new(model))
    }

    fn fingerprint(&self, loaded: &LoadedVersion<'_>) -> Option<BackendFingerprint> {
        let mut fingerprint = self.fingerprint.clone()?;
        let op_libraries: Arc<ModelLibraries> = loaded.model.underlying()?.downcast().ok()?;
        fingerprint.files.extend(op_libraries.fingerprints()?);
        fingerprint.files.sort();
        Some(fingerprint)
    }
}
