//! A model: one version, initialised by its backend.

use core::ffi::{c_char, c_void};
use std::any::Any;
use std::ffi::CString;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use galatea_abi::{
    TRITONBACKEND_ARTIFACT_FILESYSTEM, TRITONBACKEND_ArtifactType, TRITONBACKEND_Backend,
    TRITONBACKEND_Model, TRITONSERVER_BufferAttributes, TRITONSERVER_Message, TRITONSERVER_Server,
};
use galatea_backend::{
    AutoComplete, Host, Instance, InstanceCreation, LoadedVersion, Model as ModelTrait, ModelFiles,
    Placement, UnconfiguredModel,
};
use galatea_c_objects::error::{c_text, take_c};
use galatea_c_objects::{handle, log, message, text};
use galatea_config::{ConfigDraft, ModelSpec, Support};
use galatea_infer::{MemoryUsage, Status};

use crate::backend::Backend;
use crate::instance::{InUse, Instance as InstanceOwner, PluginInstance};
use crate::memory_usage::{Reported, Total};
use crate::owned::Owned;
use crate::plugins::lock;
use crate::request::state::SharedMemory;

/// The only version of the configuration's JSON form.
const CONFIG_VERSION: u32 = 1;

/// A model as C sees it.
pub(crate) struct ModelObject(Arc<Facts>);
galatea_c_objects::object!(ModelObject as TRITONBACKEND_Model, kind 23);

/// What is known of a model.
pub(crate) struct Facts {
    name: CString,
    version: i64,
    directory: CString,
    pub(crate) backend: Arc<Backend>,
    auto_complete: AutoComplete,
    support: Support,
    config: Mutex<Config>,
    state: AtomicPtr<c_void>,
    memory_usage: Reported,
    live: OnceLock<Live>,
}

/// A model's configuration while the model is opened and loaded.
enum Config {
    /// The backend may change it: it is initialising the model.
    Open(Box<ConfigDraft>),
    /// The server checks and completes it.
    Closed(Box<ConfigDraft>),
    /// The configuration in force, as JSON.
    Settled(String),
}

/// What is known once the configuration is in force.
pub(crate) struct Live {
    pub(crate) name: Arc<str>,
    pub(crate) version: i64,
    pub(crate) spec: Arc<ModelSpec>,
    pub(crate) host: Arc<dyn Host>,
    /// The outputs' names, in the order of the configuration.
    pub(crate) outputs: Vec<Arc<str>>,
    /// The outputs of a request that names none, in Triton's order.
    pub(crate) all_outputs: Vec<CString>,
    /// States that are written where they are read.
    pub(crate) shared_memory: SharedMemory,
}

/// An initialised model. Dropping it finalises it.
pub(crate) struct Model {
    object: Owned<ModelObject>,
    pub(crate) facts: Arc<Facts>,
}

impl Model {
    fn initialize(facts: Facts) -> Result<Self, Status> {
        let facts = Arc::new(facts);
        let model = Self { object: Owned::new(ModelObject(facts.clone())), facts };
        if let Some(initialize) = model.facts.backend.entry_points.model_initialize {
            // SAFETY: the object lives until the model is dropped.
            let done = unsafe { take_c(initialize(model.address())) };
            model.facts.close_config();
            done?;
        }
        Ok(model)
    }

    /// A model of a built-in backend, for C code beside it.
    pub(crate) fn of_built_in(
        backend: Backend,
        loaded: &LoadedVersion<'_>,
        support: &Support,
    ) -> Result<Self, Status> {
        let model = Self::initialize(Facts {
            name: c_text(&loaded.spec.name),
            version: loaded.files.version(),
            directory: c_text(&loaded.files.model_path().to_string_lossy()),
            backend: Arc::new(backend),
            auto_complete: AutoComplete::Disabled,
            support: support.clone(),
            config: Mutex::new(Config::Settled(String::new())),
            state: AtomicPtr::default(),
            memory_usage: Reported::default(),
            live: OnceLock::new(),
        })?;
        model.facts.settle(loaded.spec.clone(), loaded.host.clone())?;
        Ok(model)
    }

    pub(crate) const fn address(&self) -> *mut TRITONBACKEND_Model {
        self.object.address()
    }

    /// Available as soon as there are instances.
    pub(crate) fn live(&self) -> Result<&Live, Status> {
        self.facts.live()
    }
}

impl Drop for Model {
    /// Also finalises a model whose initialisation failed, as Triton does.
    fn drop(&mut self) {
        let Some(finalize) = self.facts.backend.entry_points.model_finalize else { return };
        // SAFETY: the object is released after this; nothing uses it any more.
        if let Err(status) = unsafe { take_c(finalize(self.address())) } {
            log::error(&format!("failed finalizing model '{}': {status}", self.facts.shown_name()));
        }
    }
}

impl Facts {
    fn live(&self) -> Result<&Live, Status> {
        self.live.get().ok_or_else(|| {
            Status::unavailable(format!("model '{}' is not loaded yet", self.shown_name()))
        })
    }

    pub(crate) fn shown_name(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }

    fn close_config(&self) {
        let mut config = lock(&self.config);
        if let Config::Open(draft) = &mut *config {
            *config = Config::Closed(std::mem::take(draft));
        }
    }

    fn config_json(&self) -> String {
        match &*lock(&self.config) {
            Config::Open(draft) | Config::Closed(draft) => draft.normalised_json(&self.support),
            Config::Settled(json) => json.clone(),
        }
    }

    /// Puts the configuration in force. The model is about to get instances.
    fn settle(&self, spec: Arc<ModelSpec>, host: Arc<dyn Host>) -> Result<(), Status> {
        *lock(&self.config) = Config::Settled(spec.to_json());
        let outputs: Vec<Arc<str>> =
            spec.outputs.iter().map(|output| Arc::from(output.name.as_str())).collect();
        let mut all_outputs: Vec<CString> = outputs.iter().map(|name| c_text(name)).collect();
        all_outputs.sort();
        let live = Live {
            name: Arc::from(spec.name.as_str()),
            version: self.version,
            spec,
            host,
            outputs,
            all_outputs,
            shared_memory: SharedMemory::default(),
        };
        self.live.set(live).map_err(|_| Status::internal("a model is loaded once"))
    }

    fn set_config(&self, json: &str) -> Result<(), Status> {
        let completed = ConfigDraft::from_json("the configuration that the backend sets", json)
            .map_err(|errors| Status::invalid_argument(errors.to_string()))?;
        match &mut *lock(&self.config) {
            Config::Open(draft) => draft.adopt(&completed).map_err(Status::internal),
            Config::Closed(_) | Config::Settled(_) => Err(Status::unsupported(
                "a configuration can only be set from TRITONBACKEND_ModelInitialize",
            )),
        }
    }
}

/// A model whose configuration is not in force yet.
pub(crate) struct Opened(Model);

impl Opened {
    /// Makes the backend initialise a model. What it completes goes into `draft`.
    pub(crate) fn initialize(
        backend: Arc<Backend>,
        draft: &mut ConfigDraft,
        files: &dyn ModelFiles,
        auto_complete: AutoComplete,
        support: &Support,
    ) -> Result<Self, Status> {
        let model = Model::initialize(Facts {
            name: c_text(draft.name()),
            version: files.version(),
            directory: c_text(&files.model_path().to_string_lossy()),
            backend,
            auto_complete,
            support: support.clone(),
            config: Mutex::new(Config::Open(Box::new(draft.clone()))),
            state: AtomicPtr::default(),
            memory_usage: Reported::default(),
            live: OnceLock::new(),
        })?;
        model.facts.close_config();
        if let Config::Closed(completed) = &*lock(&model.facts.config) {
            draft.clone_from(completed);
        }
        Ok(Self(model))
    }
}

impl UnconfiguredModel for Opened {
    fn finish_load(
        self: Box<Self>,
        spec: Arc<ModelSpec>,
        host: Arc<dyn Host>,
    ) -> Result<Box<dyn ModelTrait>, Status> {
        self.0.facts.settle(spec, host)?;
        Ok(Box::new(PluginModel { model: Arc::new(self.0), instances: Mutex::default() }))
    }
}

/// A loaded model.
struct PluginModel {
    model: Arc<Model>,
    /// Asked whether they are ready.
    instances: Mutex<Vec<Weak<InstanceOwner>>>,
}

impl ModelTrait for PluginModel {
    fn create_instance(&self, at: &Placement) -> Result<Box<dyn Instance>, Status> {
        let instance = PluginInstance::initialize(self.model.clone(), at)?;
        let mut instances = lock(&self.instances);
        instances.retain(|one| one.strong_count() > 0);
        instances.push(instance.downgrade());
        drop(instances);
        Ok(Box::new(instance))
    }

    fn memory_usage(&self) -> Vec<MemoryUsage> {
        let instances: Vec<InUse> =
            lock(&self.instances).iter().filter_map(Weak::upgrade).map(InUse::new).collect();
        let mut total = Total::default();
        total.add(&self.model.facts.memory_usage);
        instances.iter().for_each(|instance| instance.add_memory_usage(&mut total));
        total.into_usage()
    }

    fn instance_creation(&self) -> InstanceCreation {
        self.model.facts.backend.instance_creation()
    }

    fn check_ready(&self) -> Result<(), Status> {
        if !self.readiness_may_block() {
            return Ok(());
        }
        let instances: Vec<InUse> =
            lock(&self.instances).iter().filter_map(Weak::upgrade).map(InUse::new).collect();
        instances.iter().try_for_each(InUse::ready)
    }

    /// A model in Python asks its process, which may block.
    fn readiness_may_block(&self) -> bool {
        self.model.facts.backend.entry_points.instance_ready.is_some()
    }

    fn underlying(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.model.clone())
    }
}

/// # Safety
///
/// As with every exported function.
unsafe fn facts<'a>(model: *mut TRITONBACKEND_Model) -> Result<&'a Facts, Status> {
    // SAFETY: the caller's promise is passed on.
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
    /// The model's name.
    fn TRITONBACKEND_ModelName(model: *mut TRITONBACKEND_Model, name: *mut *const c_char) {
        text::write(name, facts(model)?.name.as_ptr(), "name")
    }

    /// The model's version.
    fn TRITONBACKEND_ModelVersion(model: *mut TRITONBACKEND_Model, version: *mut u64) {
        text::write(version, facts(model)?.version.cast_unsigned(), "version")
    }

    /// The model's directory.
    fn TRITONBACKEND_ModelRepository(
        model: *mut TRITONBACKEND_Model,
        artifact_type: *mut TRITONBACKEND_ArtifactType,
        location: *mut *const c_char,
    ) {
        let directory = facts(model)?.directory.as_ptr();
        text::write(artifact_type, TRITONBACKEND_ARTIFACT_FILESYSTEM, "artifact_type")?;
        text::write(location, directory, "location")
    }

    /// The model's configuration. The caller deletes it.
    fn TRITONBACKEND_ModelConfig(
        model: *mut TRITONBACKEND_Model,
        config_version: u32,
        model_config: *mut *mut TRITONSERVER_Message,
    ) {
        let facts = facts(model)?;
        check_version(config_version)?;
        if model_config.is_null() {
            return Err(Status::invalid_argument("model_config must not be null"));
        }
        text::write(model_config, message::into_c(facts.config_json()), "model_config")
    }

    /// Whether the backend may complete the configuration.
    fn TRITONBACKEND_ModelAutoCompleteConfig(
        model: *mut TRITONBACKEND_Model,
        auto_complete_config: *mut bool,
    ) {
        let allowed = facts(model)?.auto_complete == AutoComplete::Enabled;
        text::write(auto_complete_config, allowed, "auto_complete_config")
    }

    /// Replaces the parts of the configuration that a backend may complete.
    fn TRITONBACKEND_ModelSetConfig(
        model: *mut TRITONBACKEND_Model,
        config_version: u32,
        model_config: *mut TRITONSERVER_Message,
    ) {
        let facts = facts(model)?;
        check_version(config_version)?;
        facts.set_config(message::json(model_config, "model_config")?)
    }

    /// The server, for calls of tritonserver.h.
    fn TRITONBACKEND_ModelServer(
        model: *mut TRITONBACKEND_Model,
        server: *mut *mut TRITONSERVER_Server,
    ) {
        text::write(server, facts(model)?.backend.server.address(), "server")
    }

    /// The model's backend.
    fn TRITONBACKEND_ModelBackend(
        model: *mut TRITONBACKEND_Model,
        backend: *mut *mut TRITONBACKEND_Backend,
    ) {
        text::write(backend, facts(model)?.backend.address(), "backend")
    }

    /// The state that the backend attached to the model.
    fn TRITONBACKEND_ModelState(model: *mut TRITONBACKEND_Model, state: *mut *mut c_void) {
        text::write(state, facts(model)?.state.load(Ordering::Acquire), "state")
    }

    /// Attaches the backend's state to the model.
    fn TRITONBACKEND_ModelSetState(model: *mut TRITONBACKEND_Model, state: *mut c_void) {
        facts(model)?.state.store(state, Ordering::Release);
        Ok(())
    }

    /// Records how much memory the model uses, without its instances.
    fn TRITONBACKEND_ModelReportMemoryUsage(
        model: *mut TRITONBACKEND_Model,
        usage: *mut *mut TRITONSERVER_BufferAttributes,
        usage_size: u32,
    ) {
        facts(model)?.memory_usage.replace(usage, usage_size)
    }
}
