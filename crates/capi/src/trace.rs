//! Traces: the caller is told when a request passes its stations.
//!
//! The server reports a request's start and end, and what backends report on
//! their own. The stations in between are in the model's statistics.

use core::ffi::{CStr, c_char, c_void};
use std::ffi::CString;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use galatea_abi::server::*;
use galatea_abi::*;
use galatea_c_objects::error::c_text;
use galatea_c_objects::{guard, handle, text};
use galatea_infer::Status;

use crate::request::RequestObject;

static IDS: AtomicU64 = AtomicU64::new(1);

/// A trace of one request.
pub(crate) struct TraceObject {
    id: u64,
    parent_id: u64,
    level: TRITONSERVER_InferenceTraceLevel,
    activity: TRITONSERVER_InferenceTraceActivityFn_t,
    tensor_activity: TRITONSERVER_InferenceTraceTensorActivityFn_t,
    release: TRITONSERVER_InferenceTraceReleaseFn_t,
    userp: *mut c_void,
    model_name: CString,
    model_version: i64,
    request_id: CString,
    context: CString,
}
galatea_c_objects::object!(TraceObject as TRITONSERVER_InferenceTrace, kind 46);

/// A trace while its request is on its way. Its end is reported when it is
/// dropped, and the trace goes back to the caller.
pub(crate) struct Tracing {
    trace: *mut TRITONSERVER_InferenceTrace,
}

// SAFETY: the header demands that a trace's callbacks can be called from any
// thread; the pointer is only handed to them.
unsafe impl Send for Tracing {}

impl Tracing {
    /// Tells the trace what it is about and reports the start.
    ///
    /// # Safety
    ///
    /// `trace` must be null or a trace that nobody else uses and that stays until
    /// its release callback.
    pub(crate) unsafe fn begin(
        trace: *mut TRITONSERVER_InferenceTrace,
        request: &RequestObject,
    ) -> Result<Self, Status> {
        if !trace.is_null() {
            // SAFETY: the caller's promise is passed on.
            let object = unsafe { handle::borrow_mut::<TraceObject>(trace, "trace")? };
            object.model_name = c_text(&request.model_name);
            object.model_version = request.model_version.unwrap_or(-1);
            object.request_id = request.id.clone();
            report(trace, object, TRITONSERVER_TRACE_REQUEST_START, now_ns());
        }
        Ok(Self { trace })
    }

    /// The request was not taken: the trace stays the caller's.
    pub(crate) fn forgive(mut self) {
        self.trace = core::ptr::null_mut();
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        if self.trace.is_null() {
            return;
        }
        // SAFETY: the trace was handed over with the request and has not been
        // given back.
        let Ok(object) = (unsafe { handle::borrow::<TraceObject>(self.trace, "trace") }) else {
            return;
        };
        report(self.trace, object, TRITONSERVER_TRACE_REQUEST_END, now_ns());
        if let Some(release) = object.release {
            // SAFETY: the caller set a function that takes these from any thread.
            unsafe { release(self.trace, object.userp) };
        }
    }
}

fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

fn report(
    trace: *mut TRITONSERVER_InferenceTrace,
    object: &TraceObject,
    activity: TRITONSERVER_InferenceTraceActivity,
    timestamp_ns: u64,
) {
    let wants_times = object.level.0 & TRITONSERVER_TRACE_LEVEL_TIMESTAMPS.0 != 0;
    if let (true, Some(tell)) = (wants_times, object.activity) {
        // SAFETY: the caller set a function that takes these from any thread.
        unsafe { tell(trace, activity, timestamp_ns, object.userp) };
    }
}

const _: TRITONSERVER_InferenceTraceNew = TRITONSERVER_InferenceTraceNew;
/// Makes a trace of times.
///
/// # Safety
///
/// `trace` must be null or valid for a write; the functions must do what the
/// header asks of them, from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceTraceNew(
    trace: *mut *mut TRITONSERVER_InferenceTrace,
    level: TRITONSERVER_InferenceTraceLevel,
    parent_id: u64,
    activity_fn: TRITONSERVER_InferenceTraceActivityFn_t,
    release_fn: TRITONSERVER_InferenceTraceReleaseFn_t,
    trace_userp: *mut c_void,
) -> *mut TRITONSERVER_Error {
    guard("TRITONSERVER_InferenceTraceNew", || {
        let made = new_trace(level, parent_id, activity_fn, None, release_fn, trace_userp);
        // SAFETY: the caller's promise is passed on.
        unsafe { text::write(trace, made, "trace") }
    })
}

const _: TRITONSERVER_InferenceTraceTensorNew = TRITONSERVER_InferenceTraceTensorNew;
/// Makes a trace of times that could also be told tensors.
///
/// # Safety
///
/// As `TRITONSERVER_InferenceTraceNew`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceTraceTensorNew(
    trace: *mut *mut TRITONSERVER_InferenceTrace,
    level: TRITONSERVER_InferenceTraceLevel,
    parent_id: u64,
    activity_fn: TRITONSERVER_InferenceTraceActivityFn_t,
    tensor_activity_fn: TRITONSERVER_InferenceTraceTensorActivityFn_t,
    release_fn: TRITONSERVER_InferenceTraceReleaseFn_t,
    trace_userp: *mut c_void,
) -> *mut TRITONSERVER_Error {
    guard("TRITONSERVER_InferenceTraceTensorNew", || {
        let made =
            new_trace(level, parent_id, activity_fn, tensor_activity_fn, release_fn, trace_userp);
        // SAFETY: the caller's promise is passed on.
        unsafe { text::write(trace, made, "trace") }
    })
}

fn new_trace(
    level: TRITONSERVER_InferenceTraceLevel,
    parent_id: u64,
    activity: TRITONSERVER_InferenceTraceActivityFn_t,
    tensor_activity: TRITONSERVER_InferenceTraceTensorActivityFn_t,
    release: TRITONSERVER_InferenceTraceReleaseFn_t,
    userp: *mut c_void,
) -> *mut TRITONSERVER_InferenceTrace {
    handle::into_raw(TraceObject {
        id: IDS.fetch_add(1, Ordering::Relaxed),
        parent_id,
        level,
        activity,
        tensor_activity,
        release,
        userp,
        model_name: CString::default(),
        model_version: -1,
        request_id: CString::default(),
        context: CString::default(),
    })
}

const _: TRITONSERVER_InferenceTraceSpawnChildTrace = TRITONSERVER_InferenceTraceSpawnChildTrace;
/// Makes a trace that has this one as its parent and tells the same functions.
///
/// # Safety
///
/// `trace` must be null or a trace that stays; the place null or valid for a
/// write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceTraceSpawnChildTrace(
    trace: *mut TRITONSERVER_InferenceTrace,
    child_trace: *mut *mut TRITONSERVER_InferenceTrace,
) -> *mut TRITONSERVER_Error {
    guard("TRITONSERVER_InferenceTraceSpawnChildTrace", || {
        // SAFETY: the caller's promises are passed on.
        unsafe {
            let parent = handle::borrow::<TraceObject>(trace, "trace")?;
            let child = new_trace(
                parent.level,
                parent.id,
                parent.activity,
                parent.tensor_activity,
                parent.release,
                parent.userp,
            );
            text::write(child_trace, child, "child_trace")
        }
    })
}

const _: TRITONSERVER_InferenceTraceReportActivity = TRITONSERVER_InferenceTraceReportActivity;
/// Reports something that has no activity of its own, by name.
///
/// # Safety
///
/// `trace` must be null or a trace that stays, `activity_name` null or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceTraceReportActivity(
    trace: *mut TRITONSERVER_InferenceTrace,
    timestamp: u64,
    activity_name: *const c_char,
) -> *mut TRITONSERVER_Error {
    guard("TRITONSERVER_InferenceTraceReportActivity", || {
        // SAFETY: the caller's promises are passed on.
        let object = unsafe {
            let name = text::required(activity_name, "activity_name")?;
            let object = handle::borrow_mut::<TraceObject>(trace, "trace")?;
            // The name travels as the trace's context while it is told.
            object.context = c_text(name);
            &*object
        };
        report(trace, object, TRITONSERVER_TRACE_CUSTOM_ACTIVITY, timestamp);
        Ok(())
    })
}

const _: TRITONSERVER_InferenceTraceDelete = TRITONSERVER_InferenceTraceDelete;
/// Deletes a trace.
///
/// # Safety
///
/// `trace` must be null or a trace that nobody uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceTraceDelete(
    trace: *mut TRITONSERVER_InferenceTrace,
) -> *mut TRITONSERVER_Error {
    guard("TRITONSERVER_InferenceTraceDelete", || {
        // SAFETY: the caller's promise is passed on.
        unsafe { handle::delete::<TraceObject>(trace, "trace") }
    })
}

/// Defines functions that read a trace.
macro_rules! readers {
    ($($function:ident($place:ident: $kind:ty) $read:expr;)*) => {
        $(
            const _: $function = $function;
            /// Reads the trace; what is pointed to lives as long as it.
            ///
            /// # Safety
            ///
            /// `trace` must be null or a trace that stays; the place null or valid
            /// for a write.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $function(
                trace: *mut TRITONSERVER_InferenceTrace,
                $place: *mut $kind,
            ) -> *mut TRITONSERVER_Error {
                guard(stringify!($function), || {
                    let read: fn(&TraceObject) -> $kind = $read;
                    // SAFETY: the caller's promises are passed on.
                    unsafe {
                        let object = handle::borrow::<TraceObject>(trace, "trace")?;
                        text::write($place, read(object), stringify!($place))
                    }
                })
            }
        )*
    };
}

readers! {
    TRITONSERVER_InferenceTraceId(id: u64) |trace| trace.id;
    TRITONSERVER_InferenceTraceParentId(parent_id: u64) |trace| trace.parent_id;
    TRITONSERVER_InferenceTraceModelName(model_name: *const c_char)
        |trace| trace.model_name.as_ptr();
    TRITONSERVER_InferenceTraceModelVersion(model_version: i64) |trace| trace.model_version;
    TRITONSERVER_InferenceTraceRequestId(request_id: *const c_char)
        |trace| trace.request_id.as_ptr();
    TRITONSERVER_InferenceTraceContext(trace_context: *const c_char)
        |trace| trace.context.as_ptr();
}

const _: TRITONSERVER_InferenceTraceSetContext = TRITONSERVER_InferenceTraceSetContext;
/// Sets the context that whoever started the trace wants carried along.
///
/// # Safety
///
/// `trace` must be null or a trace that nobody else uses, the text null or ended
/// by a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceTraceSetContext(
    trace: *mut TRITONSERVER_InferenceTrace,
    trace_context: *const c_char,
) -> *mut TRITONSERVER_Error {
    guard("TRITONSERVER_InferenceTraceSetContext", || {
        // SAFETY: the caller's promises are passed on.
        unsafe {
            let context = if trace_context.is_null() { c"" } else { CStr::from_ptr(trace_context) };
            let object = handle::borrow_mut::<TraceObject>(trace, "trace")?;
            object.context = context.to_owned();
        }
        Ok(())
    })
}
