//! The trait that gives doors access to everything in the server except inference.
//!
//! Every method requires the pass for its category, which only a door's gate can issue.

use std::sync::Arc;

use galatea_gate::access::{AccessPass, api};
use galatea_infer::Status;

use crate::{
    LoadParameters, ModelConfigDocument, ModelMetadata, ModelStatistics, ModelWait,
    RepositoryEntry, ServedModel, ServerMetadata,
};

/// Gives a model a name other than its directory's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelNameMapping {
    /// The directory in the repository.
    pub directory: String,
    /// The model's name.
    pub name: String,
}

/// Serves client requests other than inference: health, metadata, statistics and model control.
///
/// If `version` is `None`, the newest ready version is used. Unknown models and versions are
/// [`NotFound`](galatea_infer::Code::NotFound); a version that exists but is not ready is
/// [`Unavailable`](galatea_infer::Code::Unavailable).
pub trait ServerControl: Send + Sync {
    /// Returns true if the server is running.
    fn live(&self, pass: AccessPass<api::Health>) -> bool;
    /// Returns true if the server accepts inference requests.
    ///
    /// # Errors
    ///
    /// `Unavailable` while the server shuts down.
    fn ready(&self, pass: AccessPass<api::Health>) -> Result<bool, Status>;
    /// Returns true if a model version accepts inference requests. Returns false if it does not
    /// exist or is not loaded.
    ///
    /// # Errors
    ///
    /// `Unavailable` while the server shuts down, and the errors in the trait's description.
    fn model_ready(
        &self,
        pass: AccessPass<api::Health>,
        name: &str,
        version: Option<i64>,
    ) -> Result<bool, Status>;
    /// Returns true if [`ServerControl::model_ready`] may block for this model, or
    /// [`ServerControl::ready`] if `model` is `None`. Both methods may ask a backend, and its check
    /// has no time limit.
    fn readiness_may_block(
        &self,
        _: AccessPass<api::Health>,
        _model: Option<(&str, Option<i64>)>,
    ) -> bool {
        false
    }
    /// The server's name, version and extensions.
    fn server_metadata(&self, pass: AccessPass<api::Metadata>) -> ServerMetadata;
    /// A model's interface.
    ///
    /// # Errors
    ///
    /// The errors in the trait's description.
    fn model_metadata(
        &self,
        pass: AccessPass<api::Metadata>,
        name: &str,
        version: Option<i64>,
    ) -> Result<ModelMetadata, Status>;
    /// A model's normalized configuration.
    ///
    /// # Errors
    ///
    /// The errors in the trait's description.
    fn model_config(
        &self,
        pass: AccessPass<api::ModelConfig>,
        name: &str,
        version: Option<i64>,
    ) -> Result<Arc<ModelConfigDocument>, Status>;
    /// Looks up the model version that an inference request is for.
    ///
    /// # Errors
    ///
    /// The errors in the trait's description.
    fn model_for_inference(
        &self,
        pass: AccessPass<api::Inference>,
        name: &str,
        version: Option<i64>,
    ) -> Result<Arc<dyn ServedModel>, Status>;
    /// Waits for a model that [`ServerControl::model_for_inference`] did not find and that is
    /// loaded on demand. Returns immediately.
    ///
    /// # Errors
    ///
    /// The wait itself, if the server doesn't load this model on demand. The lookup's error then
    /// stands.
    fn wait_for_model(
        &self,
        pass: AccessPass<api::Inference>,
        wait: ModelWait,
    ) -> Result<(), ModelWait> {
        let _ = pass;
        Err(wait)
    }
    /// Returns true if models have a report with this name, which is the last part of its path.
    fn has_report(&self, report: &str) -> bool;
    /// A report on a model version: a JSON document that Triton lacks, such as `scheduler`, which
    /// lists what each queue, slot and instance waits for.
    ///
    /// # Errors
    ///
    /// The errors in the trait's description, or [`NotFound`](galatea_infer::Code::NotFound) for an
    /// unknown report.
    fn model_report(
        &self,
        pass: AccessPass<api::Statistics>,
        name: &str,
        version: Option<i64>,
        report: &str,
    ) -> Result<String, Status>;
    /// The statistics of every ready version, of one model's ready versions, or of one version.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for an unknown model or version.
    fn statistics(
        &self,
        pass: AccessPass<api::Statistics>,
        name: Option<&str>,
        version: Option<i64>,
    ) -> Result<Vec<ModelStatistics>, Status>;
    /// Every model in the repositories, or only those with a ready version.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the server could not be initialized.
    fn repository_index(
        &self,
        pass: AccessPass<api::ModelRepository>,
        only_ready: bool,
    ) -> Result<Vec<RepositoryEntry>, Status>;
    /// Loads a model, or reloads it if it changed. Blocks until the load has finished, without a
    /// time limit.
    ///
    /// # Errors
    ///
    /// `Unavailable` unless the server runs in explicit control mode; `Internal` if the model does
    /// not exist or its configuration can't be read; `InvalidArgument` for an invalid name or a
    /// model that fails to load.
    fn load_model(
        &self,
        pass: AccessPass<api::ModelRepository>,
        name: &str,
        parameters: LoadParameters,
    ) -> Result<(), Status>;
    /// Takes a model out of service. With `unload_dependents`, also unloads the models that only
    /// this model needs. Admitted requests are still served. Unloading an unknown model changes
    /// nothing.
    ///
    /// # Errors
    ///
    /// `Unavailable` unless the server runs in explicit control mode.
    fn unload_model(
        &self,
        pass: AccessPass<api::ModelRepository>,
        name: &str,
        unload_dependents: bool,
    ) -> Result<(), Status>;
    /// Adds a model repository. The default implementation refuses, because the server has no
    /// repositories.
    ///
    /// # Errors
    ///
    /// `Unsupported` unless the server runs in explicit control mode;
    /// `InvalidArgument` if the directory does not exist or a name is invalid;
    /// `AlreadyExists` for a registered repository or name.
    fn register_repository(
        &self,
        pass: AccessPass<api::ModelRepository>,
        path: &str,
        names: &[ModelNameMapping],
    ) -> Result<(), Status> {
        let _ = (pass, names);
        Err(Status::unsupported(format!("repository '{path}' can't be registered here")))
    }
    /// Removes a model repository. Models loaded from it keep serving.
    ///
    /// # Errors
    ///
    /// `Unsupported` unless the server runs in explicit control mode;
    /// `InvalidArgument` for an unknown repository.
    fn unregister_repository(
        &self,
        pass: AccessPass<api::ModelRepository>,
        path: &str,
    ) -> Result<(), Status> {
        let _ = pass;
        Err(Status::unsupported(format!("repository '{path}' can't be unregistered here")))
    }
}
