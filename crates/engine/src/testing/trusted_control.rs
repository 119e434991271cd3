//! A server's control interface for tests, which are trusted callers.

use std::sync::Arc;

use galatea_control::{
    LoadParameters, ModelConfigDocument, ModelMetadata, ModelNameMapping, ModelStatistics,
    RepositoryEntry, ServerControl,
};
use galatea_infer::{AccessPass, Status};

use crate::Server;

/// The methods of [`ServerControl`], without passes.
pub(crate) trait TrustedControl {
    fn ready(&self) -> Result<bool, Status>;
    fn model_ready(&self, name: &str, version: Option<i64>) -> Result<bool, Status>;
    fn model_metadata(&self, name: &str, version: Option<i64>) -> Result<ModelMetadata, Status>;
    fn model_config(
        &self,
        name: &str,
        version: Option<i64>,
    ) -> Result<Arc<ModelConfigDocument>, Status>;
    fn statistics(
        &self,
        name: Option<&str>,
        version: Option<i64>,
    ) -> Result<Vec<ModelStatistics>, Status>;
    fn repository_index(&self, only_ready: bool) -> Vec<RepositoryEntry>;
    fn load_model(&self, name: &str, parameters: LoadParameters) -> Result<(), Status>;
    fn unload_model(&self, name: &str, unload_dependents: bool) -> Result<(), Status>;
    fn register_repository(&self, path: &str, names: &[ModelNameMapping]) -> Result<(), Status>;
    fn unregister_repository(&self, path: &str) -> Result<(), Status>;
}

impl TrustedControl for Server {
    fn ready(&self) -> Result<bool, Status> {
        ServerControl::ready(self, AccessPass::in_process())
    }

    fn model_ready(&self, name: &str, version: Option<i64>) -> Result<bool, Status> {
        ServerControl::model_ready(self, AccessPass::in_process(), name, version)
    }

    fn model_metadata(&self, name: &str, version: Option<i64>) -> Result<ModelMetadata, Status> {
        ServerControl::model_metadata(self, AccessPass::in_process(), name, version)
    }

    fn model_config(
        &self,
        name: &str,
        version: Option<i64>,
    ) -> Result<Arc<ModelConfigDocument>, Status> {
        ServerControl::model_config(self, AccessPass::in_process(), name, version)
    }

    fn statistics(
        &self,
        name: Option<&str>,
        version: Option<i64>,
    ) -> Result<Vec<ModelStatistics>, Status> {
        ServerControl::statistics(self, AccessPass::in_process(), name, version)
    }

    fn repository_index(&self, only_ready: bool) -> Vec<RepositoryEntry> {
        ServerControl::repository_index(self, AccessPass::in_process(), only_ready)
            .unwrap_or_default()
    }

    fn load_model(&self, name: &str, parameters: LoadParameters) -> Result<(), Status> {
        ServerControl::load_model(self, AccessPass::in_process(), name, parameters)
    }

    fn unload_model(&self, name: &str, unload_dependents: bool) -> Result<(), Status> {
        ServerControl::unload_model(self, AccessPass::in_process(), name, unload_dependents)
    }

    fn register_repository(&self, path: &str, names: &[ModelNameMapping]) -> Result<(), Status> {
        ServerControl::register_repository(self, AccessPass::in_process(), path, names)
    }

    fn unregister_repository(&self, path: &str) -> Result<(), Status> {
        ServerControl::unregister_repository(self, AccessPass::in_process(), path)
    }
}
