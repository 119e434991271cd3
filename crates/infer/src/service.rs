//! The two traits through which doors reach the server.

use crate::{
    InferenceRequest, LoadParameters, ModelConfigDocument, ModelMetadata, ModelStatistics,
    RepositoryEntry, ResponseSender, ServerMetadata, Status,
};

/// Whatever can answer inference requests: the engine, or a layer before it.
pub trait InferenceService: Send + Sync {
    /// Answers `request` through `sender`, now or later, on any thread.
    ///
    /// It never blocks and never fails: errors go through the sender.
    fn infer(&self, request: InferenceRequest, sender: ResponseSender);
}

/// The name of a model that is not that of its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameMapping {
    /// The directory in the repository.
    pub directory: String,
    /// What the model is called instead.
    pub name: String,
}

/// What doors may ask and order beside inference.
///
/// `version` is `None` for the newest version that is ready. Unknown models
/// and versions are [`NotFound`](crate::Code::NotFound); a version that
/// exists and isn't ready is [`Unavailable`](crate::Code::Unavailable).
pub trait ServerControl: Send + Sync {
    /// Whether the server answers at all.
    fn live(&self) -> bool;
    /// Whether inferences can be sent.
    ///
    /// # Errors
    ///
    /// `Unavailable` while the server shuts down.
    fn ready(&self) -> Result<bool, Status>;
    /// Whether a version of a model can be sent inferences.
    ///
    /// # Errors
    ///
    /// As in the trait's description.
    fn model_ready(&self, name: &str, version: Option<i64>) -> Result<bool, Status>;
    /// Whether one of the two above may wait: with a model, [`ServerControl::model_ready`]
    /// of it, without one [`ServerControl::ready`]. A backend may be asked, and it takes
    /// as long as it likes.
    fn readiness_may_block(&self, _model: Option<(&str, Option<i64>)>) -> bool {
        false
    }
    /// The server's name, version and extensions.
    fn server_metadata(&self) -> ServerMetadata;
    /// A model's interface.
    ///
    /// # Errors
    ///
    /// As in the trait's description.
    fn model_metadata(&self, name: &str, version: Option<i64>) -> Result<ModelMetadata, Status>;
    /// A model's normalised configuration.
    ///
    /// # Errors
    ///
    /// As in the trait's description.
    fn model_config(
        &self,
        name: &str,
        version: Option<i64>,
    ) -> Result<std::sync::Arc<ModelConfigDocument>, Status>;
    /// Whether a model answers with any number of responses.
    ///
    /// # Errors
    ///
    /// As in the trait's description.
    fn is_decoupled(&self, name: &str, version: Option<i64>) -> Result<bool, Status>;
    /// What each queue, slot and instance of a model waits for, as a JSON
    /// document.
    ///
    /// # Errors
    ///
    /// As in the trait's description.
    fn scheduler_status(&self, name: &str, version: Option<i64>) -> Result<String, Status>;
    /// Statistics of every ready version, of one model's, or of one version.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a model or version that isn't there.
    fn statistics(
        &self,
        name: Option<&str>,
        version: Option<i64>,
    ) -> Result<Vec<ModelStatistics>, Status>;
    /// Every model of the repositories, or only those with a ready version.
    fn repository_index(&self, only_ready: bool) -> Vec<RepositoryEntry>;
    /// Loads a model, or loads it anew if it changed, and waits until that is
    /// done: it takes as long as the model takes.
    ///
    /// # Errors
    ///
    /// `Unavailable` unless the server was started for explicit control;
    /// `Internal` if there is no such model or its configuration can't be read;
    /// `InvalidArgument` for an impossible name and for a model that fails to
    /// load.
    fn load_model(&self, name: &str, parameters: LoadParameters) -> Result<(), Status>;
    /// Takes a model out of service, perhaps with those that only it needs.
    /// What it has taken goes on; a model that isn't there is none already.
    ///
    /// # Errors
    ///
    /// `Unavailable` unless the server was started for explicit control.
    fn unload_model(&self, name: &str, unload_dependents: bool) -> Result<(), Status>;
    /// Adds a repository, from which models can be loaded then. A server that has
    /// its models from elsewhere refuses.
    ///
    /// # Errors
    ///
    /// `Unsupported` unless the server was started for explicit control;
    /// `InvalidArgument` if there is no such directory or a name is impossible;
    /// `AlreadyExists` for a repository or a name that is there.
    fn register_repository(&self, path: &str, names: &[NameMapping]) -> Result<(), Status> {
        let _ = names;
        Err(Status::unsupported(format!("repository '{path}' can't be registered here")))
    }
    /// Takes a repository away. Models that were loaded from it serve on.
    ///
    /// # Errors
    ///
    /// `Unsupported` unless the server was started for explicit control;
    /// `InvalidArgument` for a repository that isn't there.
    fn unregister_repository(&self, path: &str) -> Result<(), Status> {
        Err(Status::unsupported(format!("repository '{path}' can't be unregistered here")))
    }
}
