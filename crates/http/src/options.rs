//! What can be set.

use std::fmt::{self, Display};
use std::sync::Arc;
use std::time::Duration;

use galatea_codec::forward::HeaderForward;
use galatea_codec::limits::Limits;

use crate::head::Head;
use crate::respond::Reply;

/// The door's settings.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// The longest body, and the longest tensor made of one, in bytes.
    pub max_input_size: u64,
    /// How many pieces a chunked body may come in.
    pub max_chunks: u32,
    /// How long a client may take for the head of a request, the wait on an
    /// idle connection included. `None`, as in the original, waits for ever:
    /// clients keep pools of idle connections.
    pub header_read_timeout: Option<Duration>,
    /// Which headers of inference requests become their parameters.
    pub header_forward: Option<HeaderForward>,
    /// How long a client is waited for that stops sending a body which nobody wants,
    /// before it is answered.
    pub discard_silence_max: Duration,
    /// Who hears of each request.
    pub request_log: Option<RequestLog>,
}

/// Hears of requests and their answers, while it wants to.
#[derive(Clone)]
pub struct RequestLog {
    is_on: Arc<dyn Fn() -> bool + Send + Sync>,
    write: Arc<Write>,
}

type Write = dyn Fn(&dyn Display) + Send + Sync;

impl RequestLog {
    /// Calls `write` with a line about each request as long as `is_on` says so.
    pub fn new(
        is_on: impl Fn() -> bool + Send + Sync + 'static,
        write: impl Fn(&dyn Display) + Send + Sync + 'static,
    ) -> Self {
        Self { is_on: Arc::new(is_on), write: Arc::new(write) }
    }

    /// Tells of an answered request. What is answered with an error says which.
    pub(crate) fn tell(&self, head: &Head<'_>, reply: &Reply) {
        if !(self.is_on)() {
            return;
        }
        let (method, path, code) = (&head.method, head.path.escape_debug(), reply.code);
        if code.is_success() {
            return (self.write)(&format_args!("HTTP {method} {path}: {code}"));
        }
        let mut text = reply.chunks.concat();
        text.truncate(ERROR_BYTES_MAX);
        let text = String::from_utf8_lossy(&text);
        (self.write)(&format_args!("HTTP {method} {path}: {code} {text}"));
    }
}

impl fmt::Debug for RequestLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestLog")
    }
}

/// How much of an error's text is told: it may have a part that a client wrote.
const ERROR_BYTES_MAX: usize = 1 << 10;

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            max_input_size: Limits::DEFAULT_INPUT_BYTES_MAX,
            max_chunks: Limits::CHUNKS_MAX,
            header_read_timeout: None,
            header_forward: None,
            discard_silence_max: Duration::from_secs(1),
            request_log: None,
        }
    }
}

impl HttpOptions {
    pub(crate) fn limits(&self) -> Limits {
        Limits { input_bytes_max: self.max_input_size }
    }
}
