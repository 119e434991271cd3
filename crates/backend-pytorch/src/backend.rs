//! The backend, which all models share.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use galatea_backend::{
    Backend, BackendFingerprint, ExecutionPolicy, LoadedVersion, LogLevel, Model, ModelFiles,
    ModelHost, missing_config_error,
};
use galatea_config::{ConfigDraft, ModelSpec};
use galatea_devices::Devices;
use galatea_gate::ledger::MemoryAccount;
use galatea_infer::Status;
use galatea_runtime::{CpuOrGpu, MachineResources, ModelFilesByProcessor, RuntimeModel};

use crate::aoti::AotiSource;
use crate::api::Library;
use crate::native_models::{COMPILED, is_compiled};
use crate::parameters::ModelParameters;

/// The name of a compiled model's file.
const COMPILED_FILE: &str = "model.pt2";

/// The backend's options.
pub struct TorchOptions {
    /// The number of processors that the process may use.
    pub processors: usize,
    /// The directory in which the libraries of compiled models are opened.
    pub temporary_folder: PathBuf,
    /// The GPUs from which inputs are copied.
    pub devices: Devices,
    /// The account for the memory of strings.
    pub account: Arc<MemoryAccount>,
}

/// The backend `pytorch`.
pub struct PyTorchBackend {
    library: Arc<Library>,
    machine: MachineResources,
    processors: usize,
    temporary_folder: PathBuf,
}

impl PyTorchBackend {
    /// Creates the backend from an open library.
    #[must_use]
    pub fn new(library: Arc<Library>, options: TorchOptions) -> Self {
        let TorchOptions { processors, temporary_folder, devices, account } = options;
        let machine = MachineResources { devices, account };
        Self { library, machine, processors, temporary_folder }
    }

    fn load_compiled(
        &self,
        spec: Arc<ModelSpec>,
        path: &Path,
        host: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn Model>, Status> {
        let parameters = ModelParameters::parse(&spec.parameters)?;
        for warning in parameters.compiled_model_warnings(&spec.parameters) {
            host.log(LogLevel::Warning, &format!("model '{}': {warning}", spec.name));
        }
        let source = AotiSource {
            library: self.library.clone(),
            path: path.to_owned(),
            spec: spec.clone(),
            parameters,
            host: host.clone(),
            processors: self.processors,
            temporary_folder: self.temporary_folder.clone(),
        };
        Ok(Box::new(RuntimeModel::load(source, self.machine.clone(), spec, host)?))
    }
}

impl Backend for PyTorchBackend {
    fn execution_policy(&self, _: &ModelSpec) -> ExecutionPolicy {
        ExecutionPolicy::Blocking
    }

    fn gpus_refused(&self) -> Option<String> {
        Some(String::from("the backend pytorch executes models on the CPU"))
    }

    /// Doesn't complete anything, like Triton's backend: a model hardly describes its tensors.
    fn auto_complete_config(
        &self,
        draft: &mut ConfigDraft,
        _: &dyn ModelFiles,
    ) -> Result<(), Status> {
        if draft.has_explicit_config() { Ok(()) } else { Err(missing_config_error(draft)) }
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
        host: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn Model>, Status> {
        if !is_compiled(&spec.platform, &spec.default_model_filename) {
            return Err(Status::unsupported(format!(
                "unable to load model '{}': the backend pytorch executes only models of the \
                 platform '{COMPILED}' (model.pt2): compile the model with \
                 `torch._inductor.aoti_compile_and_package`, or serve it with the backend 'python'",
                spec.name
            )));
        }
        let paths = ModelFilesByProcessor::new(&spec, files, COMPILED_FILE)?;
        self.load_compiled(spec, paths.for_processor(CpuOrGpu::Cpu)?, host)
    }

    fn fingerprint(&self, _: &LoadedVersion<'_>) -> Option<BackendFingerprint> {
        let files = vec![self.library.file_fingerprint()?.clone()];
        let version = self.library.version().to_owned();
        Some(BackendFingerprint { version, files, ..BackendFingerprint::from_version("") })
    }
}
