//! Recognizes a C trace when a backend asks for it.

use galatea_abi::TRITONSERVER_InferenceTrace;

/// The address of a request's trace, if it is a C trace.
#[derive(Copy, Clone, Debug)]
pub struct TraceAddress(pub *mut TRITONSERVER_InferenceTrace);

// SAFETY: the header requires that traces can be used by any thread; the address is only
// passed on.
unsafe impl Send for TraceAddress {}
// SAFETY: as above.
unsafe impl Sync for TraceAddress {}
