//! Model definitions, from which models are loaded.

use std::sync::Arc;

use galatea_backend::{Backend, ModelFiles, ModelRepositoryAgents};
use galatea_config::{ConfigDraft, SupportedFeatures};
use galatea_infer::{CancelToken, Status};
use galatea_policy::{ModelId, model_id};

/// A model's configuration, files and backend. This is the input to
/// [`VersionLoader::load`](super::VersionLoader::load).
pub struct ModelDefinition {
    /// The model's namespace, if any.
    pub namespace: Option<Arc<str>>,
    /// The model's name.
    pub name: String,
    /// The configuration, with name, backend and file name resolved.
    pub draft: ConfigDraft,
    /// The backend specified in the configuration.
    pub backend: Arc<dyn Backend>,
    /// The versions to serve. Loading fails if there are none.
    pub versions: Vec<Arc<dyn ModelFiles>>,
    /// True if the backend may complete the configuration.
    pub auto_complete: bool,
    /// The features that this server supports.
    pub support: SupportedFeatures,
    /// The repository agents that have approved the load, if the model has any.
    pub agents: Option<Box<dyn ModelRepositoryAgents>>,
    /// Cancelled when the load is no longer wanted. Cancelling it ends the warmup, which may take a
    /// long time.
    pub stop: CancelToken,
}

/// A model that another model needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeededModel {
    /// The model's name in the ensemble's steps.
    pub name: String,
    /// The version; `None` means the newest one.
    pub version: Option<i64>,
}

impl ModelDefinition {
    /// Checks that at least one version is to be served.
    pub fn check_versions(&self) -> Result<(), Status> {
        if !self.versions.is_empty() {
            return Ok(());
        }
        Err(Status::invalid_argument(format!(
            "at least one version must be available under the version policy of model '{}'",
            self.id()
        )))
    }

    /// The model's id: its name, preceded by its namespace if it has one.
    #[must_use]
    pub fn id(&self) -> ModelId {
        model_id(self.namespace.as_deref(), &self.name)
    }

    /// The models that must be serving before this model can serve.
    #[must_use]
    pub fn needed_models(&self) -> Vec<NeededModel> {
        let models = self.draft.composing_models().into_iter();
        models.map(|(name, version)| NeededModel { name, version }).collect()
    }
}
