//! The two traits through which doors reach the server.

use crate::{
    InferenceRequest, LoadParameters, ModelConfigDocument, ModelMetadata, ModelStatistics,
    RepositoryEntry, ResponseSender, ServerMetadata, Status,
};

/// Serves inference requests: the engine, or a layer in front of it.
pub trait InferenceService: Send + Sync {
    /// Replies to `request` through `sender`, now or later, on any thread.
    ///
    /// It never blocks and never fails: errors are sent through the sender.
    fn infer(&self, request: InferenceRequest, sender: ResponseSender);
}

/// Gives a model a name that differs from that of its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameMapping {
    /// The directory in the repository.
    pub directory: String,
    /// The model's name.
    pub name: String,
}

/// The requests of clients other than inference: health, metadata, statistics and
/// model control.
///
/// A `version` of `None` selects the newest version that is ready. Unknown models
/// and versions are [`NotFound`](crate::Code::NotFound); a version that exists
/// but is not ready is [`Unavailable`](crate::Code::Unavailable).
pub trait ServerControl: Send + Sync {
    /// Whether the server runs.
    fn live(&self) -> bool;
    /// Whether the server accepts inference requests.
    ///
    /// # Errors
    ///
    /// `Unavailable` while the server shuts down.
    fn ready(&self) -> Result<bool, Status>;
    /// Whether a version of a model accepts inference requests. False for one that does not
    /// exist or is not loaded.
    ///
    /// # Errors
    ///
    /// `Unavailable` while the server shuts down, and others of the trait's description.
    fn model_ready(&self, name: &str, version: Option<i64>) -> Result<bool, Status>;
    /// Whether [`ServerControl::model_ready`] of this model may block, or
    /// [`ServerControl::ready`] if `model` is `None`. Both may ask a backend, whose
    /// check has no time limit.
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
    /// A model's normalized configuration.
    ///
    /// # Errors
    ///
    /// As in the trait's description.
    fn model_config(
        &self,
        name: &str,
        version: Option<i64>,
    ) -> Result<std::sync::Arc<ModelConfigDocument>, Status>;
    /// Whether a model is decoupled: sends any number of responses to a request.
    ///
    /// # Errors
    ///
    /// As in the trait's description.
    fn is_decoupled(&self, name: &str, version: Option<i64>) -> Result<bool, Status>;
    /// A JSON document that says what each queue, slot and instance of a model
    /// waits for.
    ///
    /// # Errors
    ///
    /// As in the trait's description.
    fn scheduler_status(&self, name: &str, version: Option<i64>) -> Result<String, Status>;
    /// Statistics of every ready version, of those of one model, or of one version.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for an unknown model or version.
    fn statistics(
        &self,
        name: Option<&str>,
        version: Option<i64>,
    ) -> Result<Vec<ModelStatistics>, Status>;
    /// Every model of the repositories, or only those with a ready version.
    fn repository_index(&self, only_ready: bool) -> Vec<RepositoryEntry>;
    /// Loads a model, or reloads it if it changed. Blocks until the load is over,
    /// without a time limit.
    ///
    /// # Errors
    ///
    /// `Unavailable` unless the server runs in explicit control mode; `Internal`
    /// if the model does not exist or its configuration can't be read;
    /// `InvalidArgument` for an invalid name and for a model that fails to load.
    fn load_model(&self, name: &str, parameters: LoadParameters) -> Result<(), Status>;
    /// Takes a model out of service. `unload_dependents`: also the models that only
    /// this one needs. Requests that it has admitted are served. Unloading an
    /// unknown model changes nothing.
    ///
    /// # Errors
    ///
    /// `Unavailable` unless the server runs in explicit control mode.
    fn unload_model(&self, name: &str, unload_dependents: bool) -> Result<(), Status>;
    /// Adds a model repository. The default refuses: the server has no
    /// repositories.
    ///
    /// # Errors
    ///
    /// `Unsupported` unless the server runs in explicit control mode;
    /// `InvalidArgument` if the directory does not exist or a name is invalid;
    /// `AlreadyExists` for a registered repository or name.
    fn register_repository(&self, path: &str, names: &[NameMapping]) -> Result<(), Status> {
        let _ = names;
        Err(Status::unsupported(format!("repository '{path}' can't be registered here")))
    }
    /// Removes a model repository. Models that were loaded from it keep serving.
    ///
    /// # Errors
    ///
    /// `Unsupported` unless the server runs in explicit control mode;
    /// `InvalidArgument` for an unknown repository.
    fn unregister_repository(&self, path: &str) -> Result<(), Status> {
        Err(Status::unsupported(format!("repository '{path}' can't be unregistered here")))
    }
}
