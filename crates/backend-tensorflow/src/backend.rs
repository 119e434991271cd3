//! The backend, which all models share.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use galatea_backend::{
    Backend, BackendFingerprint, ExecutionPolicy, LoadedVersion, LogLevel, Model, ModelFiles,
    ModelHost,
};
use galatea_config::{ConfigDraft, InstanceKind, ModelSpec};
use galatea_devices::Devices;
use galatea_gate::ledger::MemoryAccount;
use galatea_infer::Status;
use galatea_runtime::{
    ImportingLibrary, MachineResources, ModelImporter, RuntimeModel, RuntimeOnDemand, model_entry,
};

use crate::api::{GraphSession, Library};
use crate::choice::{Candidate, InstalledRuntimes, Runtime};
use crate::imported::{ImportError, ModelImport};
use crate::messages::MetaGraphDef;
use crate::model_format::ModelFormat;
use crate::parameters::{BackendSettings, ModelParameters};
use crate::source::TensorFlowSource;
use crate::{
    accelerators, completion, init_ops, op_libraries, saved_model, session_config, validation,
};

/// Receives log messages about models that have not been loaded yet.
pub type LogFunction = Arc<dyn Fn(LogLevel, &str) + Send + Sync>;

/// The runtimes that execute TensorFlow models.
pub struct GraphRuntimes {
    /// TensorFlow's library.
    pub tensorflow: Arc<RuntimeOnDemand<Library>>,
    /// `OpenVINO`, which executes many of these models with less memory.
    pub openvino: RuntimeOnDemand<dyn ModelImporter>,
}

/// The backend's options.
pub struct BackendOptions {
    /// The directory for copies of graphs while they are loaded.
    pub temporary_folder: PathBuf,
    /// The backend's command-line settings: `allow-soft-placement`, `default-max-batch-size`,
    /// `gpu-memory-fraction`, which is checked but has no effect without GPUs, and `version`. Other
    /// settings are ignored.
    pub backend_config: BTreeMap<String, String>,
    /// Receives messages.
    pub log: LogFunction,
    /// The GPUs from which inputs are copied.
    pub devices: Devices,
    /// The account for string memory; the library stores strings as objects.
    pub account: Arc<MemoryAccount>,
}

/// The `tensorflow` backend.
pub struct TensorFlowBackend {
    runtimes: GraphRuntimes,
    machine: MachineResources,
    settings: BackendSettings,
    settings_text: BTreeMap<String, String>,
    temporary_folder: PathBuf,
    log: LogFunction,
}

impl TensorFlowBackend {
    /// Creates the backend. The runtimes are opened when the first model needs them.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for an invalid value in `backend_config`.
    pub fn new(runtimes: GraphRuntimes, options: BackendOptions) -> Result<Self, Status> {
        let BackendOptions { temporary_folder, backend_config, log, devices, account } = options;
        let settings = BackendSettings::parse(&backend_config)?;
        let (machine, settings_text) = (MachineResources { devices, account }, backend_config);
        Ok(Self { runtimes, machine, settings, settings_text, temporary_folder, log })
    }

    fn installed(&self) -> InstalledRuntimes {
        InstalledRuntimes {
            tensorflow: self.runtimes.tensorflow.find().map(drop),
            openvino: self.runtimes.openvino.find().map(drop),
        }
    }

    /// Refuses all models if no runtime is installed.
    fn check_installed(&self) -> Result<(), Status> {
        match self.installed() {
            InstalledRuntimes { tensorflow: Err(missing), openvino: Err(_) } => Err(missing),
            InstalledRuntimes { .. } => Ok(()),
        }
    }

    /// Opens a model's operator libraries, which only TensorFlow's library can use.
    fn open_operators(&self, names: &[String], files: &dyn ModelFiles) -> Result<(), Status> {
        if names.is_empty() {
            return Ok(());
        }
        op_libraries::open(&*self.runtimes.tensorflow.get()?, names, files)
    }

    /// Reads the graph of a `SavedModel` from its file or, if the file has another form, through
    /// the library.
    fn meta_graph(
        &self,
        draft: &ConfigDraft,
        files: &dyn ModelFiles,
        parameters: &ModelParameters,
    ) -> Result<Option<MetaGraphDef>, Status> {
        let default_name = ModelFormat::SavedModel.default_name();
        let name = draft.default_model_filename();
        let path = match model_entry(files, name, default_name, draft.name()) {
            Ok(path) => path,
            // The load reports which file is missing.
            Err(_) => return Ok(None),
        };
        let tag = saved_model::tag(&parameters.graph_tag);
        if let Some(meta_graph) = saved_model::read_meta_graph(&path, tag) {
            return Ok(Some(meta_graph));
        }
        let config = session_config::encode(parameters, self.settings.soft_placement, 0);
        let library = self.runtimes.tensorflow.get()?;
        let opened = GraphSession::of_saved_model(&library, &path, tag, &config, true);
        let (_, message) = opened.map_err(|status| not_completed(draft, status.message()))?;
        saved_model::decode_meta_graph(&message.unwrap_or_default()).map(Some)
    }
}

fn not_completed(draft: &ConfigDraft, reason: &str) -> Status {
    Status::internal(format!(
        "unable to auto-complete model configuration for '{}', failed to load model: {reason}",
        draft.name()
    ))
}

impl Backend for TensorFlowBackend {
    fn execution_policy(&self, _spec: &ModelSpec) -> ExecutionPolicy {
        ExecutionPolicy::Blocking
    }

    fn gpus_refused(&self) -> Option<String> {
        Some(String::from("the backend tensorflow supports only instances on the CPU"))
    }

    fn auto_complete_config(
        &self,
        draft: &mut ConfigDraft,
        files: &dyn ModelFiles,
    ) -> Result<(), Status> {
        self.check_installed()?;
        let name = draft.name().to_owned();
        let format = ModelFormat::of_platform(draft.platform(), &name)?;
        self.open_operators(draft.op_library_filenames(), files)?;
        let parameters = draft.message().parameters.iter();
        let parameters = parameters.map(|(key, value)| (key.clone(), value.string_value.clone()));
        let parameters = ModelParameters::parse(&parameters.collect(), &name)?;
        if format == ModelFormat::GraphDef {
            return Ok(());
        }
        let Some(meta_graph) = self.meta_graph(draft, files, &parameters)? else { return Ok(()) };
        let (signature, _) = saved_model::signature(&meta_graph, &parameters.signature, &name)
            .map_err(|reason| not_completed(draft, &reason))?;
        let size = self.settings.default_max_batch_size;
        if let Some(warning) = completion::complete(draft, &signature, size)? {
            (self.log)(LogLevel::Warning, &warning);
        }
        Ok(())
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
        host: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn Model>, Status> {
        self.check_installed()?;
        let format = ModelFormat::of_platform(&spec.platform, &spec.name)?;
        self.open_operators(&spec.op_library_filenames, files)?;
        let parameters = ModelParameters::parse(&spec.parameters, &spec.name)?;
        validation::check_ranks(&spec)?;
        let kinds = spec.instance_groups.iter().map(|group| group.kind);
        for kind in kinds.filter(|kind| *kind != InstanceKind::Gpu) {
            for warning in accelerators::check(&spec, kind)? {
                host.log(LogLevel::Warning, &warning);
            }
        }
        let path =
            model_entry(files, spec.model_filename(None), format.default_name(), &spec.name)?;
        let init_ops = init_ops::read(files, &parameters.init_ops_file)?;
        self.load_described(DescribedModel { spec, format, path, parameters, init_ops, host })
    }

    fn fingerprint(&self, loaded: &LoadedVersion<'_>) -> Option<BackendFingerprint> {
        // Changes to the files of operator libraries are not tracked.
        if !loaded.spec.op_library_filenames.is_empty() {
            return None;
        }
        let importing = loaded.model.underlying().and_then(|it| it.downcast().ok());
        let (version, file) = match importing.as_deref() {
            Some(ImportingLibrary { version, file }) => (version.clone(), file.clone()?),
            None => {
                let library = self.runtimes.tensorflow.opened()?;
                (library.version().to_owned(), library.file().fingerprint()?.clone())
            }
        };
        let settings = self.settings_text.clone();
        Some(BackendFingerprint { version, settings, files: vec![file] })
    }
}

/// A model and its configuration, with the parsed parameters.
struct DescribedModel {
    spec: Arc<ModelSpec>,
    format: ModelFormat,
    /// The model's directory or file.
    path: PathBuf,
    parameters: ModelParameters,
    init_ops: Vec<String>,
    host: Arc<dyn ModelHost>,
}

impl TensorFlowBackend {
    /// Loads a model with the first runtime that can execute it.
    fn load_described(&self, model: DescribedModel) -> Result<Box<dyn Model>, Status> {
        let (installed, parameter) = (self.installed(), model.parameters.runtime);
        let mut failure: Option<Status> = None;
        for Candidate { runtime, reason } in parameter.candidates(&installed) {
            let name = &model.spec.name;
            if runtime == Runtime::TensorFlow {
                let failure = failure.map(|one| format!(": {}", one.message())).unwrap_or_default();
                let line =
                    format!("model '{name}' is executed by TensorFlow, because {reason}{failure}");
                model.host.log(LogLevel::Info, &line);
                return self.load_by_tensorflow(model);
            }
            match self.load_by_openvino(&model) {
                Ok(loaded) => {
                    let line = format!("model '{name}' is executed by OpenVINO, because {reason}");
                    model.host.log(LogLevel::Info, &line);
                    return Ok(loaded);
                }
                Err(ImportError::Refused(status)) => return Err(status),
                Err(ImportError::Impossible(status)) => failure = Some(status),
            }
        }
        Err(parameter.refusal(&model.spec.name, installed, failure.as_ref()))
    }

    fn load_by_openvino(&self, model: &DescribedModel) -> Result<Box<dyn Model>, ImportError> {
        let import = ModelImport {
            spec: &model.spec,
            parameters: &model.parameters,
            format: model.format,
            path: &model.path,
            temporary_folder: &self.temporary_folder,
            host: &model.host,
        };
        import.load(&self.runtimes.openvino)
    }

    fn load_by_tensorflow(&self, model: DescribedModel) -> Result<Box<dyn Model>, Status> {
        let DescribedModel { spec, format, path, parameters, init_ops, host } = model;
        let source = TensorFlowSource {
            library: self.runtimes.tensorflow.get()?,
            path,
            spec: spec.clone(),
            format,
            parameters,
            soft_placement: self.settings.soft_placement,
            init_ops,
            has_own_operators: !spec.op_library_filenames.is_empty(),
            host: host.clone(),
        };
        Ok(Box::new(RuntimeModel::load(source, self.machine.clone(), spec, host)?))
    }
}
