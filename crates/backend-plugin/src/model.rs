//! A model version that its backend has initialised.

use core::ffi::{c_char, c_void};
use std::ffi::CString;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};

use galatea_abi::{
    TRITONBACKEND_ARTIFACT_FILESYSTEM, TRITONBACKEND_ArtifactType, TRITONBACKEND_Backend,
    TRITONBACKEND_Model, TRITONSERVER_BufferAttributes, TRITONSERVER_Message, TRITONSERVER_Server,
};
use galatea_backend::{AutoCompletePermission, LoadedVersion, ModelFiles, ModelHost};
use galatea_c_objects::error::{take_c_error, to_c_string};
use galatea_c_objects::{handle, log, message, pointer};
use galatea_config::{ConfigDraft, ModelSpec, SupportedFeatures};
use galatea_infer::Status;
use galatea_stdx::Lock;

use crate::backend::Backend;
use crate::memory_usage::MemoryReport;
use crate::owned::Owned;
use crate::state_memory::SharedStateMemory;

/// The only supported version of the JSON configuration.
const CONFIG_VERSION: u32 = 1;

/// A model as C sees it.
pub(crate) struct ModelObject(Arc<ModelInfo>);
galatea_c_objects::object!(ModelObject as TRITONBACKEND_Model, kind 23);

/// The immutable facts about a model.
pub(crate) struct ModelInfo {
    name: CString,
    version: i64,
    directory: CString,
    pub(crate) backend: Arc<Backend>,
    auto_complete: AutoCompletePermission,
    support: SupportedFeatures,
    config: Lock<ModelConfig>,
    state: AtomicPtr<c_void>,
    pub(crate) memory_usage: MemoryReport,
    serving: OnceLock<ServingModel>,
}

/// A model's configuration while the model is being opened and loaded.
enum ModelConfig {
    /// The backend may change the configuration during the model's initialisation.
    Editable(Box<ConfigDraft>),
    /// The server is checking and completing the configuration.
    Frozen(Box<ConfigDraft>),
    /// The configuration in force, as JSON.
    InForce(String),
}

/// The facts that are known only once the configuration is in force.
pub(crate) struct ServingModel {
    pub(crate) name: Arc<str>,
    pub(crate) version: i64,
    pub(crate) spec: Arc<ModelSpec>,
    pub(crate) host: Arc<dyn ModelHost>,
    /// The output names, in configuration order.
    pub(crate) outputs: Vec<Arc<str>>,
    /// The outputs of a request that doesn't specify any, in Triton's order.
    pub(crate) all_outputs: Vec<CString>,
    /// The memory of states that are updated in place.
    pub(crate) shared_memory: Arc<SharedStateMemory>,
    /// The shape-tensor inputs of a batching model, if it has any.
    pub(crate) shape_tensors: Option<Arc<[String]>>,
}

/// An initialised model. Dropping it finalises it.
pub(crate) struct Model {
    object: Owned<ModelObject>,
    pub(crate) info: Arc<ModelInfo>,
}

impl Model {
    fn initialize(info: ModelInfo) -> Result<Self, Status> {
        let info = Arc::new(info);
        let model = Self { object: Owned::new(ModelObject(info.clone())), info };
        if let Some(initialize) = model.info.backend.entry_points.model_initialize {
            // SAFETY: the object lives until the model is dropped.
            let done = unsafe { take_c_error(initialize(model.address())) };
            model.info.freeze_config();
            done?;
        }
        Ok(model)
    }

    /// Calls the backend's model initialisation. The backend's changes to the configuration go into
    /// `draft`.
    pub(crate) fn open(
        backend: Arc<Backend>,
        draft: &mut ConfigDraft,
        files: &dyn ModelFiles,
        auto_complete: AutoCompletePermission,
        support: &SupportedFeatures,
    ) -> Result<Self, Status> {
        let model = Self::initialize(ModelInfo {
            name: to_c_string(draft.name()),
            version: files.version(),
            directory: to_c_string(&files.model_path().to_string_lossy()),
            backend,
            auto_complete,
            support: support.clone(),
            config: Lock::new(ModelConfig::Editable(Box::new(draft.clone()))),
            state: AtomicPtr::default(),
            memory_usage: MemoryReport::default(),
            serving: OnceLock::new(),
        })?;
        model.info.freeze_config();
        if let ModelConfig::Frozen(completed) =
            &*model.info.config.lock("return the completed configuration")
        {
            draft.clone_from(completed);
        }
        if draft.has_explicit_config() {
            Ok(model)
        } else {
            Err(galatea_backend::missing_config_error(draft))
        }
    }

    /// Creates a built-in backend's model for C code that accompanies the backend.
    pub(crate) fn of_built_in(
        backend: Backend,
        loaded: &LoadedVersion<'_>,
        support: &SupportedFeatures,
    ) -> Result<Self, Status> {
        let model = Self::initialize(ModelInfo {
            name: to_c_string(&loaded.spec.name),
            version: loaded.files.version(),
            directory: to_c_string(&loaded.files.model_path().to_string_lossy()),
            backend: Arc::new(backend),
            auto_complete: AutoCompletePermission::Denied,
            support: support.clone(),
            config: Lock::new(ModelConfig::InForce(String::new())),
            state: AtomicPtr::default(),
            memory_usage: MemoryReport::default(),
            serving: OnceLock::new(),
        })?;
        model.info.start_serving(loaded.spec.clone(), loaded.host.clone())?;
        Ok(model)
    }

    pub(crate) const fn address(&self) -> *mut TRITONBACKEND_Model {
        self.object.address()
    }

    /// The facts about the serving model. Available once instances exist.
    pub(crate) fn serving(&self) -> Result<&ServingModel, Status> {
        self.info.serving()
    }
}

impl Drop for Model {
    /// Finalises the model, even if its initialisation failed, as Triton does.
    fn drop(&mut self) {
        let Some(finalize) = self.info.backend.entry_points.model_finalize else { return };
        // SAFETY: the object is released only afterwards, and nothing uses it any more.
        if let Err(status) = unsafe { take_c_error(finalize(self.address())) } {
            log::error(&format!(
                "failed finalizing model '{}': {status}",
                self.info.display_name()
            ));
        }
    }
}

impl ModelInfo {
    fn serving(&self) -> Result<&ServingModel, Status> {
        self.serving.get().ok_or_else(|| {
            Status::unavailable(format!("model '{}' is not loaded yet", self.display_name()))
        })
    }

    pub(crate) fn display_name(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }

    fn freeze_config(&self) {
        let mut config = self.config.lock("freeze the configuration");
        if let ModelConfig::Editable(draft) = &mut *config {
            *config = ModelConfig::Frozen(std::mem::take(draft));
        }
    }

    fn config_json(&self) -> String {
        match &*self.config.lock("render the configuration") {
            ModelConfig::Editable(draft) | ModelConfig::Frozen(draft) => {
                draft.normalized_json(&self.support)
            }
            ModelConfig::InForce(json) => json.clone(),
        }
    }

    /// Puts the configuration in force, just before instances are created.
    pub(crate) fn start_serving(
        &self,
        spec: Arc<ModelSpec>,
        host: Arc<dyn ModelHost>,
    ) -> Result<(), Status> {
        *self.config.lock("put the configuration in force") = ModelConfig::InForce(spec.to_json());
        let outputs: Vec<Arc<str>> =
            spec.outputs.iter().map(|output| Arc::from(output.name.as_str())).collect();
        let mut all_outputs: Vec<CString> = outputs.iter().map(|name| to_c_string(name)).collect();
        all_outputs.sort();
        let shape_tensors: Arc<[String]> = spec
            .inputs
            .iter()
            .filter(|input| spec.max_batch_size > 0 && input.is_shape_tensor)
            .map(|input| input.name.clone())
            .collect();
        let shape_tensors = (!shape_tensors.is_empty()).then_some(shape_tensors);
        let serving = ServingModel {
            name: Arc::from(spec.name.as_str()),
            version: self.version,
            spec,
            host,
            outputs,
            all_outputs,
            shared_memory: Arc::default(),
            shape_tensors,
        };
        self.serving.set(serving).map_err(|_| Status::internal("a model is loaded once"))
    }

    fn set_config(&self, json: &str) -> Result<(), Status> {
        let completed = ConfigDraft::from_json("the configuration that the backend sets", json)
            .map_err(|errors| Status::invalid_argument(errors.to_string()))?;
        match &mut *self.config.lock("change the configuration") {
            ModelConfig::Editable(draft) => {
                draft.merge_completed(&completed).map_err(Status::internal)
            }
            ModelConfig::Frozen(_) | ModelConfig::InForce(_) => Err(Status::unsupported(
                "a configuration can only be set from TRITONBACKEND_ModelInitialize",
            )),
        }
    }
}

/// # Safety
///
/// Same requirements as for every exported function.
unsafe fn info<'a>(model: *mut TRITONBACKEND_Model) -> Result<&'a ModelInfo, Status> {
    // SAFETY: guaranteed by the caller.
    let object: &ModelObject = unsafe { handle::borrow(model, "model")? };
    Ok(&object.0)
}

fn check_version(config_version: u32) -> Result<(), Status> {
    if config_version == CONFIG_VERSION {
        return Ok(());
    }
    Err(Status::invalid_argument(format!(
        "model configuration version {config_version} not supported, supported versions are: \
         {CONFIG_VERSION}"
    )))
}

functions! {
    /// Returns the model's name.
    fn TRITONBACKEND_ModelName(model: *mut TRITONBACKEND_Model, name: *mut *const c_char) {
        pointer::write(name, info(model)?.name.as_ptr(), "name")
    }

    /// Returns the model's version.
    fn TRITONBACKEND_ModelVersion(model: *mut TRITONBACKEND_Model, version: *mut u64) {
        pointer::write(version, info(model)?.version.cast_unsigned(), "version")
    }

    /// Returns the model's directory.
    fn TRITONBACKEND_ModelRepository(
        model: *mut TRITONBACKEND_Model,
        artifact_type: *mut TRITONBACKEND_ArtifactType,
        location: *mut *const c_char,
    ) {
        let directory = info(model)?.directory.as_ptr();
        pointer::write(artifact_type, TRITONBACKEND_ARTIFACT_FILESYSTEM, "artifact_type")?;
        pointer::write(location, directory, "location")
    }

    /// Returns the model's configuration. The caller deletes it.
    fn TRITONBACKEND_ModelConfig(
        model: *mut TRITONBACKEND_Model,
        config_version: u32,
        model_config: *mut *mut TRITONSERVER_Message,
    ) {
        let info = info(model)?;
        check_version(config_version)?;
        if model_config.is_null() {
            return Err(Status::invalid_argument("model_config must not be null"));
        }
        pointer::write(model_config, message::into_c(info.config_json()), "model_config")
    }

    /// Returns true if the backend may complete the configuration automatically.
    fn TRITONBACKEND_ModelAutoCompleteConfig(
        model: *mut TRITONBACKEND_Model,
        auto_complete_config: *mut bool,
    ) {
        let allowed = info(model)?.auto_complete == AutoCompletePermission::Granted;
        pointer::write(auto_complete_config, allowed, "auto_complete_config")
    }

    /// Replaces the parts of the configuration that a backend may complete.
    fn TRITONBACKEND_ModelSetConfig(
        model: *mut TRITONBACKEND_Model,
        config_version: u32,
        model_config: *mut TRITONSERVER_Message,
    ) {
        let info = info(model)?;
        check_version(config_version)?;
        info.set_config(message::json(model_config, "model_config")?)
    }

    /// Returns the server, for use with the functions of tritonserver.h.
    fn TRITONBACKEND_ModelServer(
        model: *mut TRITONBACKEND_Model,
        server: *mut *mut TRITONSERVER_Server,
    ) {
        pointer::write(server, info(model)?.backend.server.address(), "server")
    }

    /// Returns the model's backend.
    fn TRITONBACKEND_ModelBackend(
        model: *mut TRITONBACKEND_Model,
        backend: *mut *mut TRITONBACKEND_Backend,
    ) {
        pointer::write(backend, info(model)?.backend.address(), "backend")
    }

    /// Returns the state that the backend has attached to the model.
    fn TRITONBACKEND_ModelState(model: *mut TRITONBACKEND_Model, state: *mut *mut c_void) {
        pointer::write(state, info(model)?.state.load(Ordering::Acquire), "state")
    }

    /// Attaches the backend's state to the model.
    fn TRITONBACKEND_ModelSetState(model: *mut TRITONBACKEND_Model, state: *mut c_void) {
        info(model)?.state.store(state, Ordering::Release);
        Ok(())
    }

    /// Records how much memory the model uses, excluding its instances.
    fn TRITONBACKEND_ModelReportMemoryUsage(
        model: *mut TRITONBACKEND_Model,
        usage: *mut *mut TRITONSERVER_BufferAttributes,
        usage_size: u32,
    ) {
        info(model)?.memory_usage.replace(usage, usage_size)
    }
}
