//! Settings of the gRPC door.

use std::sync::Arc;
use std::time::Duration;

use galatea_codec::forward::HeaderForwardPattern;
use galatea_codec::limits::MessageLimits;
use galatea_codec_grpc::MESSAGE_BYTES_MAX;
use galatea_control::{LogControl, ShmControl, ShmDisabled, TraceControl};
use galatea_door::DoorOptions;
use galatea_door::tls::SharedTlsAcceptor;
use galatea_explain::LatencyExplanationWriter;
use galatea_gate::access::AccessGate;
use galatea_gate::ledger::MemoryLedger;

use crate::compression::CompressionLevel;
use crate::delay::TestDelays;
use crate::route::Method;

/// The time limit for the HTTP/2 handshake. It is gRPC's own limit, as in Triton.
const HTTP2_HANDSHAKE_TIME_MAX: Duration = Duration::from_mins(2);
/// The time limit for a gRPC client's first call.
///
/// Clients connect long before they make calls, so this limit is generous. Without it, an unused
/// connection would keep its place forever.
const FIRST_CALL_TIME_MAX: Duration = Duration::from_mins(10);
/// The time limit for a gRPC client to acknowledge that it must begin no more calls. The
/// acknowledgement takes one round trip.
const GOAWAY_TIME_MAX: Duration = Duration::from_secs(5);

/// Settings of the gRPC door.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GrpcOptions {
    /// The maximum length of a message, in bytes. A longer message is refused as soon as its length
    /// is read.
    pub message_bytes_max: usize,
    /// The limits shared with HTTP for calls other than inference.
    pub limits: MessageLimits,
    /// The maximum number of concurrent calls on a connection. Clients queue additional calls on
    /// their side.
    pub concurrent_calls_max: u32,
    /// The time limit for the HTTP/2 handshake of a new connection.
    pub handshake_timeout: Duration,
    /// Pings, and the lifetime of connections.
    pub keepalive: KeepaliveOptions,
    /// The number of unwritten bytes in unary responses at which no more calls are read from a
    /// connection.
    pub call_unwritten_bytes_max: usize,
    /// The number of unwritten response bytes at which nothing more is read from a connection,
    /// neither calls nor stream requests.
    pub unwritten_bytes_max: usize,
    /// The number of unwritten response bytes at which a connection drops additional responses,
    /// which belong to requests that were read earlier. Their calls fail and their streams end.
    pub unwritten_bytes_dropped: usize,
    /// The number of bytes of other memory that a connection's unwritten responses may keep alive
    /// because they are slices of batch outputs or of requests. Additional responses are copied.
    pub retained_bytes_max: usize,
    /// The number of bytes in in-flight unary requests at which no more calls are read from a
    /// connection. The same limit applies separately to the requests of all its streams. Each
    /// request counts as the larger of its message and its decoded tensors, plus 2 KiB.
    pub request_bytes_max: usize,
    /// The maximum number of bytes in a connection's incomplete messages. A message that exceeds it
    /// fails, unless it is the only incomplete message.
    pub arriving_bytes_max: usize,
    /// The number of messages at which a stream's next requests must wait. It counts requests
    /// without a final response and unwritten responses.
    pub stream_messages_max: usize,
    /// The number of bytes at which a stream's next requests must wait. It counts the same
    /// messages.
    pub stream_bytes_max: usize,
    /// The ledger, which counts and limits the memory for requests and responses across all
    /// connections.
    pub ledger: Arc<MemoryLedger>,
    /// The metadata of inference calls that is forwarded as request parameters.
    pub header_forward: Option<HeaderForwardPattern>,
    /// The gate, which decides who may call each API.
    pub gate: AccessGate,
    /// The number of unwritten responses to one stream request at which its decoupled model is
    /// asked to pause. If `None`, only the stream's limits apply.
    pub response_pool_size: Option<usize>,
    /// The log that clients may read and change; `None` if the server has none.
    pub log: Option<Arc<dyn LogControl>>,
    /// Delays for Triton's own tests.
    pub test_delays: TestDelays,
    /// The compression of inference responses.
    pub response_compression: CompressionLevel,
    /// The memory that clients share.
    pub regions: Arc<dyn ShmControl>,
    /// Traces requests; `None` if the server doesn't trace.
    pub tracing: Option<Arc<dyn TraceControl>>,
    /// Writes explanations of requests; `None` if the server doesn't explain.
    pub explanations: Option<LatencyExplanationWriter>,
    /// TLS for this door, with the ALPN protocol `h2`; `None` for plain text.
    pub tls: Option<SharedTlsAcceptor>,
    /// The settings for the door's connections.
    pub door: DoorOptions,
}

/// Pings, and the lifetime of connections. Settings that also exist in gRPC's own servers have the
/// same defaults and meanings.
#[derive(Clone, Debug)]
pub struct KeepaliveOptions {
    /// The time without data from the client after which the client is pinged; `None` means never.
    pub time: Option<Duration>,
    /// The time without data from the client after a ping until the connection is closed; `None`
    /// means never.
    pub timeout: Option<Duration>,
    /// True if clients without calls are also pinged and may ping as often as clients with calls.
    pub permit_without_calls: bool,
    /// The minimum time between two pings of a client while no data is sent to it.
    pub ping_interval_min: Duration,
    /// The number of early pings tolerated before the connection is closed; 0 means unlimited.
    pub ping_strikes_max: u32,
    /// The age, give or take a tenth, at which a connection's client is asked to begin no more
    /// calls; `None` means no limit.
    pub connection_age_max: Option<Duration>,
    /// The time that calls may continue after a connection reaches the maximum age; `None` means no
    /// limit.
    pub connection_age_grace: Option<Duration>,
    /// The time limit for a client's first call.
    pub first_call_timeout: Duration,
    /// The time limit for a client to acknowledge that it must begin no more calls. After this
    /// time, the connection ends as soon as it has no calls.
    pub goaway_timeout: Duration,
}

/// Times with a command-line flag have the same defaults as in gRPC's own servers. The other times
/// are this server's own limits.
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
            limits: MessageLimits::default(),
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
            regions: Arc::new(ShmDisabled),
            gate: AccessGate::default(),
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
                let bytes_max =
                    usize::try_from(MessageLimits::SETTINGS_BYTES_MAX).unwrap_or(usize::MAX);
                bytes_max.min(self.message_bytes_max)
            }
            _ => {
                let bytes_max = usize::try_from(self.limits.input_bytes_max).unwrap_or(usize::MAX);
                bytes_max.min(self.message_bytes_max)
            }
        }
    }
}
