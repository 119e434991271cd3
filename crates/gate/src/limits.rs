//! Limits on the size of one request, the same at every door.

use std::time::Duration;

/// The limits with which a request's sizes are compared before memory is allocated.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest body and the longest tensor decoded from a body, in bytes.
    pub input_bytes_max: u64,
}

impl Limits {
    /// The default of [`Limits::input_bytes_max`]: 64 MiB, as in Triton.
    pub const DEFAULT_INPUT_BYTES_MAX: u64 = 1 << 26;
    /// The maximum nesting depth of arrays and objects in a JSON text.
    pub const JSON_DEPTH_MAX: usize = 100;
    /// The maximum number of chunks of a chunked body.
    pub const CHUNKS_MAX: u32 = 65_536;
    /// The maximum number of inputs, and of requested outputs, of a request.
    ///
    /// Triton has no such limit. This one is far above any model's interface and
    /// keeps a small body from naming millions of tensors.
    pub const TENSORS_MAX: usize = 4096;
    /// How long a client may take for the handshake of TLS.
    ///
    /// It is two round trips, so this is long even for a client at the other end of a
    /// satellite link. Triton's gRPC door waits 120 s.
    pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(20);
    /// The maximum number of handshakes of TLS in progress at one door; beyond it the oldest
    /// is given up. Each holds some 30 KiB, so all of them hold 30 MiB.
    pub const HANDSHAKES_MAX: usize = 1024;
}

impl Default for Limits {
    fn default() -> Self {
        Self { input_bytes_max: Self::DEFAULT_INPUT_BYTES_MAX }
    }
}
