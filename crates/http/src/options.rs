//! What can be set.

use std::time::Duration;

use galatea_codec::forward::HeaderForward;
use galatea_codec::limits::Limits;

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
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            max_input_size: Limits::DEFAULT_INPUT_BYTES_MAX,
            max_chunks: Limits::CHUNKS_MAX,
            header_read_timeout: None,
            header_forward: None,
            discard_silence_max: Duration::from_secs(1),
        }
    }
}

impl HttpOptions {
    pub(crate) fn limits(&self) -> Limits {
        Limits { input_bytes_max: self.max_input_size }
    }
}
