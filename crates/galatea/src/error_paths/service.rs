//! The server as network doors see it, with errors that are safe to show to clients.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use galatea_control::{
    LoadParameters, ModelConfigDocument, ModelMetadata, ModelNameMapping, ModelStatistics,
    ModelWait, RepositoryEntry, ServedModel, ServerControl, ServerMetadata,
};
use galatea_engine::Server;
use galatea_infer::{
    AccessPass, InferenceRequest, InferenceService, Reply, ResponseSender, ResponseSink, Status,
    api,
};

use super::{ErrorPaths, HiddenRoots};
use crate::flags::Settings;

/// The server that network doors use.
#[derive(Clone)]
pub(crate) struct DoorServices {
    pub(crate) service: Arc<dyn InferenceService>,
    pub(crate) control: Arc<dyn ServerControl>,
}

/// The server behind the network doors, according to the settings. Doors use the server directly if
/// errors may contain absolute paths.
pub(crate) fn door_services(
    server: &Arc<Server>,
    settings: &Settings,
    temporary: &Path,
) -> DoorServices {
    match settings.error_paths {
        ErrorPaths::Absolute => DoorServices { service: server.clone(), control: server.clone() },
        ErrorPaths::Relative => {
            let roots = Arc::new(HiddenRoots::new(&settings.model_repositories, temporary));
            let relative = Arc::new(RelativePathServer { server: server.clone(), roots });
            DoorServices { service: relative.clone(), control: relative }
        }
    }
}

/// A server whose errors show paths relative to the repository.
struct RelativePathServer<S> {
    server: Arc<S>,
    roots: Arc<HiddenRoots>,
}

impl HiddenRoots {
    fn status(&self, status: Status) -> Status {
        match self.relative(status.message()) {
            Some(text) => status.with_message(text),
            None => status,
        }
    }
}

impl<S> RelativePathServer<S> {
    fn result<T>(&self, result: Result<T, Status>) -> Result<T, Status> {
        result.map_err(|status| self.roots.status(status))
    }
}

impl<S: InferenceService> InferenceService for RelativePathServer<S> {
    fn infer(
        &self,
        pass: AccessPass<api::Inference>,
        request: Box<InferenceRequest>,
        sender: ResponseSender,
    ) {
        let roots = self.roots.clone();
        let sender = sender.wrap(|sink| Box::new(RelativePathSink { sink, roots }));
        self.server.infer(pass, request, sender);
    }
}

/// A reply sink whose errors show paths relative to the repository.
struct RelativePathSink {
    sink: Box<dyn ResponseSink>,
    roots: Arc<HiddenRoots>,
}

impl ResponseSink for RelativePathSink {
    fn deliver(&mut self, reply: Reply) {
        self.sink.deliver(match reply {
            Reply::Response { result: Err(status), finality } => {
                Reply::Response { result: Err(self.roots.status(status)), finality }
            }
            other => other,
        });
    }

    fn refuse(&mut self, status: Status) {
        self.sink.refuse(self.roots.status(status));
    }

    fn underlying(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.sink.underlying()
    }
}

impl<S: ServerControl> ServerControl for RelativePathServer<S> {
    fn live(&self, pass: AccessPass<api::Health>) -> bool {
        self.server.live(pass)
    }

    fn ready(&self, pass: AccessPass<api::Health>) -> Result<bool, Status> {
        self.result(self.server.ready(pass))
    }

    fn model_ready(
        &self,
        pass: AccessPass<api::Health>,
        name: &str,
        version: Option<i64>,
    ) -> Result<bool, Status> {
        self.result(self.server.model_ready(pass, name, version))
    }

    fn readiness_may_block(
        &self,
        pass: AccessPass<api::Health>,
        model: Option<(&str, Option<i64>)>,
    ) -> bool {
        self.server.readiness_may_block(pass, model)
    }

    fn server_metadata(&self, pass: AccessPass<api::Metadata>) -> ServerMetadata {
        self.server.server_metadata(pass)
    }

    fn model_metadata(
        &self,
        pass: AccessPass<api::Metadata>,
        name: &str,
        version: Option<i64>,
    ) -> Result<ModelMetadata, Status> {
        self.result(self.server.model_metadata(pass, name, version))
    }

    fn model_config(
        &self,
        pass: AccessPass<api::ModelConfig>,
        name: &str,
        version: Option<i64>,
    ) -> Result<Arc<ModelConfigDocument>, Status> {
        self.result(self.server.model_config(pass, name, version))
    }

    fn model_for_inference(
        &self,
        pass: AccessPass<api::Inference>,
        name: &str,
        version: Option<i64>,
    ) -> Result<Arc<dyn ServedModel>, Status> {
        self.result(self.server.model_for_inference(pass, name, version))
    }

    fn wait_for_model(
        &self,
        pass: AccessPass<api::Inference>,
        mut wait: ModelWait,
    ) -> Result<(), ModelWait> {
        let (found, roots) = (wait.found, self.roots.clone());
        wait.found = Box::new(move |result| found(result.map_err(|status| roots.status(status))));
        self.server.wait_for_model(pass, wait)
    }

    fn has_report(&self, report: &str) -> bool {
        self.server.has_report(report)
    }

    fn model_report(
        &self,
        pass: AccessPass<api::Statistics>,
        name: &str,
        version: Option<i64>,
        report: &str,
    ) -> Result<String, Status> {
        self.result(self.server.model_report(pass, name, version, report))
    }

    fn statistics(
        &self,
        pass: AccessPass<api::Statistics>,
        name: Option<&str>,
        version: Option<i64>,
    ) -> Result<Vec<ModelStatistics>, Status> {
        self.result(self.server.statistics(pass, name, version))
    }

    fn repository_index(
        &self,
        pass: AccessPass<api::ModelRepository>,
        only_ready: bool,
    ) -> Result<Vec<RepositoryEntry>, Status> {
        let mut entries = self.result(self.server.repository_index(pass, only_ready))?;
        for entry in &mut entries {
            if let Some(text) = self.roots.relative(&entry.reason) {
                entry.reason = text;
            }
        }
        Ok(entries)
    }

    fn load_model(
        &self,
        pass: AccessPass<api::ModelRepository>,
        name: &str,
        parameters: LoadParameters,
    ) -> Result<(), Status> {
        self.result(self.server.load_model(pass, name, parameters))
    }

    fn unload_model(
        &self,
        pass: AccessPass<api::ModelRepository>,
        name: &str,
        unload_dependents: bool,
    ) -> Result<(), Status> {
        self.result(self.server.unload_model(pass, name, unload_dependents))
    }

    fn register_repository(
        &self,
        pass: AccessPass<api::ModelRepository>,
        path: &str,
        names: &[ModelNameMapping],
    ) -> Result<(), Status> {
        self.result(self.server.register_repository(pass, path, names))
    }

    fn unregister_repository(
        &self,
        pass: AccessPass<api::ModelRepository>,
        path: &str,
    ) -> Result<(), Status> {
        self.result(self.server.unregister_repository(pass, path))
    }
}
