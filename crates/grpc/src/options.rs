//! Settings of the gRPC door.

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

/// The time limit for the HTTP/2 handshake: gRPC's own, as in Triton.
const HTTP2_HANDSHAKE_TIME_MAX: Duration = Duration::from_mins(2);
/// The time limit for a gRPC client's first call.
///
/// Clients connect long before they call, so this is generous. Without it, a connection that is
/// never used would keep its place forever.
const FIRST_CALL_TIME_MAX: Duration = Duration::from_mins(10);
/// The time limit for a gRPC client to acknowledge that it must begin no more calls. The
/// acknowledgement takes one round trip.
const GOAWAY_TIME_MAX: Duration = Duration::from_secs(5);

/// Settings of the gRPC door.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GrpcOptions {
    /// The maximum length of a message, in bytes. A longer one is refused as soon as its length is
    /// read.
    pub message_bytes_max: usize,
    /// The limits shared with HTTP, for calls other than inference.
    pub limits: Limits,
    /// The maximum number of concurrent calls of a connection; clients queue further ones on their
    /// side.
    pub concurrent_calls_max: u32,
    /// The time limit for the HTTP/2 handshake of a new connection.
    pub handshake_timeout: Duration,
    /// Pings, and the lifetime of connections.
    pub keepalive: KeepaliveOptions,
    /// The number of unwritten bytes of responses to unary calls at which no more calls are read
    /// from a connection.
    pub call_unwritten_bytes_max: usize,
    /// The number of unwritten bytes of responses at which nothing more is read from a connection,
    /// neither calls nor stream requests.
    pub unwritten_bytes_max: usize,
    /// The number of unwritten bytes of responses at which a connection drops further responses,
    /// which belong to requests that were read earlier. Their calls fail, and their streams end.
    pub unwritten_bytes_dropped: usize,
    /// The number of bytes of other memory that a connection's unwritten responses may keep alive,
    /// as parts of the outputs of batches or of requests; further responses are copied.
    pub retained_bytes_max: usize,
    /// The number of bytes of in-flight unary requests at which no more calls are read from a
    /// connection; the same limit applies separately to the requests of all its streams. Each
    /// request counts with the larger of its message and its decoded tensors, plus 2 KiB.
    pub request_bytes_max: usize,
    /// The maximum number of bytes of a connection's incomplete messages. A message that exceeds it
    /// fails, unless it is the only one.
    pub arriving_bytes_max: usize,
    /// The number of a stream's requests without a final response, plus its unwritten responses, at
    /// which further requests must wait.
    pub stream_messages_max: usize,
    /// The number of bytes of these messages at which further requests must wait.
    pub stream_bytes_max: usize,
    /// Counts and limits the memory of requests and responses over all connections.
    pub ledger: Arc<Ledger>,
    /// The metadata of inference calls that becomes parameters of their requests.
    pub header_forward: Option<HeaderForward>,
    /// The gate, which decides about the callers of each API.
    pub gate: Gate,
    /// The number of unwritten responses of one stream request at which its decoupled model is
    /// asked to pause; if `None`, the limits of the stream apply.
    pub response_pool_size: Option<usize>,
    /// The log that clients may read and change; `None` if the server has none.
    pub log: Option<Arc<dyn LogControl>>,
    /// Delays for Triton's own tests.
    pub test_delays: TestDelays,
    /// The compression of responses to inferences.
    pub response_compression: CompressionLevel,
    /// The memory that clients share.
    pub regions: Arc<dyn RegionControl>,
    /// Traces requests; `None` if the server has no traces.
    pub tracing: Option<Arc<dyn TraceControl>>,
    /// Writes explanations of requests; `None` if the server doesn't explain.
    pub explanations: Option<ExplanationWriter>,
    /// TLS, with the protocol `h2`.
    pub tls: Option<Tls>,
    /// The settings of the door's connections.
    pub door: DoorOptions,
}

/// Pings, and the lifetime of connections; defaults and meanings are those of gRPC's own servers
/// where they have the setting.
#[derive(Clone, Debug)]
pub struct KeepaliveOptions {
    /// The time without data from the client after which it is pinged; `None` means never.
    pub time: Option<Duration>,
    /// The time without data from the client after a ping until the connection is closed; `None`
    /// means never.
    pub timeout: Option<Duration>,
    /// True if clients without calls are pinged too, and may ping as often as others.
    pub permit_without_calls: bool,
    /// The minimum time between two pings of a client while no data is sent to it.
    pub ping_interval_min: Duration,
    /// The number of early pings that are tolerated before the connection is closed; 0 means
    /// unlimited.
    pub ping_strikes_max: u32,
    /// The age, give or take a tenth, at which a connection's client is told to begin no more
    /// calls; `None` means no limit.
    pub connection_age_max: Option<Duration>,
    /// The time for which calls may continue after that; `None` means no limit.
    pub connection_age_grace: Option<Duration>,
    /// The time limit for a client's first call.
    pub first_call_timeout: Duration,
    /// The time limit for a client to acknowledge that it must begin no more calls. After it, the
    /// connection ends as soon as it has no calls.
    pub goaway_timeout: Duration,
}

/// Times with a flag have the defaults of gRPC's own servers; the other times are this server's own
/// limits.
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
    /// The maximum message length for a call of this method.
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
