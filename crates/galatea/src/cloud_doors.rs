//! The endpoints for SageMaker and Vertex AI.

use std::net::TcpListener;
use std::sync::Arc;

use galatea_control::ServerControl;
use galatea_door::{DoorOptions, RunningDoor};
use galatea_http::{InferenceType, PathPattern, PingCheck, SageMakerOptions, VertexAiOptions};
use galatea_infer::{AccessPass, Status};
use tokio::runtime::Handle;

use crate::archives::DiskArchives;
use crate::doors::{DoorSetup, failed};
use crate::environment::VertexAiVariables;
use crate::error_paths::DoorServices;

/// The model for requests that don't specify one, if the environment doesn't either. It is the same
/// as in Triton.
const UNSPECIFIED_MODEL: &str = "unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME";

impl DoorSetup<'_> {
    /// Opens the enabled cloud endpoints. Their connections count as HTTP connections.
    pub(crate) fn clouds(&self, connections: &DoorOptions) -> Result<Vec<RunningDoor>, Status> {
        let sagemaker = self.sagemaker(connections.clone())?;
        let vertex_ai = self.vertex_ai(connections.clone())?;
        Ok(sagemaker.into_iter().chain(vertex_ai).collect())
    }

    fn sagemaker(&self, connections: DoorOptions) -> Result<Option<RunningDoor>, Status> {
        let settings = &self.settings.clouds;
        let variables = &self.clouds.sagemaker;
        let is_live = variables.ping_mode.as_deref() == Some("live");
        let default_model = variables.default_model.as_deref().unwrap_or(UNSPECIFIED_MODEL);
        let inference = variables.inference_type.as_deref().unwrap_or("infer");
        let logger = self.logger.clone();
        let start = |socket: TcpListener| {
            let DoorServices { service, control } = self.served.clone();
            let options = SageMakerOptions {
                http: self.http_options(connections),
                ping: if is_live { PingCheck::Live } else { PingCheck::Ready },
                default_model: default_model.to_owned(),
                inference: InferenceType::named(inference),
                archives: Arc::new(DiskArchives),
                notices: Arc::new(move |line| logger.info(line)),
            };
            let workers = self.some_workers(settings.sagemaker_threads);
            galatea_http::start_sagemaker(workers, socket, service, control, options)
        };
        let (door, name) = (&settings.sagemaker, "Sagemaker service");
        self.start(name, "Sagemaker HTTPService", &door.address, door, start)
    }

    fn vertex_ai(&self, connections: DoorOptions) -> Result<Option<RunningDoor>, Status> {
        let settings = &self.settings.clouds;
        let (door, name) = (&settings.vertex_ai, "Vertex AI service");
        if !door.allow {
            return Ok(None);
        }
        let refused = |why: String| failed(name, &Status::invalid_argument(why));
        let routes = routes(&self.clouds.vertex_ai).map_err(refused)?;
        let default_model = self.vertex_ai_model().map_err(refused)?;
        let metrics = self.settings.metrics.allow.then(|| self.metrics_renderer());
        let [predict, health] = routes;
        let start = |socket: TcpListener| {
            let DoorServices { service, control } = self.served.clone();
            let http = self.http_options(connections);
            let options = VertexAiOptions { http, health, predict, default_model, metrics };
            let workers = self.some_workers(settings.vertex_ai_threads);
            galatea_http::start_vertex_ai(workers, socket, service, control, options)
        };
        self.start(name, "Vertex AI HTTPService", &door.address, door, start)
    }

    /// The model for requests that don't specify one: the flag's value, or else the only model.
    fn vertex_ai_model(&self) -> Result<String, String> {
        let index = self.server.repository_index(AccessPass::in_process(), true);
        let ready = index.map_err(|status| status.to_string())?;
        let wanted = &self.settings.clouds.vertex_ai_default_model;
        match ready.as_slice() {
            _ if !wanted.is_empty() => {
                if ready.iter().any(|entry| entry.name == *wanted) {
                    return Ok(wanted.clone());
                }
                Err(format!("Expect the default model '{wanted}' is loaded"))
            }
            [only] => Ok(only.name.clone()),
            _ => Err(String::from(
                "Expect the model repository contains only a single model if default model is not \
                 specified",
            )),
        }
    }

    fn some_workers(&self, count_max: usize) -> &[Handle] {
        let workers = self.workers.handles();
        workers.get(..count_max).unwrap_or(workers)
    }
}

/// The paths for inference requests and health checks. The messages are Triton's, including a typo.
fn routes(variables: &VertexAiVariables) -> Result<[PathPattern; 2], String> {
    if variables.predict_route.is_empty() {
        return Err(String::from("API_PREDICT_ROUTE is not defined for Vertex AI endpoint"));
    }
    if variables.health_route.is_empty() {
        return Err(String::from("AIP_HEALTH_ROUTE is not defined for Vertex AI endpoint"));
    }
    let pattern = |name: &str, route: &str| {
        let pattern = PathPattern::new(route);
        pattern.map_err(|error| format!("{name} '{route}' is no regular expression: {error}"))
    };
    Ok([
        pattern("AIP_PREDICT_ROUTE", &variables.predict_route)?,
        pattern("AIP_HEALTH_ROUTE", &variables.health_route)?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(predict: &str, health: &str, expected: Result<(), &str>) {
        let variables = VertexAiVariables {
            predict_route: predict.to_owned(),
            health_route: health.to_owned(),
            ..VertexAiVariables::default()
        };
        let found = routes(&variables).map(drop);
        assert_eq!(found.as_ref().map_err(String::as_str), expected.as_ref().map_err(|text| *text));
    }

    #[test]
    fn both_routes_are_needed() {
        check("/p", "/h", Ok(()));
        check("", "", Err("API_PREDICT_ROUTE is not defined for Vertex AI endpoint"));
        check("/p", "", Err("AIP_HEALTH_ROUTE is not defined for Vertex AI endpoint"));
        let variables = VertexAiVariables { predict_route: "/p[".into(), ..Default::default() };
        let variables = VertexAiVariables { health_route: "/h".into(), ..variables };
        let error = routes(&variables).unwrap_err();
        assert!(error.starts_with("AIP_PREDICT_ROUTE '/p[' is no regular expression: "), "{error}");
    }
}
