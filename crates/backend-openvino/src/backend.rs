//! The backend, which all models share.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use galatea_backend::{
    Backend, BackendFingerprint, ExecutionPolicy, LoadedVersion, LogLevel, Model, ModelFiles,
    ModelHost,
};
use galatea_config::{ConfigDraft, ModelSpec};
use galatea_devices::Devices;
use galatea_gate::ledger::MemoryAccount;
use galatea_infer::Status;
use galatea_runtime::parameters::default_max_batch_size;
use galatea_runtime::{MachineResources, RuntimeModel, auto_complete, model_entry};
use galatea_stdx::Lock;

use crate::api::{Core, Library};
use crate::layouts;
use crate::network::read_network;
use crate::parameters::{CPU_EXTENSION, LIBRARY, ModelParameters};
use crate::signature::Comparison;
use crate::source::OpenVinoSource;

/// The default name of a model's file.
const MODEL_FILE: &str = "model.xml";

/// The backend's options.
pub struct BackendOptions {
    /// The backend's command-line settings: `default-max-batch-size`. Other settings are ignored.
    pub backend_config: BTreeMap<String, String>,
    /// The GPUs from which inputs are copied.
    pub devices: Devices,
    /// The account for string memory; this library has no strings.
    pub account: Arc<MemoryAccount>,
}

/// The `openvino` backend.
pub struct OpenVinoBackend {
    pub(crate) library: Arc<Library>,
    /// The libraries that models specify, which are never closed.
    named: Lock<BTreeMap<PathBuf, Arc<Library>>>,
    pub(crate) machine: MachineResources,
    default_max_batch_size: i32,
    settings: BTreeMap<String, String>,
}

impl OpenVinoBackend {
    /// Creates the backend from an open library.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for an invalid value in `backend_config`.
    pub fn new(library: Arc<Library>, options: BackendOptions) -> Result<Self, Status> {
        let BackendOptions { backend_config: settings, devices, account } = options;
        // At least 1, as in Triton.
        let default_max_batch_size = default_max_batch_size(&settings)?.max(1);
        let machine = MachineResources { devices, account };
        Ok(Self { library, named: Lock::default(), machine, default_max_batch_size, settings })
    }

    /// The library for a model, which may specify a different version than the server's.
    fn library(&self, path: Option<&str>) -> Result<Arc<Library>, Status> {
        let Some(file) = named_file(path) else { return Ok(self.library.clone()) };
        let mut named = self.named.lock("find or open a library");
        if let Some(library) = named.get(&file) {
            return Ok(library.clone());
        }
        let library = Library::open(&file)?;
        named.insert(file, library.clone());
        Ok(library)
    }

    /// The library of a model that is already loaded; `None` if the library isn't open.
    fn open_library(&self, path: Option<&str>) -> Option<Arc<Library>> {
        let Some(file) = named_file(path) else { return Some(self.library.clone()) };
        self.named.lock("find a library").get(&file).cloned()
    }
}

impl Backend for OpenVinoBackend {
    fn execution_policy(&self, _spec: &ModelSpec) -> ExecutionPolicy {
        ExecutionPolicy::Blocking
    }

    fn gpus_refused(&self) -> Option<String> {
        Some(String::from(
            "the backend openvino supports only instances on the CPU, whose parameter \
             TARGET_DEVICE names the device",
        ))
    }

    fn auto_complete_config(
        &self,
        draft: &mut ConfigDraft,
        files: &dyn ModelFiles,
    ) -> Result<(), Status> {
        let path = model_file(files, draft.default_model_filename(), draft.name())?;
        let library = self.library(draft.parameter(LIBRARY))?;
        let core = Core::new(library)?;
        // The model may use operators of the extension, without which it can't be read.
        core.add_extension(draft.parameter(CPU_EXTENSION).unwrap_or_default())?;
        let interface = core.read_model(&path)?.interface()?;
        auto_complete::complete_config(
            draft,
            &interface,
            layouts::batching(read_network(&path).as_deref()),
            self.default_max_batch_size,
        )
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
        host: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn Model>, Status> {
        Comparison(&spec).instances()?;
        let parameters = ModelParameters::parse(&spec.parameters)?;
        let library = self.library(spec.parameters.get(LIBRARY).map(String::as_str))?;
        if library.file().is_replaced() {
            let line = format!(
                "model '{}': the library '{}' has changed since it was opened, and the process keeps \
                 the old one until it is started again",
                spec.name,
                library.file().path().display()
            );
            host.log(LogLevel::Warning, &line);
        }
        let source = OpenVinoSource {
            library,
            path: model_file(files, spec.model_filename(None), &spec.name)?,
            spec: spec.clone(),
            parameters,
            host: host.clone(),
        };
        Ok(Box::new(RuntimeModel::load(source, self.machine.clone(), spec, host)?))
    }

    fn fingerprint(&self, loaded: &LoadedVersion<'_>) -> Option<BackendFingerprint> {
        let path = loaded.spec.parameters.get(LIBRARY);
        let library = self.open_library(path.map(String::as_str))?;
        let files = vec![library.file().fingerprint()?.clone()];
        let (version, settings) = (library.version().to_owned(), self.settings.clone());
        Some(BackendFingerprint { version, settings, files })
    }
}

/// The file that a model specifies as its library. The same file has many paths, and clients may
/// send any of them.
fn named_file(path: Option<&str>) -> Option<PathBuf> {
    let path = path.filter(|path| !path.is_empty())?;
    Some(std::fs::canonicalize(path).unwrap_or_else(|_| PathBuf::from(path)))
}

/// The path of a model, which may be a directory.
fn model_file(files: &dyn ModelFiles, name: &str, model: &str) -> Result<PathBuf, Status> {
    let path = model_entry(files, name, MODEL_FILE, model)?;
    if path.extension().is_some_and(|ending| ending == "graphdef") {
        return Err(Status::invalid_argument(format!(
            "unable to load model '{model}': OpenVINO reads a frozen graph only if the name of its \
             file ends with '.pb', unlike '{name}'"
        )));
    }
    Ok(path)
}
