//! How a trace of C is known again in a backend's hands.

use galatea_abi::TRITONSERVER_InferenceTrace;

/// What stands behind a request's trace, if that is one of C's.
#[derive(Copy, Clone, Debug)]
pub struct TraceAddress(pub *mut TRITONSERVER_InferenceTrace);

// SAFETY: the header demands that traces can be used by any thread; the address is
// only handed on.
unsafe impl Send for TraceAddress {}
// SAFETY: as above.
unsafe impl Sync for TraceAddress {}
