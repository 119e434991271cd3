//! The interface that gives doors access to everything in the server except inference.

use std::sync::Arc;

use galatea_backend::LogLevel;
use galatea_control::{
    LoadParameters, ModelConfigDocument, ModelMetadata, ModelNameMapping, ModelStatistics,
    ModelWait, RepositoryEntry, ServedModel, ServerControl, ServerMetadata,
};
use galatea_dispatch::{LoadedModel, is_model_report};
use galatea_infer::{AccessPass, Code, Status, api};

use galatea_policy::RequestOrigin;

use super::Server;
use crate::demand::Waiter;
use crate::handle::ModelHandle;

/// The report on the memory of a model that is loaded on demand.
const MEMORY_REPORT: &str = "memory";

/// The protocol extensions that the server supports, in Triton's order.
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
    pub(super) fn find(
        &self,
        name: &str,
        version: Option<i64>,
    ) -> Result<Arc<ModelHandle>, Status> {
        let found = self.registry.snapshot().find(name, version).cloned();
        found.map_err(|status| self.check_initialized().err().unwrap_or(status))
    }

    /// Returns an error if the server could not be initialized. As in Triton, such a server reports
    /// nothing else.
    pub(super) fn check_initialized(&self) -> Result<(), Status> {
        if self.is_failed() { Err(Status::unavailable("Server not ready")) } else { Ok(()) }
    }

    /// Returns true if the model itself reports readiness.
    fn can_serve(&self, model: &LoadedModel) -> bool {
        let Err(status) = model.check_ready() else { return true };
        self.options.log.write(
            LogLevel::Verbose(1),
            format_args!(
                "'{}' version {} is loaded and says that it isn't ready: {status}",
                model.id(),
                model.version()
            ),
        );
        false
    }
}

impl ServerControl for Server {
    fn live(&self, _: AccessPass<api::Health>) -> bool {
        !self.is_failed()
    }

    fn ready(&self, _: AccessPass<api::Health>) -> Result<bool, Status> {
        if self.is_exiting() {
            return Err(Status::unavailable("Server exiting"));
        }
        if self.is_failed() || !self.options.strict_readiness {
            return Ok(!self.is_failed());
        }
        let snapshot = self.registry.snapshot();
        Ok(snapshot.all_ready() && snapshot.ready().all(|model| self.can_serve(model)))
    }

    fn model_ready(
        &self,
        _: AccessPass<api::Health>,
        name: &str,
        version: Option<i64>,
    ) -> Result<bool, Status> {
        if self.is_exiting() {
            return Err(Status::unavailable("Server not ready"));
        }
        self.check_initialized()?;
        match self.find(name, version) {
            Ok(model) => Ok(self.can_serve(&model)),
            Err(status) if matches!(status.code(), Code::NotFound | Code::Unavailable) => Ok(false),
            Err(status) => Err(status),
        }
    }

    fn readiness_may_block(
        &self,
        _: AccessPass<api::Health>,
        model: Option<(&str, Option<i64>)>,
    ) -> bool {
        let Some((name, version)) = model else {
            return self.options.strict_readiness
                && self.registry.snapshot().ready().any(|model| model.readiness_may_block());
        };
        self.find(name, version).is_ok_and(|model| model.readiness_may_block())
    }

    fn server_metadata(&self, _: AccessPass<api::Metadata>) -> ServerMetadata {
        ServerMetadata {
            name: self.options.name.clone(),
            version: self.options.version.clone(),
            extensions: EXTENSIONS.to_vec(),
        }
    }

    fn model_metadata(
        &self,
        _: AccessPass<api::Metadata>,
        name: &str,
        version: Option<i64>,
    ) -> Result<ModelMetadata, Status> {
        self.check_initialized()?;
        let snapshot = self.registry.snapshot();
        let model = snapshot.find(name, version)?;
        let versions = match version {
            Some(version) => vec![version],
            None => snapshot.ready_of_named(name).map(|model| model.version()).collect(),
        };
        Ok(model.metadata(versions))
    }

    fn model_config(
        &self,
        _: AccessPass<api::ModelConfig>,
        name: &str,
        version: Option<i64>,
    ) -> Result<Arc<ModelConfigDocument>, Status> {
        Ok(self.find(name, version)?.config())
    }

    fn model_for_inference(
        &self,
        _: AccessPass<api::Inference>,
        name: &str,
        version: Option<i64>,
    ) -> Result<Arc<dyn ServedModel>, Status> {
        Ok(self.find(name, version)?)
    }

    fn wait_for_model(
        &self,
        _: AccessPass<api::Inference>,
        wait: ModelWait,
    ) -> Result<(), ModelWait> {
        let Some(demand) = &self.demand else { return Err(wait) };
        let ModelWait { name, version, deadline, cancel, found } = wait;
        let found = Box::new(move |result: Result<Arc<ModelHandle>, Status>| {
            found(result.map(|model| model as Arc<dyn ServedModel>));
        });
        let waiter = Waiter::request(&name, version, RequestOrigin::Client, found);
        demand.wait(waiter.until(deadline, cancel));
        Ok(())
    }

    fn has_report(&self, report: &str) -> bool {
        is_model_report(report) || (report == MEMORY_REPORT && self.demand.is_some())
    }

    fn model_report(
        &self,
        _: AccessPass<api::Statistics>,
        name: &str,
        version: Option<i64>,
        report: &str,
    ) -> Result<String, Status> {
        if let (MEMORY_REPORT, Some(demand)) = (report, &self.demand) {
            let unknown = || format!("Request for unknown model: '{name}' is not found");
            return demand.report_json(name).ok_or_else(|| Status::not_found(unknown()));
        }
        let text = self.find(name, version)?.report_json(report, self.options.main_cause_text);
        text.ok_or_else(|| Status::not_found(format!("there is no report '{report}' on models")))
    }

    fn statistics(
        &self,
        _: AccessPass<api::Statistics>,
        name: Option<&str>,
        version: Option<i64>,
    ) -> Result<Vec<ModelStatistics>, Status> {
        self.check_initialized()?;
        let snapshot = self.registry.snapshot();
        let Some(name) = name else {
            let mut all: Vec<ModelStatistics> =
                snapshot.ready().map(|model| model.statistics()).collect();
            // Requests drained at exit are measured too.
            if self.is_exiting() {
                all.extend(snapshot.draining().map(|model| model.statistics()));
            }
            return Ok(all);
        };
        let ready: Vec<_> = snapshot.ready_of_named(name).collect();
        if ready.is_empty() {
            return Err(Status::invalid_argument(format!(
                "requested model '{name}' is not available"
            )));
        }
        let models =
            ready.iter().filter(|model| version.is_none_or(|number| number == model.version()));
        let statistics: Vec<ModelStatistics> = models.map(|model| model.statistics()).collect();
        if statistics.is_empty() {
            return Err(Status::invalid_argument(format!(
                "requested model version is not available for model '{name}'"
            )));
        }
        Ok(statistics)
    }

    fn repository_index(
        &self,
        _: AccessPass<api::ModelRepository>,
        only_ready: bool,
    ) -> Result<Vec<RepositoryEntry>, Status> {
        self.check_initialized()?;
        let listed = self.manager.names();
        let mut entries = self.registry.snapshot().index(&listed, only_ready);
        self.demand.iter().for_each(|demand| demand.describe_index(&mut entries));
        Ok(entries)
    }

    fn load_model(
        &self,
        _: AccessPass<api::ModelRepository>,
        name: &str,
        parameters: LoadParameters,
    ) -> Result<(), Status> {
        self.check_initialized()?;
        match &self.demand {
            Some(demand) => demand.load_model(RequestOrigin::Client, name, parameters),
            None => self.manager.load(name, parameters),
        }
    }

    fn unload_model(
        &self,
        _: AccessPass<api::ModelRepository>,
        name: &str,
        unload_dependents: bool,
    ) -> Result<(), Status> {
        self.check_initialized()?;
        match &self.demand {
            Some(demand) => demand.unload_model(name, unload_dependents),
            None => self.manager.unload(name, unload_dependents),
        }
    }

    fn register_repository(
        &self,
        _: AccessPass<api::ModelRepository>,
        path: &str,
        names: &[ModelNameMapping],
    ) -> Result<(), Status> {
        self.manager.register(path, names)
    }

    fn unregister_repository(
        &self,
        _: AccessPass<api::ModelRepository>,
        path: &str,
    ) -> Result<(), Status> {
        self.manager.unregister(path)
    }
}
