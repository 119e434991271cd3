//! Traces as C sees them.
//!
//! A [`TraceObject`] is one of two kinds: either a C program created it with its own functions, or
//! the server created it when a backend requested a request's trace. Traces of both kinds have
//! children of the same kind and accept custom activity names.

use core::ffi::c_void;
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use galatea_abi::{
    TRITONSERVER_InferenceTrace, TRITONSERVER_InferenceTraceActivityFn_t,
    TRITONSERVER_InferenceTraceReleaseFn_t, TRITONSERVER_InferenceTraceTensorActivityFn_t,
};
use galatea_infer::{Trace, TraceIdentity};
use galatea_stdx::Lock;

use crate::error::to_c_string;
use crate::handle;

static IDS: AtomicU64 = AtomicU64::new(1);

/// The address of a request's trace, for C traces.
#[derive(Copy, Clone, Debug)]
pub struct TraceAddress(pub *mut TRITONSERVER_InferenceTrace);

// SAFETY: the header requires that any thread can use a trace, and the address is only passed on.
unsafe impl Send for TraceAddress {}
// SAFETY: as above.
unsafe impl Sync for TraceAddress {}

/// The trace of one request.
pub struct TraceObject {
    /// The trace's number.
    pub id: u64,
    /// The parent trace's number, or 0 if there is no parent.
    pub parent_id: u64,
    /// The receiver of the trace's reports.
    pub target: TraceTarget,
    /// The trace's subject, once known.
    pub subject: Lock<OwnedTracedRequest>,
    /// A string that the caller attaches. Custom activity names are added to it.
    pub context: Lock<CString>,
}
crate::object!(TraceObject as TRITONSERVER_InferenceTrace, kind 46);

/// The receiver of a trace's reports.
#[derive(Clone)]
pub enum TraceTarget {
    /// The functions of the C program that created the trace.
    Callbacks(TraceCallbacks),
    /// One of the server's traces.
    Server(Arc<Trace>),
}

/// The caller's functions, which child traces inherit.
#[derive(Copy, Clone)]
pub struct TraceCallbacks {
    /// True if times are reported.
    pub wants_times: bool,
    /// True if tensors are reported.
    pub wants_tensors: bool,
    /// The function that reports times.
    pub activity: TRITONSERVER_InferenceTraceActivityFn_t,
    /// The function that reports tensors.
    pub tensor_activity: TRITONSERVER_InferenceTraceTensorActivityFn_t,
    /// The function that returns the trace to the caller.
    pub release: TRITONSERVER_InferenceTraceReleaseFn_t,
    /// The pointer that is passed to all of these functions.
    pub userp: *mut c_void,
}

/// A trace's subject, as C strings.
pub struct OwnedTracedRequest {
    /// The model's name.
    pub model_name: CString,
    /// The model version that serves the request.
    pub model_version: i64,
    /// The client's request identifier.
    pub request_id: CString,
}

impl TraceObject {
    /// Hands a new trace with these functions to C.
    pub fn with_callbacks(
        parent_id: u64,
        callbacks: TraceCallbacks,
    ) -> *mut TRITONSERVER_InferenceTrace {
        let subject = OwnedTracedRequest {
            model_name: CString::default(),
            model_version: -1,
            request_id: CString::default(),
        };
        handle::into_raw(Self {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            parent_id,
            target: TraceTarget::Callbacks(callbacks),
            subject: Lock::new(subject),
            context: Lock::default(),
        })
    }

    /// Hands one of the server's traces to C.
    fn of_server(trace: Arc<Trace>) -> *mut TRITONSERVER_InferenceTrace {
        let TraceIdentity { id, parent_id, context, model_name, model_version, request_id } =
            trace.identity();
        let (model_name, request_id) = (to_c_string(&model_name), to_c_string(&request_id));
        handle::into_raw(Self {
            id,
            parent_id,
            target: TraceTarget::Server(trace),
            subject: Lock::new(OwnedTracedRequest { model_name, model_version, request_id }),
            context: Lock::new(to_c_string(&context)),
        })
    }

    /// Hands a child of this trace to C. Returns null if this trace can't have children.
    pub fn spawn(&self) -> *mut TRITONSERVER_InferenceTrace {
        match &self.target {
            TraceTarget::Callbacks(callbacks) => Self::with_callbacks(self.id, *callbacks),
            TraceTarget::Server(trace) => {
                trace.child().map_or(core::ptr::null_mut(), Self::of_server)
            }
        }
    }

    /// The functions of the C program that created the trace, if a C program did.
    #[must_use]
    pub const fn callbacks(&self) -> Option<&TraceCallbacks> {
        match &self.target {
            TraceTarget::Callbacks(callbacks) => Some(callbacks),
            TraceTarget::Server(_) => None,
        }
    }
}

/// A server trace that is lent to C. Dropping the value makes its address invalid.
#[derive(Debug)]
pub struct LentTrace(TraceAddress);

impl LentTrace {
    /// Lends a trace to C.
    #[must_use]
    pub fn new(trace: Arc<Trace>) -> Self {
        Self(TraceAddress(TraceObject::of_server(trace)))
    }

    /// The address to pass to C.
    #[must_use]
    pub const fn address(&self) -> *mut TRITONSERVER_InferenceTrace {
        self.0.0
    }
}

impl Drop for LentTrace {
    fn drop(&mut self) {
        // SAFETY: the trace was created here, and C must not use it after its request has been
        // released. If C deleted it in violation of its contract, this call has no effect.
        drop(unsafe { handle::take::<TraceObject>(self.0.0, "trace") });
    }
}
