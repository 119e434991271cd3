//! The settings of the gRPC door.

use std::sync::Arc;
use std::time::Duration;

use galatea_codec::forward::HeaderForward;
use galatea_codec::limits::Limits;
use galatea_codec_grpc::MESSAGE_BYTES_MAX;
use galatea_control::{LogControl, NoRegions, RegionControl, TraceControl};
use galatea_door::DoorOptions;
use galatea_door::tls::Tls;
use galatea_explain::ExplanationWriter;
use galatea_gate::access::Gate;
use galatea_gate::ledger::Ledger;

use crate::compression::CompressionLevel;
use crate::delay::TestDelays;
use crate::route::Method;

/// The time that a client may take for the handshake of HTTP/2, which is gRPC's, as in Triton.
const HTTP2_HANDSHAKE_TIME_MAX: Duration = Duration::from_mins(2);
/// The time that a gRPC client may take until it begins its first call.
///
/// Clients connect long before they call, so this is generous. Without it a connection
/// that is never used would keep its place for ever.
const FIRST_CALL_TIME_MAX: Duration = Duration::from_mins(10);
/// The time that a gRPC client that is told to begin no more calls may take to acknowledge
/// that. The acknowledgement takes one round trip.
const GOAWAY_TIME_MAX: Duration = Duration::from_secs(5);

/// The settings of the gRPC door.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GrpcOptions {
    /// The longest message that is taken, in bytes. A longer one is refused when its length
    /// is read.
    pub message_bytes_max: usize,
    /// The limits that HTTP has too. They hold for calls that are not inferences.
    pub limits: Limits,
    /// The most calls that a connection may have in progress; clients queue more on their side.
    pub concurrent_calls_max: u32,
    /// The time that a new connection may take for the handshake of HTTP/2.
    pub handshake_timeout: Duration,
    /// Pings, and how long connections last.
    pub keepalive: KeepaliveOptions,
    /// The bytes of responses to unary calls that a connection may have unwritten before no
    /// further calls are read from it.
    pub call_unwritten_bytes_max: usize,
    /// The bytes of responses that a connection may have unwritten before nothing more is
    /// read from it, neither calls nor requests of streams.
    pub unwritten_bytes_max: usize,
    /// From how many bytes of unwritten responses on a connection drops further ones, which
    /// belong to requests that were read before. Calls fail then, and streams end.
    pub unwritten_bytes_dropped: usize,
    /// The bytes that the unwritten responses of a connection may keep alive beside their
    /// own, as parts of the outputs of batches or of requests; further ones are copied.
    pub retained_bytes_max: usize,
    /// The bytes that the unary calls of a connection may have in progress before no further
    /// calls are read from it; the same for the requests of all its streams together. For
    /// each request the larger of message and decoded tensors counts, and 2 KiB more.
    pub request_bytes_max: usize,
    /// The bytes of incomplete messages that a connection may have. The message that brings
    /// more fails, unless it is the only one.
    pub arriving_bytes_max: usize,
    /// The requests of a stream that may be without their final response, together with
    /// the responses that are unwritten, before further ones have to wait.
    pub stream_messages_max: usize,
    /// The same in bytes of their messages.
    pub stream_bytes_max: usize,
    /// Counts and limits the memory of requests and responses over all connections.
    pub ledger: Arc<Ledger>,
    /// The metadata of inference calls that becomes parameters of their requests.
    pub header_forward: Option<HeaderForward>,
    /// The callers of each API.
    pub gate: Gate,
    /// The responses of one request of a stream that may be unwritten before its decoupled
    /// model is asked to pause; `None` leaves that to the limits of the stream.
    pub response_pool_size: Option<usize>,
    /// The log that clients may read and change; `None` for a server without one.
    pub log: Option<Arc<dyn LogControl>>,
    /// Delays for Triton's own tests.
    pub test_delays: TestDelays,
    /// The compression of responses to inferences.
    pub response_compression: CompressionLevel,
    /// The memory that clients share.
    pub regions: Arc<dyn RegionControl>,
    /// Traces requests; `None` for a server without traces.
    pub tracing: Option<Arc<dyn TraceControl>>,
    /// Writes explanations of requests; `None` for a server that does not explain.
    pub explanations: Option<ExplanationWriter>,
    /// TLS, with the protocol `h2`.
    pub tls: Option<Tls>,
    /// The limits of connections.
    pub door: DoorOptions,
}

/// Pings, and how long connections last; defaults and meanings are those of gRPC's own
/// servers where they have the setting.
#[derive(Clone, Debug)]
pub struct KeepaliveOptions {
    /// The client is pinged when it has sent nothing for this long; `None` is never.
    pub time: Option<Duration>,
    /// The connection is closed if the client sends nothing for this long after a ping; `None`
    /// is never.
    pub timeout: Option<Duration>,
    /// True if clients without calls are pinged, and may ping as often as others.
    pub permit_without_calls: bool,
    /// The time that a client must leave between two pings while it is sent nothing.
    pub ping_interval_min: Duration,
    /// The pings that may come earlier before the connection is closed; 0 is any number.
    pub ping_strikes_max: u32,
    /// The age that a connection may reach, a tenth more or less, before its client is told to
    /// begin no more calls; `None` is any age.
    pub connection_age_max: Option<Duration>,
    /// The time that calls may go on after that; `None` is any time.
    pub connection_age_grace: Option<Duration>,
    /// The time that a client may take until it begins its first call.
    pub first_call_timeout: Duration,
    /// The time that a client that is told to begin no more calls may take to acknowledge that.
    /// After that the connection ends as soon as it has no call.
    pub goaway_timeout: Duration,
}

/// Times that a flag sets have the defaults of gRPC's own servers; the other times are
/// limits of the gate.
impl Default for KeepaliveOptions {
    fn default() -> Self {
        Self {
            time: Some(Duration::from_hours(2)),
            timeout: Some(Duration::from_secs(20)),
            permit_without_calls: false,
            ping_interval_min: Duration::from_mins(5),
            ping_strikes_max: 2,
            connection_age_max: None,
            connection_age_grace: None,
            first_call_timeout: FIRST_CALL_TIME_MAX,
            goaway_timeout: GOAWAY_TIME_MAX,
        }
    }
}

impl Default for GrpcOptions {
    fn default() -> Self {
        Self {
            message_bytes_max: MESSAGE_BYTES_MAX,
            limits: Limits::default(),
            concurrent_calls_max: 4096,
            handshake_timeout: HTTP2_HANDSHAKE_TIME_MAX,
            keepalive: KeepaliveOptions::default(),
            call_unwritten_bytes_max: 64 << 20,
            unwritten_bytes_max: 512 << 20,
            unwritten_bytes_dropped: 2 << 30,
            retained_bytes_max: 256 << 20,
            request_bytes_max: 512 << 20,
            arriving_bytes_max: 1 << 30,
            stream_messages_max: 4096,
            stream_bytes_max: 32 << 20,
            ledger: Arc::default(),
            header_forward: None,
            regions: Arc::new(NoRegions),
            gate: Gate::default(),
            response_pool_size: None,
            log: None,
            test_delays: TestDelays::default(),
            response_compression: CompressionLevel::None,
            tracing: None,
            explanations: None,
            tls: None,
            door: DoorOptions::default(),
        }
    }
}

impl GrpcOptions {
    /// The longest message of a call of this method.
    pub(crate) fn bytes_max(&self, method: Method) -> usize {
        match method {
            Method::ModelInfer | Method::ModelStreamInfer => self.message_bytes_max,
            Method::TraceSetting => {
                let bytes_max = usize::try_from(Limits::SETTINGS_BYTES_MAX).unwrap_or(usize::MAX);
                bytes_max.min(self.message_bytes_max)
            }
            _ => {
                let bytes_max = usize::try_from(self.limits.input_bytes_max).unwrap_or(usize::MAX);
                bytes_max.min(self.message_bytes_max)
            }
        }
    }
}
