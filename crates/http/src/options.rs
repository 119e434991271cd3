//! The settings of the inference door.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use galatea_codec::forward::HeaderForward;
use galatea_codec::limits::Limits;
use galatea_codec_http::{OrcaLoadReport, OrcaLoadReportFormat};
use galatea_control::{LogControl, NoRegions, RegionControl, TraceControl};
use galatea_dashboard::Dashboard;
use galatea_door::DoorOptions;
use galatea_door::tls::Tls;
use galatea_explain::ExplanationWriter;
use galatea_gate::access::Gate;
use galatea_gate::ledger::Ledger;
use hyper::header::HeaderValue;

use crate::request_log::RequestLog;
use crate::traffic::TrafficRecorder;

/// The maximum number of chunks of a chunked body, as in Triton.
const CHUNKS_MAX: u32 = 65_536;
/// The time for which an HTTP client may stop sending the body of a refused request before the
/// response is sent.
///
/// A client that is still sending would find the connection closed, and not see the
/// response. One that waits for an answer sends nothing more.
const REFUSED_BODY_SILENCE_MAX: Duration = Duration::from_secs(1);

/// Finds out how loaded the server is.
#[derive(Clone)]
pub struct LoadReportSource(Arc<dyn Fn() -> Option<OrcaLoadReport> + Send + Sync>);

impl LoadReportSource {
    /// A source that asks this function. It is called for each request that wants a report.
    #[must_use]
    pub fn new(report: impl Fn() -> Option<OrcaLoadReport> + Send + Sync + 'static) -> Self {
        Self(Arc::new(report))
    }

    /// The value of the header, if `format` is one and there is a report.
    pub(crate) fn header(&self, format: &[u8]) -> Option<HeaderValue> {
        let format = OrcaLoadReportFormat::parse(format)?;
        HeaderValue::try_from(self.0()?.encode(format)).ok()
    }
}

impl fmt::Debug for LoadReportSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoadReportSource")
    }
}

/// The settings of the inference door.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// The longest body, and the longest tensor made of one, in bytes.
    pub input_bytes_max: u64,
    /// The number of chunks that a chunked body may have.
    pub chunks_max: u32,
    /// The limits of connections.
    pub door: DoorOptions,
    /// The headers of inference requests that become request parameters.
    pub header_forward: Option<HeaderForward>,
    /// The time that a client may stop sending the body of a refused request before the
    /// response is sent.
    pub drain_silence_max: Duration,
    /// Counts and limits the memory of requests and responses.
    pub ledger: Arc<Ledger>,
    /// The callers of each API.
    pub gate: Gate,
    /// The server's load, for clients that ask with a generate request; `None` if no
    /// model says so.
    pub load_report: Option<LoadReportSource>,
    /// The memory that clients share.
    pub regions: Arc<dyn RegionControl>,
    /// TLS, with the protocol `http/1.1`.
    pub tls: Option<Tls>,
    /// The log that clients may read and change; `None` for a server without one.
    pub log: Option<Arc<dyn LogControl>>,
    /// Traces requests; `None` for a server without traces.
    pub tracing: Option<Arc<dyn TraceControl>>,
    /// The page that shows what the server does; `None` for a server without it.
    pub dashboard: Option<Dashboard>,
    /// Records traffic for clients; `None` for a server that does not.
    pub recorder: Option<TrafficRecorder>,
    /// Writes explanations of requests; `None` for a server that does not explain.
    pub explanations: Option<ExplanationWriter>,
    /// Logs each request.
    pub request_log: Option<RequestLog>,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            input_bytes_max: Limits::DEFAULT_INPUT_BYTES_MAX,
            chunks_max: CHUNKS_MAX,
            door: DoorOptions::default(),
            header_forward: None,
            drain_silence_max: REFUSED_BODY_SILENCE_MAX,
            ledger: Arc::default(),
            gate: Gate::default(),
            load_report: None,
            regions: Arc::new(NoRegions),
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
    pub(crate) fn limits(&self) -> Limits {
        Limits { input_bytes_max: self.input_bytes_max }
    }
}
