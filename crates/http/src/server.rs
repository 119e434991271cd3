//! The doors of this crate: the inference door and the metrics door.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use galatea_door::{CompletionQueues, Connection, Door, Protocol, RunningDoor};
use galatea_infer::{InferenceService, ServerControl};
use hyper::server::conn::http1;
use hyper_util::rt::TokioTimer;
use tokio::runtime::Handle;

use crate::HttpOptions;
use crate::api::Api;
use crate::connection;
use crate::endpoint::Endpoint;
use crate::metrics::Metrics;

/// Opens the inference door on `listener`. Connections are handed to the `workers` in
/// rotation; each is the handle of a runtime with I/O and time that a thread drives.
///
/// # Errors
///
/// If there is no worker, or the listener can't be used.
pub fn start(
    workers: &[Handle],
    listener: TcpListener,
    service: Arc<dyn InferenceService>,
    control: Arc<dyn ServerControl>,
    options: HttpOptions,
) -> io::Result<RunningDoor> {
    let door = Door::with_tls(options.tls.clone());
    let completions = CompletionQueues::start(workers);
    let api = Api::new(service, control, completions, door.phase(), &options);
    door.listen(workers, listener, Http1::new(api, options.header_read_timeout))
}

/// Opens the metrics door: `GET /metrics` responds with what `render` returns.
///
/// # Errors
///
/// As [`start`].
pub fn start_metrics(
    workers: &[Handle],
    listener: TcpListener,
    render: Arc<dyn Fn() -> String + Send + Sync>,
) -> io::Result<RunningDoor> {
    let door = Door::new();
    let metrics = Metrics::new(render, door.phase());
    door.listen(workers, listener, Http1::new(metrics, None))
}

/// What a client gets that speaks HTTP to a door with TLS.
const HTTP_TO_HTTPS: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    Content-Type: application/json\r\nConnection: close\r\nContent-Length: 48\r\n\r\n\
    {\"error\":\"this port speaks HTTPS, and not HTTP\"}";

/// HTTP/1.1 in front of an endpoint.
struct Http1<E> {
    endpoint: Arc<E>,
    hyper: http1::Builder,
    /// Only hyper measures how long a head takes.
    has_head_timeout: bool,
}

impl<E: Endpoint> Http1<E> {
    fn new(endpoint: E, header_read_timeout: Option<Duration>) -> Arc<Self> {
        let mut hyper = http1::Builder::new();
        // Each response is flushed by itself: gathering pipelined responses into one write
        // would hold a response back until later requests have theirs.
        hyper
            .timer(TokioTimer::new())
            .header_read_timeout(header_read_timeout)
            .pipeline_flush(false)
            .title_case_headers(true);
        let has_head_timeout = header_read_timeout.is_some();
        Arc::new(Self { endpoint: Arc::new(endpoint), hyper, has_head_timeout })
    }
}

impl<E: Endpoint> Protocol for Http1<E> {
    async fn serve(self: Arc<Self>, connection: Connection) {
        let Self { endpoint, hyper, has_head_timeout } = &*self;
        connection::serve(connection, endpoint, hyper, *has_head_timeout).await;
    }

    fn reply_to_plain_text(&self) -> &[u8] {
        HTTP_TO_HTTPS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reply_to_plain_text_has_the_length_that_it_says() {
        let reply = std::str::from_utf8(HTTP_TO_HTTPS).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("Content-Length: {}", body.len())));
    }
}
