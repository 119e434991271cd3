//! The backend: what all models share.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use galatea_backend::{
    Backend, BackendFingerprint, ExecutionPolicy, Host, LoadedVersion, LogLevel, Model, ModelFiles,
};
use galatea_config::{ConfigDraft, DEFAULT_MAX_BATCH_SIZE, ModelSpec};
use galatea_infer::Status;

use crate::api::{
    Environment, GlobalThreads, GraphLevel, Library, Session, SessionOptions, Switch,
};
use crate::complete;
use crate::model::OnnxModel;
use crate::op_libraries::{ModelLibraries, OpLibraries};
use crate::parameters::{integer, switch, wrong};
use crate::threads::ThreadSource;

/// Where lines for the server's log go.
pub type LogFunction = Arc<dyn Fn(LogLevel, &str) + Send + Sync>;

/// What the server tells the backend.
pub struct BackendOptions {
    /// The processors that the process may use: the size of the pool that
    /// sessions share, unless a model asks for threads of its own; below 1 is 1.
    pub processors: usize,
    /// What was set for this backend on the command line:
    /// `enable-global-threadpool`, `intra_op_thread_count` and
    /// `inter_op_thread_count` for that pool, `default-max-batch-size`. Others
    /// are left alone.
    pub backend_config: BTreeMap<String, String>,
    /// Where the library's warnings and errors go.
    pub log: LogFunction,
}

/// The backend `onnxruntime`.
pub struct OnnxRuntimeBackend {
    environment: Arc<Environment>,
    threads: ThreadSource,
    default_max_batch_size: i32,
    fingerprint: Option<BackendFingerprint>,
    op_libraries: OpLibraries,
}

impl OnnxRuntimeBackend {
    /// A backend over an open library.
    ///
    /// The library has one environment per process: of several backends, the
    /// first one's log and thread pools serve all.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a wrong value in `backend_config`, or what the
    /// library reports.
    pub fn new(library: Arc<Library>, options: BackendOptions) -> Result<Self, Status> {
        let BackendOptions { processors, backend_config, log } = options;
        let processors = processors.max(1);
        let (threads, pools) = thread_pools(&backend_config, processors)?;
        let default_max_batch_size = default_max_batch_size(&backend_config)?;
        let fingerprint = fingerprint(&library, backend_config);
        let environment = Environment::new(library, log, pools)?;
        let op_libraries = OpLibraries::default();
        Ok(Self { environment, threads, default_max_batch_size, fingerprint, op_libraries })
    }

    fn open_op_libraries(
        &self,
        names: &[String],
        files: &dyn ModelFiles,
    ) -> Result<Arc<ModelLibraries>, Status> {
        let beside = self.environment.library().path().parent();
        self.op_libraries.open(names, files, beside)
    }
}

fn fingerprint(
    library: &Library,
    settings: BTreeMap<String, String>,
) -> Option<BackendFingerprint> {
    let files = vec![library.mark()?.clone()];
    Some(BackendFingerprint { version: library.version().to_owned(), settings, files })
}

/// Who provides threads, and the pools that the environment has for it.
fn thread_pools(
    config: &BTreeMap<String, String>,
    processors: usize,
) -> Result<(ThreadSource, Option<GlobalThreads>), Status> {
    match switch(config, "enable-global-threadpool")? {
        Some(Switch::Off) => Ok((ThreadSource::Session { processors }, None)),
        Some(Switch::On) => {
            let intra_op = integer(config, "intra_op_thread_count")?.unwrap_or(0);
            let inter_op = integer(config, "inter_op_thread_count")?.unwrap_or(0);
            let pools = GlobalThreads { intra_op, inter_op, spinning: Switch::On };
            Ok((ThreadSource::Environment, Some(pools)))
        }
        None => {
            let intra_op = i32::try_from(processors).unwrap_or(i32::MAX);
            // Threads that wait by spinning would take the processors from other
            // models. One thread for different operators is the caller's.
            let pools = GlobalThreads { intra_op, inter_op: 1, spinning: Switch::Off };
            Ok((ThreadSource::Shared { processors }, Some(pools)))
        }
    }
}

fn default_max_batch_size(config: &BTreeMap<String, String>) -> Result<i32, Status> {
    const KEY: &str = "default-max-batch-size";
    match integer(config, KEY)? {
        None => Ok(i32::try_from(DEFAULT_MAX_BATCH_SIZE).unwrap_or(i32::MAX)),
        Some(size) if size >= 0 => Ok(size),
        Some(size) => Err(wrong(KEY, &size.to_string(), "a batch size")),
    }
}

impl Backend for OnnxRuntimeBackend {
    fn execution_policy(&self, _spec: &ModelSpec) -> ExecutionPolicy {
        ExecutionPolicy::Blocking
    }

    fn auto_complete_config(
        &self,
        draft: &mut ConfigDraft,
        files: &dyn ModelFiles,
    ) -> Result<(), Status> {
        if complete::is_complete(draft) {
            return Ok(());
        }
        // This session is only looked at, so it is made as quickly as can be.
        let mut options = SessionOptions::new(&self.environment)?;
        options.set_graph_level(GraphLevel::None)?;
        match self.threads {
            ThreadSource::Environment => options.use_global_threads()?,
            ThreadSource::Session { .. } | ThreadSource::Shared { .. } => {
                options.set_intra_op_threads(1)?;
            }
        }
        self.open_op_libraries(draft.op_library_filenames(), files)?
            .register(&mut options, &self.environment)?;
        let path = model_path(files, draft.default_model_filename(), draft.name())?;
        let session = Session::open(self.environment.clone(), &path, &options)
            .map_err(|status| status.prefixed(format!("failed to open '{}': ", path.display())))?;
        complete::complete(draft, &session, self.default_max_batch_size)
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
        host: Arc<dyn Host>,
    ) -> Result<Box<dyn Model>, Status> {
        let path = model_path(files, &spec.default_model_filename, &spec.name)?;
        let op_libraries = self.open_op_libraries(&spec.op_library_filenames, files)?;
        for warning in op_libraries.warnings() {
            host.log(LogLevel::Warning, &format!("model '{}': {warning}", spec.name));
        }
        let environment = self.environment.clone();
        let model = OnnxModel::load(environment, self.threads, path, op_libraries, spec, host)?;
        Ok(Box::new(model))
    }

    fn fingerprint(&self, loaded: &LoadedVersion<'_>) -> Option<BackendFingerprint> {
        let mut fingerprint = self.fingerprint.clone()?;
        let op_libraries: Arc<ModelLibraries> = loaded.model.underlying()?.downcast().ok()?;
        fingerprint.files.extend(op_libraries.marks()?);
        fingerprint.files.sort();
        Some(fingerprint)
    }
}

/// The model's file: a directory holds it under the default name, beside the
/// files with its weights.
fn model_path(files: &dyn ModelFiles, name: &str, model: &str) -> Result<PathBuf, Status> {
    const DEFAULT: &str = "model.onnx";
    let name = if name.is_empty() { DEFAULT } else { name };
    let unable =
        |status: Status| status.prefixed(format!("unable to find '{name}' for model '{model}': "));
    let path = files.resolve(name).map_err(unable)?;
    if !path.is_dir() {
        return Ok(path);
    }
    files.resolve(&format!("{name}/{DEFAULT}")).map_err(unable)
}
