//! What doors may ask the server.

use std::sync::Arc;

use galatea_infer::{
    ModelConfigDocument, ModelMetadata, ModelStatistics, RepositoryEntry, ServerControl,
    ServerMetadata, Status,
};

use crate::{LoadedModel, Server};

/// The protocol extensions, in the order in which the original lists them.
const EXTENSIONS: [&str; 13] = [
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
];

impl Server {
    fn find(&self, name: &str, version: Option<i64>) -> Result<Arc<LoadedModel>, Status> {
        self.registry.snapshot().find(name, version).cloned()
    }

    fn refuse_control(&self) -> Status {
        Status::unavailable(
            "explicit model load / unload is not allowed if polling is enabled; this server was \
             started with --model-control-mode=none",
        )
    }
}

impl ServerControl for Server {
    fn live(&self) -> bool {
        true
    }

    fn ready(&self) -> Result<bool, Status> {
        if self.is_exiting() {
            return Err(Status::unavailable("Server exiting"));
        }
        Ok(!self.options.strict_readiness || self.registry.snapshot().all_ready())
    }

    fn model_ready(&self, name: &str, version: Option<i64>) -> Result<bool, Status> {
        if self.is_exiting() {
            return Err(Status::unavailable("Server not ready"));
        }
        self.find(name, version).map(|_| true)
    }

    fn server_metadata(&self) -> ServerMetadata {
        ServerMetadata {
            name: self.options.name.clone(),
            version: self.options.version.clone(),
            extensions: EXTENSIONS.to_vec(),
        }
    }

    fn model_metadata(&self, name: &str, version: Option<i64>) -> Result<ModelMetadata, Status> {
        let snapshot = self.registry.snapshot();
        let model = snapshot.find(name, version)?;
        let versions = match version {
            Some(version) => vec![version],
            None => snapshot.ready_versions(name),
        };
        Ok(model.metadata(versions))
    }

    fn model_config(
        &self,
        name: &str,
        version: Option<i64>,
    ) -> Result<Arc<ModelConfigDocument>, Status> {
        Ok(self.find(name, version)?.config.clone())
    }

    fn is_decoupled(&self, name: &str, version: Option<i64>) -> Result<bool, Status> {
        Ok(self.find(name, version)?.spec.decoupled)
    }

    fn scheduler_status(&self, name: &str, version: Option<i64>) -> Result<String, Status> {
        Ok(self.find(name, version)?.scheduler_status())
    }

    fn statistics(
        &self,
        name: Option<&str>,
        version: Option<i64>,
    ) -> Result<Vec<ModelStatistics>, Status> {
        let snapshot = self.registry.snapshot();
        let Some(name) = name else {
            return Ok(snapshot.ready().map(|model| model.statistics()).collect());
        };
        let versions = snapshot.ready_versions(name);
        if versions.is_empty() {
            return Err(Status::invalid_argument(format!(
                "requested model '{name}' is not available"
            )));
        }
        let models = snapshot.ready().filter(|model| {
            *model.name == *name && version.is_none_or(|wanted| wanted == model.version)
        });
        let statistics: Vec<ModelStatistics> = models.map(|model| model.statistics()).collect();
        if statistics.is_empty() {
            return Err(Status::invalid_argument(format!(
                "requested model version is not available for model '{name}'"
            )));
        }
        Ok(statistics)
    }

    fn repository_index(&self, only_ready: bool) -> Vec<RepositoryEntry> {
        self.registry.snapshot().index(only_ready)
    }

    fn load_model(&self, _name: &str) -> Result<(), Status> {
        Err(self.refuse_control())
    }

    fn unload_model(&self, _name: &str, _unload_dependents: bool) -> Result<(), Status> {
        Err(self.refuse_control())
    }
}
