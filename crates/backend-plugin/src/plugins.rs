//! The plug-ins of a server: each library is opened and initialised once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use galatea_abi::TRITONSERVER_Server;
use galatea_backend::{
    AutoComplete, Backend as BackendTrait, BackendFingerprint, BatchRule, ExecutionPolicy, Host,
    LoadedVersion, Model, ModelFiles, UnconfiguredModel,
};
use galatea_c_objects::log;
use galatea_config::{ConfigDraft, ModelSpec, Support};
use galatea_infer::Status;

use crate::backend::{Backend, Identity};
use crate::library::Opener;
use crate::library::marks::marks;
use crate::library::search::{Found, Search, is_beside, is_installed};
use crate::library::strategy::StrategySearch;
use crate::model::{self, Opened};
use crate::strategy::Strategy;
use crate::with_strategy::WithStrategies;

/// The setting that a backend always finds.
const DEFAULT_MAX_BATCH_SIZE: (&str, &str) = ("default-max-batch-size", "4");

/// The server's address, which `TRITONBACKEND_ModelServer` returns and only the functions
/// of tritonserver.h can use. It is null until it is set, because backends are created
/// before their server.
#[derive(Clone, Debug, Default)]
pub struct Server(Arc<AtomicPtr<TRITONSERVER_Server>>);

impl Server {
    /// Sets the address. It must be set before the first model is loaded, because
    /// backends ask for it then.
    pub fn set(&self, address: *mut TRITONSERVER_Server) {
        self.0.store(address, Ordering::Release);
    }

    pub(crate) fn address(&self) -> *mut TRITONSERVER_Server {
        self.0.load(Ordering::Acquire)
    }
}

/// Returns the settings of the command line for a backend.
pub type SettingsOf = Arc<dyn Fn(&str) -> BTreeMap<String, String> + Send + Sync>;

/// What plug-ins learn of the server, and where they are installed.
#[derive(Clone)]
pub struct PluginSettings {
    /// The directory that contains one directory per backend.
    pub backend_directory: PathBuf,
    /// The settings of each backend, merged with the settings for all backends.
    pub settings_of: SettingsOf,
    /// The processors that models may use.
    pub support: Support,
    /// The server that backends may call.
    pub server: Server,
}

/// Where the library of a model's backend may be.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Places {
    /// In the model's directories and in the directory of backends.
    All,
    /// Only in the directory of backends: the model's files come from a client, and a
    /// client must not bring code.
    BackendDirectory,
}

/// The plug-ins of a server.
pub struct Plugins {
    settings: PluginSettings,
    opener: Opener,
    backends: Mutex<BTreeMap<Key, Arc<Slot>>>,
}

/// One library may implement several backends, if they are written in Python.
type Key = (PathBuf, String);

/// A backend, once it is initialised. The lock is held while it is initialised, so that
/// every user waits for that.
type Slot = Mutex<Option<Arc<Backend>>>;

impl Plugins {
    /// A host that has not opened any plug-in yet.
    #[must_use]
    pub fn new(settings: PluginSettings) -> Arc<Self> {
        Arc::new(Self { settings, opener: Opener::default(), backends: Mutex::default() })
    }

    /// The backend of this name. Its library is searched for when a model is loaded with
    /// it.
    #[must_use]
    pub fn backend(self: &Arc<Self>, name: &str, places: Places) -> Arc<dyn BackendTrait> {
        Arc::new(PluginBackend { name: name.to_owned(), places, plugins: self.clone() })
    }

    /// A built-in backend whose models may have batching strategies in libraries, in the
    /// model's directories and in the directory of backends.
    #[must_use]
    pub fn with_strategies(
        self: &Arc<Self>,
        backend: Arc<dyn BackendTrait>,
        places: Places,
    ) -> Arc<dyn BackendTrait> {
        Arc::new(WithStrategies { backend, places, plugins: self.clone() })
    }

    /// Whether one of a model's directories holds a library for this backend.
    #[must_use]
    pub fn is_beside(backend: &str, directories: &[&Path]) -> bool {
        is_beside(backend, directories)
    }

    /// Whether the directory of backends contains a library for this backend, or its
    /// Python file.
    #[must_use]
    pub fn is_installed(backend: &str, backend_directory: &Path) -> bool {
        is_installed(backend, backend_directory)
    }

    /// The names and libraries of the backends that are initialised.
    #[must_use]
    pub fn in_use(&self) -> Vec<(String, PathBuf)> {
        let slots: Vec<(Key, Arc<Slot>)> =
            lock(&self.backends).iter().map(|(key, slot)| (key.clone(), slot.clone())).collect();
        let initialised = slots.into_iter().filter(|(_, slot)| lock(slot).is_some());
        initialised.map(|((library, name), _)| (name, library)).collect()
    }

    /// The backend in a library. The first call opens and initialises it.
    fn loaded(&self, name: &str, found: &Found) -> Result<Arc<Backend>, Status> {
        let key = (found.library.clone(), name.to_owned());
        let slot = lock(&self.backends).entry(key).or_default().clone();
        let mut backend = lock(&slot);
        if let Some(backend) = &*backend {
            return Ok(backend.clone());
        }
        let settings = (self.settings.settings_of)(&found.settings_of);
        // Taken before the library is read: a library that changes meanwhile counts as
        // another one.
        let fingerprint = marks(found).map(|files| BackendFingerprint {
            version: String::new(),
            settings,
            files,
        });
        let entry_points = self.opener.open(&found.library)?;
        let made = Arc::new(Backend::initialize(
            entry_points,
            Identity {
                name,
                directory: &found.directory.to_string_lossy(),
                config: self.config_json(&found.settings_of),
                server: self.settings.server.clone(),
                fingerprint,
            },
        )?);
        *backend = Some(made.clone());
        Ok(made)
    }

    /// The batching strategy of a model, if it has one.
    pub(crate) fn batch_rule(
        &self,
        loaded: &LoadedVersion<'_>,
        places: Places,
    ) -> Result<Option<Box<dyn BatchRule>>, Status> {
        let spec = loaded.spec;
        let search = StrategySearch {
            backend: &spec.backend,
            backend_directory: &self.settings.backend_directory,
            files: loaded.files,
            places,
            path: StrategySearch::parameter(spec),
        };
        let Some(path) = search.run()? else { return Ok(None) };
        log::write(
            log::Level::Info,
            None,
            &format!("model '{}' has the batching strategy '{}'", spec.name, path.display()),
        );
        let library = self.opener.library(&path)?;
        let strategy = Strategy::initialize(library, &path, self.model_of(loaded)?)?;
        Ok(strategy.map(|strategy| Box::new(strategy) as Box<dyn BatchRule>))
    }

    /// The model as C sees it.
    fn model_of(&self, loaded: &LoadedVersion<'_>) -> Result<Arc<model::Model>, Status> {
        if let Some(Ok(known)) = loaded.model.underlying().map(Arc::downcast) {
            return Ok(known);
        }
        let name = &loaded.spec.backend;
        let backend = Backend::of_built_in(Identity {
            name,
            directory: &self.settings.backend_directory.join(name).to_string_lossy(),
            config: self.config_json(name),
            server: self.settings.server.clone(),
            fingerprint: None,
        })?;
        model::Model::of_built_in(backend, loaded, &self.settings.support).map(Arc::new)
    }

    /// The settings of a backend as Triton renders them: all values are strings.
    #[must_use]
    pub fn config_json(&self, backend: &str) -> String {
        let mut settings = (self.settings.settings_of)(backend);
        let (key, value) = DEFAULT_MAX_BATCH_SIZE;
        settings.entry(String::from(key)).or_insert_with(|| String::from(value));
        serde_json::json!({ "cmdline": settings }).to_string()
    }
}

/// A backend of which only the name is known until a model is opened.
struct PluginBackend {
    name: String,
    places: Places,
    plugins: Arc<Plugins>,
}

impl BackendTrait for PluginBackend {
    fn supports_secondary_devices(&self) -> bool {
        true
    }

    fn execution_policy(&self, _: &ModelSpec) -> ExecutionPolicy {
        ExecutionPolicy::Blocking
    }

    /// A plug-in completes configurations when it opens models.
    fn auto_complete_config(&self, _: &mut ConfigDraft, _: &dyn ModelFiles) -> Result<(), Status> {
        Ok(())
    }

    fn begin_load(
        &self,
        draft: &mut ConfigDraft,
        files: &dyn ModelFiles,
        auto_complete: AutoComplete,
    ) -> Result<Option<Box<dyn UnconfiguredModel>>, Status> {
        let settings = &self.plugins.settings;
        let search = Search {
            backend: &self.name,
            runtime: draft.runtime(),
            backend_directory: &settings.backend_directory,
            files,
            places: self.places,
            model: draft.name(),
        };
        let found = search.run()?;
        let backend = self.plugins.loaded(&self.name, &found)?;
        if let Some(runtime) = found.runtime {
            runtime.clone_into(&mut draft.message_mut().runtime);
        }
        draft.prefer_instances(&lock(&backend.preferred), &settings.support);
        let opened = Opened::initialize(backend, draft, files, auto_complete, &settings.support)?;
        Ok(Some(Box::new(opened)))
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
        host: Arc<dyn Host>,
    ) -> Result<Box<dyn Model>, Status> {
        let mut draft = ConfigDraft::from_json("the configuration", &spec.to_json())
            .map_err(|errors| Status::internal(errors.to_string()))?;
        match self.begin_load(&mut draft, files, AutoComplete::Disabled)? {
            Some(opened) => opened.finish_load(spec, host),
            None => Err(Status::internal("a plug-in keeps every model that it opens")),
        }
    }

    fn batch_rule(&self, loaded: &LoadedVersion<'_>) -> Result<Option<Box<dyn BatchRule>>, Status> {
        self.plugins.batch_rule(loaded, self.places)
    }

    fn fingerprint(&self, loaded: &LoadedVersion<'_>) -> Option<BackendFingerprint> {
        let model: Arc<model::Model> = loaded.model.underlying()?.downcast().ok()?;
        model.facts.backend.fingerprint.clone()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
