//! Finds and opens models' batching strategies.

use std::sync::Arc;

use galatea_backend::{CustomBatchStrategy, LoadedVersion};
use galatea_c_objects::log;
use galatea_infer::Status;

use crate::backend::{Backend, BackendInfo};
use crate::library::LibraryOpener;
use crate::library::search::LibrarySearchScope;
use crate::library::strategy::StrategySearch;
use crate::model::Model;
use crate::settings::PluginSettings;
use crate::strategy::Strategy;

/// Loads batching strategies for models of any backend.
pub(crate) struct StrategyLoader {
    pub(crate) settings: PluginSettings,
    pub(crate) opener: Arc<LibraryOpener>,
}

impl StrategyLoader {
    /// The model's batching strategy, if any.
    pub(crate) fn batch_rule(
        &self,
        loaded: &LoadedVersion<'_>,
        scope: LibrarySearchScope,
    ) -> Result<Option<Box<dyn CustomBatchStrategy>>, Status> {
        let spec = loaded.spec;
        let search = StrategySearch {
            backend: &spec.backend,
            backend_directory: &self.settings.backend_directory,
            files: loaded.files,
            scope,
            path: StrategySearch::parameter(spec),
        };
        let Some(path) = search.run()? else { return Ok(None) };
        log::write(
            log::ApiLogLevel::Info,
            None,
            &format!("model '{}' has the batching strategy '{}'", spec.name, path.display()),
        );
        let library = self.opener.library_anew(&path)?;
        let strategy = Strategy::initialize(library, &path, self.model_of(loaded)?)?;
        Ok(strategy.map(|strategy| Box::new(strategy) as Box<dyn CustomBatchStrategy>))
    }

    /// The model as C sees it.
    fn model_of(&self, loaded: &LoadedVersion<'_>) -> Result<Arc<Model>, Status> {
        if let Some(Ok(known)) = loaded.model.underlying().map(Arc::downcast) {
            return Ok(known);
        }
        let name = &loaded.spec.backend;
        let backend = Backend::of_built_in(BackendInfo {
            name,
            directory: &self.settings.backend_directory.join(name).to_string_lossy(),
            config: self.settings.config_json(name),
            server: self.settings.server.clone(),
            devices: self.settings.devices.clone(),
            fingerprint: None,
        })?;
        Model::of_built_in(backend, loaded, &self.settings.support).map(Arc::new)
    }
}
