//! Discovery of a server's models.

use std::future::Future;
use std::time::Duration;

use galatea_protocol::inference::{
    ModelConfigRequest, ModelConfigResponse, ModelMetadataRequest, ModelMetadataResponse,
    RepositoryIndexRequest, RepositoryIndexResponse,
};
use prost::Message;
use serde_json::Value;
use tokio::task::LocalSet;

use crate::closed_loop::{Protocol, Target};
use crate::connection::grpc::GrpcConnection;
use crate::connection::http::HttpConnection;
use crate::interface::ServedModelInterface;
use crate::sample::{encode_path_segment, frame_grpc_message};

/// The time limit for a response from the server.
const TIME_MAX: Duration = Duration::from_secs(10);

/// The names of the models that are ready.
///
/// # Errors
///
/// Returns an error if the server doesn't report them.
pub fn ready_models(target: &Target) -> Result<Vec<String>, String> {
    match target.protocol {
        Protocol::Http => wait(async {
            let path = "POST /v2/repository/index";
            let index = json(&target.address, path, "{\"ready\":true}").await?;
            let entries = index.as_array().map_or(&[][..], Vec::as_slice);
            let names = entries.iter().filter_map(|entry| entry["name"].as_str());
            Ok(names.map(String::from).collect())
        }),
        Protocol::Grpc => wait(async {
            let request = RepositoryIndexRequest { ready: true, ..Default::default() };
            let reply: RepositoryIndexResponse =
                call(&target.address, "RepositoryIndex", &request).await?;
            Ok(reply.models.into_iter().map(|entry| entry.name).collect())
        }),
    }
}

/// The interface of a model.
///
/// # Errors
///
/// Returns an error if the server doesn't report it.
pub fn fetch_model_interface(target: &Target, model: &str) -> Result<ServedModelInterface, String> {
    let address = &target.address;
    match target.protocol {
        Protocol::Http => wait(async {
            let path = format!("GET /v2/models/{}", encode_path_segment(model));
            let metadata = json(address, &path, "").await?;
            let config = json(address, &format!("{path}/config"), "").await?;
            ServedModelInterface::from_json(&metadata, &config)
        }),
        Protocol::Grpc => wait(async {
            let name = model.to_owned();
            let request = ModelMetadataRequest { name: name.clone(), ..Default::default() };
            let metadata: ModelMetadataResponse = call(address, "ModelMetadata", &request).await?;
            let request = ModelConfigRequest { name, ..Default::default() };
            let config: ModelConfigResponse = call(address, "ModelConfig", &request).await?;
            ServedModelInterface::from_grpc(metadata, &config.config.unwrap_or_default())
        }),
    }
}

fn wait<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let work = async { tokio::time::timeout(TIME_MAX, work).await };
    let outcome = LocalSet::new().block_on(&runtime, work);
    outcome.unwrap_or_else(|_| Err(String::from("it does not answer")))
}

async fn json(address: &str, line: &str, body: &str) -> Result<Value, String> {
    let mut connection = HttpConnection::connect(address).await?;
    let request = format!(
        "{line} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let reply = connection.exchange(request.as_bytes()).await?;
    let document: Result<Value, _> = serde_json::from_slice(&reply.body);
    match (reply.status, document) {
        (200, Ok(document)) => Ok(document),
        (200, Err(error)) => Err(format!("its response is no JSON: {error}")),
        (_, Ok(document)) if document["error"].is_string() => {
            Err(document["error"].as_str().unwrap_or_default().to_owned())
        }
        (status, _) => Err(format!("{line} gets {status}")),
    }
}

async fn call<R: Message + Default>(
    address: &str,
    method: &str,
    request: &impl Message,
) -> Result<R, String> {
    let mut connection = GrpcConnection::connect(address).await?;
    let reply = connection.call(method, frame_grpc_message(&request.encode_to_vec())).await?;
    if reply.code != "0" {
        return Err(format!("code {} {}", reply.code, reply.text));
    }
    R::decode(reply.message).map_err(|error| error.to_string())
}
