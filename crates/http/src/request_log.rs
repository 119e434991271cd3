//! A log of requests and their responses.
//!
//! The switch is checked first, so no text is created while the log is off.

use std::fmt::{self, Display};
use std::sync::Arc;

use crate::http_response::HttpResponse;
use crate::request_head::RequestHead;

/// The maximum number of bytes logged of an error message, parts of which may come from a client.
const ERROR_BYTES_MAX: usize = 1 << 10;

/// Logs requests and their responses while the log is on.
#[derive(Clone)]
pub struct RequestLog {
    is_on: Arc<dyn Fn() -> bool + Send + Sync>,
    write: Arc<Write>,
}

type Write = dyn Fn(&dyn Display) + Send + Sync;

impl RequestLog {
    /// Creates a log that calls `write` with one line per request while `is_on` returns true.
    pub fn new(
        is_on: impl Fn() -> bool + Send + Sync + 'static,
        write: impl Fn(&dyn Display) + Send + Sync + 'static,
    ) -> Self {
        Self { is_on: Arc::new(is_on), write: Arc::new(write) }
    }

    /// Logs a request with its response. For an error response, the error message is included.
    pub(crate) fn record(&self, head: &RequestHead<'_>, response: &HttpResponse) {
        if !(self.is_on)() {
            return;
        }
        let (method, path, code) = (&head.method, head.path, response.code);
        if code.is_success() {
            return (self.write)(&format_args!("HTTP {method} {path}: {code}"));
        }
        let mut text = response.chunks.concat();
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
