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
use galatea_stdx::Lock;
use serde_json::Value;

use crate::aoti::{AotiSource, CheckedModel};
use crate::api::{FileAccess, Library, Shim};
use crate::native_models::is_compiled;
use crate::parameters::ModelParameters;
use crate::torchscript::{
    CompileError, ShimError, ShimFolder, TorchScriptSource, description_job, open_shim, worker_job,
};
use crate::worker::{TorchWorkers, check_for_worker};

/// The default name of a compiled model's file.
const COMPILED_FILE: &str = "model.pt2";

/// The default name of a TorchScript model's file.
const TORCHSCRIPT_FILE: &str = "model.pt";

/// The backend's options.
pub struct TorchOptions {
    /// The number of processors that the process may use.
    pub processors: usize,
    /// The directory from which the libraries of compiled models are opened.
    pub temporary_folder: PathBuf,
    /// The directory for files that later servers reuse: the connection to PyTorch's TorchScript
    /// interpreter, which is compiled for the installed release.
    pub cache_folder: Option<PathBuf>,
    /// The GPUs from which inputs are copied.
    pub devices: Devices,
    /// The account for string memory.
    pub account: Arc<MemoryAccount>,
    /// The workers of models that the library can't execute.
    pub workers: Arc<dyn TorchWorkers>,
}

/// The `pytorch` backend.
pub struct PyTorchBackend {
    library: Arc<Library>,
    machine: MachineResources,
    processors: usize,
    temporary_folder: PathBuf,
    shim_folder: ShimFolder,
    workers: Arc<dyn TorchWorkers>,
    /// The shim, once a TorchScript model has needed it.
    shim: Lock<Option<Arc<Shim>>>,
    /// The last logged reason why the shim can't be compiled.
    logged: Lock<Option<CompileError>>,
}

impl PyTorchBackend {
    /// Creates the backend from an open library.
    #[must_use]
    pub fn new(library: Arc<Library>, options: TorchOptions) -> Self {
        let TorchOptions { processors, temporary_folder, cache_folder, devices, account, workers } =
            options;
        let machine = MachineResources { devices, account };
        let shim_folder = ShimFolder { cache: cache_folder, temporary: temporary_folder.clone() };
        let (shim, logged) = (Lock::default(), Lock::default());
        Self { library, machine, processors, temporary_folder, shim_folder, workers, shim, logged }
    }

    fn load_compiled(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
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
        let Some(reason) = source.worker_reason()? else {
            return Ok(Box::new(RuntimeModel::load(source, self.machine.clone(), spec, host)?));
        };
        check_for_worker(&spec, &reason)?;
        let (job, shapes) = source.worker_job()?;
        let is_batched = spec.max_batch_size > 0;
        let model = self.load_in_worker(spec, files, host, job, &reason)?;
        Ok(Box::new(CheckedModel::new(model, shapes, is_batched)))
    }

    fn load_in_worker(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
        host: Arc<dyn ModelHost>,
        job: Value,
        reason: &str,
    ) -> Result<Box<dyn Model>, Status> {
        let name = &spec.name;
        let line =
            format!("model '{name}': a worker, a process of Python, executes it, because {reason}");
        host.log(LogLevel::Warning, &line);
        self.workers.load(spec, files, host, job)
    }

    fn load_torchscript(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
        path: &Path,
        host: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn Model>, Status> {
        let parameters = ModelParameters::parse(&spec.parameters)?;
        for warning in parameters.warnings() {
            host.log(LogLevel::Warning, &format!("model '{}': {warning}", spec.name));
        }
        let access =
            if files.are_from_client() { FileAccess::Refused } else { FileAccess::Allowed };
        let shim = match self.shim() {
            Ok(shim) => shim,
            Err(ShimError::Failed(status)) => return Err(status),
            // The shim is what finds file accesses in a model's code.
            Err(ShimError::NotCompiled(reason)) if access == FileAccess::Refused => {
                return Err(Status::unsupported(format!(
                    "unable to load model '{}': a load request can't bring a model of TorchScript, \
                     because the server can't check its code: {}",
                    spec.name,
                    reason.text()
                )));
            }
            Err(ShimError::NotCompiled(reason)) => {
                self.log_once(&reason, &*host);
                return self.load_torchscript_in_worker(
                    spec,
                    files,
                    path,
                    host,
                    &parameters,
                    &reason,
                );
            }
        };
        let source = TorchScriptSource {
            library: self.library.clone(),
            shim,
            path: path.to_owned(),
            spec: spec.clone(),
            parameters,
            files: access,
            host: host.clone(),
            processors: self.processors,
        };
        Ok(Box::new(RuntimeModel::load(source, self.machine.clone(), spec, host)?))
    }

    fn load_torchscript_in_worker(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
        path: &Path,
        host: Arc<dyn ModelHost>,
        parameters: &ModelParameters,
        reason: &CompileError,
    ) -> Result<Box<dyn Model>, Status> {
        check_for_worker(&spec, &reason.text())?;
        if parameters.shares_weights {
            let line = format!(
                "model '{}': parameter 'ENABLE_WEIGHT_SHARING' has no effect: workers share no \
                 memory",
                spec.name
            );
            host.log(LogLevel::Warning, &line);
        }
        // The worker may lack PyTorch, and the user may prefer to make the compiler work.
        let with_reason = |status: Status| {
            let text = format!("{status}\n\nA worker is needed, because {}", reason.text());
            Status::new(status.code(), text)
        };
        let description = self.workers.describe(&spec, files, description_job(path));
        let description = description.map_err(with_reason)?;
        let job = worker_job(&spec, path, parameters, self.processors, &description)?;
        self.load_in_worker(spec, files, host, job, reason.summary()).map_err(with_reason)
    }

    /// Logs the details of an error, unless they are those of the last one. The line about each
    /// model has only a summary, because a compiler's messages are long.
    fn log_once(&self, error: &CompileError, host: &dyn ModelHost) {
        if *error == CompileError::NoCompiler {
            return;
        }
        let mut logged = self.logged.lock("log a compiler's error once");
        if logged.as_ref() != Some(error) {
            host.log(LogLevel::Warning, &error.text());
            *logged = Some(error.clone());
        }
    }

    /// The shim, which is compiled unless an earlier server has done so. Other loads that need it
    /// wait.
    fn shim(&self) -> Result<Arc<Shim>, ShimError> {
        let mut shim = self.shim.lock("find or compile the shim");
        if let Some(shim) = &*shim {
            return Ok(shim.clone());
        }
        Ok(shim.insert(open_shim(&self.library, &self.shim_folder)?).clone())
    }
}

impl Backend for PyTorchBackend {
    fn execution_policy(&self, _: &ModelSpec) -> ExecutionPolicy {
        ExecutionPolicy::Blocking
    }

    fn gpus_refused(&self) -> Option<String> {
        Some(String::from("the backend pytorch executes models on the CPU"))
    }

    /// It doesn't complete any configuration, like Triton's backend, because models barely describe
    /// their tensors.
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
        let is_compiled = is_compiled(&spec.platform, &spec.default_model_filename);
        let usual = if is_compiled { COMPILED_FILE } else { TORCHSCRIPT_FILE };
        let paths = ModelFilesByProcessor::new(&spec, files, usual)?;
        let path = paths.for_processor(CpuOrGpu::Cpu)?;
        if is_compiled {
            self.load_compiled(spec, files, path, host)
        } else {
            self.load_torchscript(spec, files, path, host)
        }
    }

    fn fingerprint(&self, _: &LoadedVersion<'_>) -> Option<BackendFingerprint> {
        let files = vec![self.library.file().fingerprint()?.clone()];
        let version = self.library.version().to_owned();
        Some(BackendFingerprint { version, files, ..BackendFingerprint::from_version("") })
    }
}
