//! A server's plug-ins. Each library is opened and initialised once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use galatea_backend::{
    AutoCompletePermission, Backend as BackendTrait, BackendFingerprint, CustomBatchStrategy,
    ExecutionPolicy, LoadedVersion, Model, ModelFiles, ModelHost, UnconfiguredModel,
};
use galatea_config::{ConfigDraft, ModelSpec};
use galatea_infer::Status;
use galatea_stdx::Lock;

use crate::backend::{Backend, BackendInfo};
use crate::backend_with_strategies::BackendWithStrategies;
use crate::exports;
use crate::library::LibraryOpener;
use crate::library::fingerprint::file_fingerprints;
use crate::library::search::{
    BackendLibrary, BackendSearch, LibrarySearchScope, is_installed, model_has_library,
};
use crate::model;
use crate::plugin_model::UnconfiguredPluginModel;
use crate::settings::PluginSettings;
use crate::strategy_loader::StrategyLoader;

/// A server's plug-ins.
pub struct Plugins {
    settings: PluginSettings,
    opener: Arc<LibraryOpener>,
    strategies: Arc<StrategyLoader>,
    backends: Lock<BTreeMap<BackendKey, Arc<BackendSlot>>>,
}

/// A backend's key. One library may implement several backends, if they are written in Python.
type BackendKey = (PathBuf, String);

/// A backend, once initialised. The lock is held during initialisation, so that all users wait for
/// it.
type BackendSlot = Lock<Option<Arc<Backend>>>;

impl Plugins {
    /// Creates a host that hasn't opened any plug-ins yet.
    #[must_use]
    pub fn new(settings: PluginSettings) -> Arc<Self> {
        let opener = Arc::new(LibraryOpener::new(exports::all));
        let strategies =
            Arc::new(StrategyLoader { settings: settings.clone(), opener: opener.clone() });
        Arc::new(Self { settings, opener, strategies, backends: Lock::default() })
    }

    /// Returns the backend with this name. Its library is located when a model that uses the
    /// backend is loaded.
    #[must_use]
    pub fn backend(
        self: &Arc<Self>,
        name: &str,
        scope: LibrarySearchScope,
    ) -> Arc<dyn BackendTrait> {
        Arc::new(PluginBackend { name: name.to_owned(), scope, plugins: self.clone() })
    }

    /// Wraps a built-in backend so that its models may use batching strategies from libraries in
    /// the model's directories or in the backend directory.
    #[must_use]
    pub fn with_batching_strategies(
        self: &Arc<Self>,
        backend: Arc<dyn BackendTrait>,
        scope: LibrarySearchScope,
    ) -> Arc<dyn BackendTrait> {
        Arc::new(BackendWithStrategies { backend, scope, strategies: self.strategies.clone() })
    }

    /// Returns true if one of a model's directories contains a library for this backend.
    #[must_use]
    pub fn model_has_backend_library(backend: &str, directories: &[&Path]) -> bool {
        model_has_library(backend, directories)
    }

    /// Returns true if the backend directory contains a library for this backend, or its Python
    /// file.
    #[must_use]
    pub fn is_installed(backend: &str, backend_directory: &Path) -> bool {
        is_installed(backend, backend_directory)
    }

    /// A backend's settings as Triton renders them: all values are strings.
    #[must_use]
    pub fn config_json(&self, backend: &str) -> String {
        self.settings.config_json(backend)
    }

    /// The name and library of each initialised backend.
    #[must_use]
    pub fn loaded_backends(&self) -> Vec<(String, PathBuf)> {
        let slots: Vec<(BackendKey, Arc<BackendSlot>)> = self
            .backends
            .lock("list backends")
            .iter()
            .map(|(key, slot)| (key.clone(), slot.clone()))
            .collect();
        let initialised = slots
            .into_iter()
            .filter(|(_, slot)| slot.lock("check whether a backend is loaded").is_some());
        initialised.map(|((library, name), _)| (name, library)).collect()
    }

    /// Returns the backend in a library. The first call opens and initialises the library.
    fn load_backend(&self, name: &str, found: &BackendLibrary) -> Result<Arc<Backend>, Status> {
        let key = (found.library.clone(), name.to_owned());
        let slot = self.backends.lock("find a backend").entry(key).or_default().clone();
        let mut backend = slot.lock("load a backend");
        if let Some(backend) = &*backend {
            return Ok(backend.clone());
        }
        let settings = (self.settings.settings_of)(&found.settings_name);
        // Taken before the library is read, so that a library that changes in the meantime counts
        // as a different one.
        let fingerprint = file_fingerprints(found).map(|files| BackendFingerprint {
            version: String::new(),
            settings,
            files,
        });
        let entry_points = self.opener.open(&found.library)?;
        let made = Arc::new(Backend::initialize(
            entry_points,
            BackendInfo {
                name,
                directory: &found.directory.to_string_lossy(),
                config: self.settings.config_json(&found.settings_name),
                server: self.settings.server.clone(),
                devices: self.settings.devices.clone(),
                fingerprint,
            },
        )?);
        *backend = Some(made.clone());
        Ok(made)
    }
}

/// A backend whose library isn't located until the first model is opened.
struct PluginBackend {
    name: String,
    scope: LibrarySearchScope,
    plugins: Arc<Plugins>,
}

impl BackendTrait for PluginBackend {
    fn reads_whole_configuration(&self) -> bool {
        true
    }

    fn execution_policy(&self, _: &ModelSpec) -> ExecutionPolicy {
        ExecutionPolicy::Blocking
    }

    /// Plug-ins complete configurations when models are opened.
    fn auto_complete_config(&self, _: &mut ConfigDraft, _: &dyn ModelFiles) -> Result<(), Status> {
        Ok(())
    }

    fn begin_load(
        &self,
        draft: &mut ConfigDraft,
        files: &dyn ModelFiles,
        auto_complete: AutoCompletePermission,
    ) -> Result<Option<Box<dyn UnconfiguredModel>>, Status> {
        let settings = &self.plugins.settings;
        let search = BackendSearch {
            backend: &self.name,
            runtime: draft.runtime(),
            backend_directory: &settings.backend_directory,
            files,
            scope: self.scope,
            model: draft.name(),
        };
        let found = search.run()?;
        let backend = self.plugins.load_backend(&self.name, &found)?;
        if let Some(runtime) = found.runtime {
            runtime.clone_into(&mut draft.message_mut().runtime);
        }
        if let Some(archive) = &found.environment {
            draft.set_missing_parameter("EXECUTION_ENV_PATH", &archive.to_string_lossy());
        }
        draft.apply_preferred_instances(
            &backend.preferred.lock("read preferred instances"),
            &settings.support,
        );
        let opened =
            UnconfiguredPluginModel::open(backend, draft, files, auto_complete, &settings.support)?;
        Ok(Some(Box::new(opened)))
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
        host: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn Model>, Status> {
        let mut draft = ConfigDraft::from_json("the configuration", &spec.to_json())
            .map_err(|errors| Status::internal(errors.to_string()))?;
        match self.begin_load(&mut draft, files, AutoCompletePermission::Denied)? {
            Some(opened) => opened.finish_load(spec, host),
            None => Err(Status::internal("a plug-in keeps every model that it opens")),
        }
    }

    fn batch_rule(
        &self,
        loaded: &LoadedVersion<'_>,
    ) -> Result<Option<Box<dyn CustomBatchStrategy>>, Status> {
        self.plugins.strategies.batch_rule(loaded, self.scope)
    }

    fn fingerprint(&self, loaded: &LoadedVersion<'_>) -> Option<BackendFingerprint> {
        let model: Arc<model::Model> = loaded.model.underlying()?.downcast().ok()?;
        model.info.backend.fingerprint.clone()
    }
}
