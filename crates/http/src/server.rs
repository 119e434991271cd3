//! The doors of this crate: for inference, for metrics and for the clouds.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use galatea_control::ServerControl;
use galatea_door::{
    CompletionQueues, Connection, ConnectionHandler, DoorBuilder, DoorOptions, RunningDoor,
};
use galatea_infer::InferenceService;
use hyper::server::conn::http1;
use tokio::runtime::Handle;

use crate::api::Api;
use crate::clouds::{SageMaker, VertexAi};
use crate::connection;
use crate::dialect::Dialect;
use crate::endpoint::Endpoint;
use crate::metrics::Metrics;
use crate::openai::{CombinedEndpoint, OpenAi};
use crate::{HttpOptions, OpenAiOptions, SageMakerOptions, VertexAiOptions};

/// Opens the inference door on `listener`. Connections are handed to the `workers` in rotation.
/// Each worker is the handle of a runtime with I/O and time enabled that a thread drives.
///
/// # Errors
///
/// Returns an error if there are no workers, or the listener can't be used.
pub fn start_inference_endpoint(
    workers: &[Handle],
    listener: TcpListener,
    service: Arc<dyn InferenceService>,
    control: Arc<dyn ServerControl>,
    options: HttpOptions,
) -> io::Result<RunningDoor> {
    let door = DoorBuilder::with_options(options.door.clone()).with_tls(options.tls.clone());
    let completions = CompletionQueues::start(workers);
    let api = Api::new(service, control, completions, &options, Dialect::KServe);
    door.listen(workers, listener, Http1::new(api))
}

/// Opens the inference door with OpenAI's paths under `/v1`.
///
/// # Errors
///
/// Returns the same errors as [`start_inference_endpoint`].
pub fn start_inference_endpoint_with_openai(
    workers: &[Handle],
    listener: TcpListener,
    service: Arc<dyn InferenceService>,
    control: Arc<dyn ServerControl>,
    options: HttpOptions,
    openai: OpenAiOptions,
) -> io::Result<RunningDoor> {
    let door = DoorBuilder::with_options(options.door.clone()).with_tls(options.tls.clone());
    let queues = || CompletionQueues::start(workers);
    let (shared, controlled) = (service.clone(), control.clone());
    let texts = Api::new(shared, controlled, queues(), &openai.http, Dialect::OpenAi);
    let openai = OpenAi::new(texts, openai);
    let api = Api::new(service, control, queues(), &options, Dialect::KServe);
    door.listen(workers, listener, Http1::new(CombinedEndpoint { api, openai }))
}

/// Opens the metrics door: `GET /metrics` responds with the text that `render` returns.
///
/// # Errors
///
/// Returns the same errors as [`start_inference_endpoint`].
pub fn start_metrics(
    workers: &[Handle],
    listener: TcpListener,
    render: Arc<dyn Fn() -> String + Send + Sync>,
    options: DoorOptions,
) -> io::Result<RunningDoor> {
    DoorBuilder::with_options(options).listen(workers, listener, Http1::new(Metrics::new(render)))
}

/// Opens the SageMaker door.
///
/// # Errors
///
/// Returns the same errors as [`start_inference_endpoint`].
pub fn start_sagemaker(
    workers: &[Handle],
    listener: TcpListener,
    service: Arc<dyn InferenceService>,
    control: Arc<dyn ServerControl>,
    options: SageMakerOptions,
) -> io::Result<RunningDoor> {
    let door = DoorBuilder::with_options(options.http.door.clone());
    let completions = CompletionQueues::start(workers);
    let api = Api::new(service, control, completions, &options.http, Dialect::SageMaker);
    door.listen(workers, listener, Http1::new(SageMaker::new(api, options)))
}

/// Opens the Vertex AI door.
///
/// # Errors
///
/// Returns the same errors as [`start_inference_endpoint`].
pub fn start_vertex_ai(
    workers: &[Handle],
    listener: TcpListener,
    service: Arc<dyn InferenceService>,
    control: Arc<dyn ServerControl>,
    options: VertexAiOptions,
) -> io::Result<RunningDoor> {
    let door = DoorBuilder::with_options(options.http.door.clone());
    let completions = CompletionQueues::start(workers);
    let api = Api::new(service, control, completions, &options.http, Dialect::VertexAi);
    door.listen(workers, listener, Http1::new(VertexAi::new(api, options)))
}

/// Opens the door for OpenAI clients.
///
/// # Errors
///
/// Returns the same errors as [`start_inference_endpoint`].
pub fn start_openai(
    workers: &[Handle],
    listener: TcpListener,
    service: Arc<dyn InferenceService>,
    control: Arc<dyn ServerControl>,
    options: OpenAiOptions,
) -> io::Result<RunningDoor> {
    let http = &options.http;
    let door = DoorBuilder::with_options(http.door.clone()).with_tls(http.tls.clone());
    let completions = CompletionQueues::start(workers);
    let api = Api::new(service, control, completions, http, Dialect::OpenAi);
    door.listen(workers, listener, Http1::new(OpenAi::new(api, options)))
}

/// The response to a client that speaks HTTP to a door with TLS.
const HTTP_TO_HTTPS: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    Content-Type: application/json\r\nConnection: close\r\nContent-Length: 48\r\n\r\n\
    {\"error\":\"this port speaks HTTPS, and not HTTP\"}";

/// The HTTP/1.1 protocol in front of an endpoint.
struct Http1<E> {
    endpoint: Arc<E>,
    hyper: http1::Builder,
}

impl<E: Endpoint> Http1<E> {
    fn new(endpoint: E) -> Arc<Self> {
        let mut hyper = http1::Builder::new();
        // Each response is flushed separately: gathering pipelined responses into one write would
        // hold one response back until later requests have theirs.
        hyper.pipeline_flush(false).title_case_headers(true);
        Arc::new(Self { endpoint: Arc::new(endpoint), hyper })
    }
}

impl<E: Endpoint> ConnectionHandler for Http1<E> {
    async fn serve(self: Arc<Self>, connection: Connection) {
        connection::serve(connection, &self.endpoint, &self.hyper).await;
    }

    fn reply_to_plain_text(&self) -> &[u8] {
        HTTP_TO_HTTPS
    }

    fn refusal(&self) -> &'static [u8] {
        TOO_MANY_CONNECTIONS
    }
}

/// The response to a client whose connection exceeds the connection limit.
const TOO_MANY_CONNECTIONS: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    Content-Type: application/json\r\n\
    Retry-After: 1\r\n\
    Connection: close\r\n\
    Content-Length: 47\r\n\r\n\
    {\"error\":\"The server has too many connections\"}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_have_the_length_that_they_say() {
        for reply in [HTTP_TO_HTTPS, TOO_MANY_CONNECTIONS] {
            let reply = std::str::from_utf8(reply).unwrap();
            let (head, body) = reply.split_once("\r\n\r\n").unwrap();
            assert!(head.ends_with(&format!("Content-Length: {}", body.len())));
        }
    }
}
