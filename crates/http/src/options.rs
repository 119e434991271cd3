//! The settings of the inference door.

use std::sync::Arc;
use std::time::Duration;

use galatea_codec::forward::HeaderForward;
use galatea_door::DoorOptions;
use galatea_door::tls::Tls;
use galatea_gate::access::Gate;
use galatea_gate::ledger::Ledger;
use galatea_gate::limits::Limits;
use galatea_infer::{LogControl, NoRegions, RegionControl, TraceControl};

use crate::request_log::RequestLog;

/// The settings of the inference door.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// The longest body, and the longest tensor made of one, in bytes.
    pub input_bytes_max: u64,
    /// How many chunks a chunked body may have.
    pub chunks_max: u32,
    /// How connections are limited.
    pub door: DoorOptions,
    /// The headers of inference requests that become request parameters.
    pub header_forward: Option<HeaderForward>,
    /// How long a client may stop sending the body of a refused request before the
    /// response is sent.
    pub drain_silence_max: Duration,
    /// Counts and limits the memory of requests and responses.
    pub ledger: Arc<Ledger>,
    /// Who may use which API.
    pub gate: Gate,
    /// The memory that clients share.
    pub regions: Arc<dyn RegionControl>,
    /// TLS, with the protocol `http/1.1`.
    pub tls: Option<Tls>,
    /// The log that clients may read and change; `None` for a server without one.
    pub log: Option<Arc<dyn LogControl>>,
    /// Traces requests; `None` for a server without traces.
    pub tracing: Option<Arc<dyn TraceControl>>,
    /// Logs each request.
    pub request_log: Option<RequestLog>,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            input_bytes_max: Limits::DEFAULT_INPUT_BYTES_MAX,
            chunks_max: Limits::CHUNKS_MAX,
            door: DoorOptions::default(),
            header_forward: None,
            drain_silence_max: Limits::REFUSED_BODY_SILENCE_MAX,
            ledger: Arc::default(),
            gate: Gate::default(),
            regions: Arc::new(NoRegions),
            tls: None,
            log: None,
            tracing: None,
            request_log: None,
        }
    }
}

impl HttpOptions {
    pub(crate) fn limits(&self) -> Limits {
        Limits { input_bytes_max: self.input_bytes_max }
    }
}
