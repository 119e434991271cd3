//! The settings of the inference door.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use galatea_codec::forward::HeaderForwardPattern;
use galatea_codec::limits::MessageLimits;
use galatea_codec_http::{OrcaLoadReport, OrcaLoadReportFormat};
use galatea_control::{LogControl, ShmControl, ShmDisabled, TraceControl};
use galatea_dashboard::Dashboard;
use galatea_door::DoorOptions;
use galatea_door::tls::SharedTlsAcceptor;
use galatea_explain::LatencyExplanationWriter;
use galatea_gate::access::AccessGate;
use galatea_gate::ledger::MemoryLedger;
use hyper::header::HeaderValue;

use crate::request_log::RequestLog;
use crate::traffic::TrafficRecorder;

/// The maximum number of chunks of a chunked body, as in Triton.
const CHUNKS_MAX: u32 = 65_536;
/// The time that an HTTP client may pause while it sends the body of a refused request. After that,
/// the response is sent.
///
/// A client that is still sending would find the connection closed and miss the response. A client
/// that waits for a response sends nothing more.
const REFUSED_BODY_SILENCE_MAX: Duration = Duration::from_secs(1);

/// Determines the server's load.
#[derive(Clone)]
pub struct OrcaReportSource(Arc<dyn Fn() -> Option<OrcaLoadReport> + Send + Sync>);

impl OrcaReportSource {
    /// Creates a source from this function, which is called for each request that asks for a
    /// report.
    #[must_use]
    pub fn new(report: impl Fn() -> Option<OrcaLoadReport> + Send + Sync + 'static) -> Self {
        Self(Arc::new(report))
    }

    /// Returns the value of the header if `format` is a known format and there is a report.
    pub(crate) fn header(&self, format: &[u8]) -> Option<HeaderValue> {
        let format = OrcaLoadReportFormat::parse(format)?;
        HeaderValue::try_from(self.0()?.encode(format)).ok()
    }
}

impl fmt::Debug for OrcaReportSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoadReportSource")
    }
}

/// The settings of the inference door.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// The maximum length of a body, and of a tensor created from a body, in bytes.
    pub input_bytes_max: u64,
    /// The maximum number of chunks in a chunked body.
    pub chunks_max: u32,
    /// The connection limits.
    pub door: DoorOptions,
    /// The headers of inference requests that become request parameters.
    pub header_forward: Option<HeaderForwardPattern>,
    /// The time that a client may pause while it sends the body of a refused request. After that,
    /// the response is sent.
    pub drain_silence_max: Duration,
    /// The ledger, which counts and limits the memory for requests and responses.
    pub ledger: Arc<MemoryLedger>,
    /// The gate, which decides who may call each API.
    pub gate: AccessGate,
    /// The server's load, for clients that ask for it in a generate request; `None` if no model
    /// reports it.
    pub load_report: Option<OrcaReportSource>,
    /// The memory that clients share.
    pub regions: Arc<dyn ShmControl>,
    /// TLS for this door, with the ALPN protocol `http/1.1`; `None` for plain text.
    pub tls: Option<SharedTlsAcceptor>,
    /// The log that clients may read and change; `None` if the server has none.
    pub log: Option<Arc<dyn LogControl>>,
    /// Traces requests; `None` if the server doesn't trace.
    pub tracing: Option<Arc<dyn TraceControl>>,
    /// The page that shows the server's activity; `None` if the server has none.
    pub dashboard: Option<Dashboard>,
    /// Records traffic for clients; `None` if the server doesn't record traffic.
    pub recorder: Option<TrafficRecorder>,
    /// Writes explanations of requests; `None` if the server doesn't explain.
    pub explanations: Option<LatencyExplanationWriter>,
    /// Logs each request.
    pub request_log: Option<RequestLog>,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            input_bytes_max: MessageLimits::DEFAULT_INPUT_BYTES_MAX,
            chunks_max: CHUNKS_MAX,
            door: DoorOptions::default(),
            header_forward: None,
            drain_silence_max: REFUSED_BODY_SILENCE_MAX,
            ledger: Arc::default(),
            gate: AccessGate::default(),
            load_report: None,
            regions: Arc::new(ShmDisabled),
            tls: None,
            log: None,
            tracing: None,
            dashboard: None,
            recorder: None,
            explanations: None,
            request_log: None,
        }
    }
}

impl HttpOptions {
    pub(crate) fn limits(&self) -> MessageLimits {
        MessageLimits { input_bytes_max: self.input_bytes_max }
    }
}
