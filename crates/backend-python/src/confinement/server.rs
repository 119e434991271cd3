//! The server's services for sandboxed models.

use std::sync::Arc;

use galatea_control::LoadParameters;
use galatea_infer::{InferenceRequest, LogLevel, ResponseSender, Status};

use crate::server::{CustomMetricFamily, CustomMetricKind, ServerAccess};

/// The server without model control. Loading a model could change the model itself, or load files
/// that the model has written into the server.
pub(crate) struct WithoutControl(pub(crate) Arc<dyn ServerAccess>);

fn refused(what: &str) -> Status {
    Status::unavailable(format!("a model in the sandbox can't {what} models"))
}

impl ServerAccess for WithoutControl {
    fn infer(&self, request: InferenceRequest, sender: ResponseSender) {
        self.0.infer(request, sender);
    }

    fn is_decoupled(&self, model: &str, version: Option<i64>) -> Result<bool, Status> {
        self.0.is_decoupled(model, version)
    }

    fn load_model(&self, _: &str, _: LoadParameters) -> Result<(), Status> {
        Err(refused("load"))
    }

    fn unload_model(&self, _: &str, _: bool) -> Result<(), Status> {
        Err(refused("unload"))
    }

    fn is_model_ready(&self, model: &str, version: Option<i64>) -> Result<bool, Status> {
        self.0.is_model_ready(model, version)
    }

    fn metric_family(
        &self,
        name: &str,
        description: &str,
        kind: CustomMetricKind,
    ) -> Result<Box<dyn CustomMetricFamily>, Status> {
        self.0.metric_family(name, description, kind)
    }

    fn log(&self, level: LogLevel, file: &str, line: u32, message: &str) {
        self.0.log(level, file, line, message);
    }
}
