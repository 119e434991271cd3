//! The backend, which all models share.

use std::collections::BTreeMap;
use std::sync::Arc;

use galatea_backend::{
    Backend, BackendFingerprint, ExecutionPolicy, LoadedVersion, LogLevel, Model, ModelFiles,
    ModelHost,
};
use galatea_config::{ConfigDraft, InstanceKind, ModelSpec};
use galatea_devices::Devices;
use galatea_gate::ledger::MemoryAccount;
use galatea_infer::Status;
use galatea_runtime::{MachineResources, RuntimeModel, model_entry};

use crate::api::{GraphSession, Library};
use crate::messages::MetaGraphDef;
use crate::model_format::ModelFormat;
use crate::parameters::{BackendSettings, ModelParameters};
use crate::source::TensorFlowSource;
use crate::{
    accelerators, completion, init_ops, op_libraries, saved_model, session_config, validation,
};

/// Receives log messages about models that have not been loaded yet.
pub type LogFunction = Arc<dyn Fn(LogLevel, &str) + Send + Sync>;

/// The backend's options.
pub struct BackendOptions {
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
    library: Arc<Library>,
    machine: MachineResources,
    settings: BackendSettings,
    log: LogFunction,
    fingerprint: Option<BackendFingerprint>,
}

impl TensorFlowBackend {
    /// Creates the backend from an open library.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for an invalid value in `backend_config`.
    pub fn new(library: Arc<Library>, options: BackendOptions) -> Result<Self, Status> {
        let BackendOptions { backend_config, log, devices, account } = options;
        let settings = BackendSettings::parse(&backend_config)?;
        let fingerprint = library.file_fingerprint().map(|file| BackendFingerprint {
            version: library.version().to_owned(),
            settings: backend_config,
            files: vec![file.clone()],
        });
        let machine = MachineResources { devices, account };
        Ok(Self { library, machine, settings, log, fingerprint })
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
        let opened = GraphSession::of_saved_model(&self.library, &path, tag, &config, true);
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
        let name = draft.name().to_owned();
        let format = ModelFormat::of_platform(draft.platform(), &name)?;
        op_libraries::open(&self.library, draft.op_library_filenames(), files)?;
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
        let format = ModelFormat::of_platform(&spec.platform, &spec.name)?;
        op_libraries::open(&self.library, &spec.op_library_filenames, files)?;
        let parameters = ModelParameters::parse(&spec.parameters, &spec.name)?;
        validation::check_ranks(&spec)?;
        let kinds = spec.instance_groups.iter().map(|group| group.kind);
        for kind in kinds.filter(|kind| *kind != InstanceKind::Gpu) {
            for warning in accelerators::check(&spec, kind)? {
                host.log(LogLevel::Warning, &warning);
            }
        }
        let source = TensorFlowSource {
            library: self.library.clone(),
            path: model_entry(files, spec.model_filename(None), format.default_name(), &spec.name)?,
            spec: spec.clone(),
            format,
            init_ops: init_ops::read(files, &parameters.init_ops_file)?,
            parameters,
            soft_placement: self.settings.soft_placement,
            has_own_operators: !spec.op_library_filenames.is_empty(),
            host: host.clone(),
        };
        Ok(Box::new(RuntimeModel::load(source, self.machine.clone(), spec, host)?))
    }

    fn fingerprint(&self, loaded: &LoadedVersion<'_>) -> Option<BackendFingerprint> {
        // Changes to the files of operator libraries are not tracked.
        if loaded.spec.op_library_filenames.is_empty() { self.fingerprint.clone() } else { None }
    }
}
