//! Traces, whose callbacks report a request's trace points.
//!
//! A [`TraceObject`] is the object that C refers to. It contains the callbacks and the trace's
//! subject. While the server has the request, the request's trace calls these callbacks through a
//! `CTraceSink`. A trace that the server created records into itself.

pub(crate) mod sink;

use core::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

use galatea_abi::server::*;
use galatea_abi::*;
use galatea_c_objects::error::to_c_string;
use galatea_c_objects::trace::{TraceCallbacks, TraceObject, TraceTarget};
use galatea_c_objects::{catch_panic, handle, log, pointer};
use galatea_infer::{Status, Trace};
use galatea_stdx::run_foreign_code;

use crate::borrowed_request::BorrowedRequest;
use sink::CTraceSink;

/// Adds a custom activity's name to the context, a JSON object keyed by time.
fn record_activity_name(object: &TraceObject, timestamp_ns: u64, name: &str) {
    let mut context = object.context.lock("add an activity");
    let known = match context.to_bytes() {
        [] => Ok(serde_json::Map::new()),
        text => serde_json::from_slice(text),
    };
    let mut names = known.unwrap_or_else(|error| {
        log::error(&format!("a trace's context is not a JSON object: {error}"));
        serde_json::Map::new()
    });
    names.insert(timestamp_ns.to_string(), name.into());
    *context = to_c_string(&serde_json::Value::Object(names).to_string());
}

/// Checks a trace that accompanies a request.
///
/// # Errors
///
/// `InvalidArgument` if the pointer is neither null nor a trace.
///
/// # Safety
///
/// `trace` must be null or an object from C.
pub(crate) unsafe fn check(trace: *mut TRITONSERVER_InferenceTrace) -> Result<(), Status> {
    if trace.is_null() {
        return Ok(());
    }
    // SAFETY: guaranteed by the caller.
    unsafe { handle::borrow::<TraceObject>(trace, "trace") }.map(drop)
}

/// Begins the trace of a request that is handed over together with a C trace.
///
/// # Safety
///
/// Same requirements as for [`check`], which must have succeeded.
pub(crate) unsafe fn begin(
    trace: *mut TRITONSERVER_InferenceTrace,
    request: &Arc<BorrowedRequest>,
) -> Option<Arc<Trace>> {
    if trace.is_null() {
        return None;
    }
    // SAFETY: guaranteed by the caller.
    match unsafe { handle::borrow::<TraceObject>(trace, "trace") }.ok().map(|object| &object.target)
    {
        Some(TraceTarget::Server(trace)) => Some(trace.clone()),
        Some(TraceTarget::Callbacks(_)) | None => Some(CTraceSink::begin(trace, request)),
    }
}

/// A trace that is being handed to the server. Traces that the server created don't return to C.
pub(crate) enum Handover {
    /// No trace, or one that a callback returns to C, possibly before the handover completes.
    Returned,
    /// A trace that the server created.
    Kept(*mut TRITONSERVER_InferenceTrace),
}

impl Handover {
    /// Prepares this trace's handover.
    ///
    /// # Safety
    ///
    /// Same requirements as for [`begin`].
    pub(crate) unsafe fn of(trace: *mut TRITONSERVER_InferenceTrace) -> Self {
        if trace.is_null() {
            return Self::Returned;
        }
        // SAFETY: guaranteed by the caller.
        let object = unsafe { handle::borrow::<TraceObject>(trace, "trace") };
        match object {
            Ok(object) if object.callbacks().is_none() => Self::Kept(trace),
            Ok(_) | Err(_) => Self::Returned,
        }
    }

    /// Completes the handover after the request and its trace have been accepted.
    ///
    /// # Safety
    ///
    /// The caller must not use the trace any more.
    pub(crate) unsafe fn complete(self) {
        if let Self::Kept(trace) = self {
            // SAFETY: guaranteed by the caller.
            drop(unsafe { handle::take::<TraceObject>(trace, "trace") });
        }
    }
}

fn report(
    trace: *mut TRITONSERVER_InferenceTrace,
    object: &TraceObject,
    activity: TRITONSERVER_InferenceTraceActivity,
    timestamp_ns: u64,
) {
    let Some(callbacks) = object.callbacks() else { return };
    if let (true, Some(call)) = (callbacks.wants_times, callbacks.activity) {
        // SAFETY: the caller set a function that accepts these arguments on any thread.
        run_foreign_code(|| unsafe { call(trace, activity, timestamp_ns, callbacks.userp) });
    }
}

const _: TRITONSERVER_InferenceTraceNew = TRITONSERVER_InferenceTraceNew;
/// Creates a trace that reports times.
///
/// # Safety
///
/// `trace` must be null or valid for a write. The functions must meet the header's requirements on
/// any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceTraceNew(
    trace: *mut *mut TRITONSERVER_InferenceTrace,
    level: TRITONSERVER_InferenceTraceLevel,
    parent_id: u64,
    activity_fn: TRITONSERVER_InferenceTraceActivityFn_t,
    release_fn: TRITONSERVER_InferenceTraceReleaseFn_t,
    trace_userp: *mut c_void,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_InferenceTraceNew", || {
        pointer::check_not_null(trace, "trace")?;
        let made = new_trace(level, parent_id, activity_fn, None, release_fn, trace_userp);
        // SAFETY: guaranteed by the caller.
        unsafe { pointer::write(trace, made, "trace") }
    })
}

const _: TRITONSERVER_InferenceTraceTensorNew = TRITONSERVER_InferenceTraceTensorNew;
/// Creates a trace that reports times and tensors.
///
/// # Safety
///
/// Same requirements as for `TRITONSERVER_InferenceTraceNew`.
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
    catch_panic("TRITONSERVER_InferenceTraceTensorNew", || {
        pointer::check_not_null(trace, "trace")?;
        let made =
            new_trace(level, parent_id, activity_fn, tensor_activity_fn, release_fn, trace_userp);
        // SAFETY: guaranteed by the caller.
        unsafe { pointer::write(trace, made, "trace") }
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
    let includes = |other: TRITONSERVER_InferenceTraceLevel| level.0 & other.0 != 0;
    let callbacks = TraceCallbacks {
        // The first two levels are old names for the third one.
        wants_times: includes(TRITONSERVER_TRACE_LEVEL_MIN)
            || includes(TRITONSERVER_TRACE_LEVEL_MAX)
            || includes(TRITONSERVER_TRACE_LEVEL_TIMESTAMPS),
        wants_tensors: includes(TRITONSERVER_TRACE_LEVEL_TENSORS) && tensor_activity.is_some(),
        activity,
        tensor_activity,
        release,
        userp,
    };
    TraceObject::with_callbacks(parent_id, callbacks)
}

const _: TRITONSERVER_InferenceTraceSpawnChildTrace = TRITONSERVER_InferenceTraceSpawnChildTrace;
/// Creates a child of this trace, with the same callbacks.
///
/// # Safety
///
/// `trace` must be null or a trace that outlives the call, and `child_trace` must be null or valid
/// for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceTraceSpawnChildTrace(
    trace: *mut TRITONSERVER_InferenceTrace,
    child_trace: *mut *mut TRITONSERVER_InferenceTrace,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_InferenceTraceSpawnChildTrace", || {
        pointer::check_not_null(child_trace, "child_trace")?;
        // A null trace has no children.
        let child = if trace.is_null() {
            core::ptr::null_mut()
        } else {
            // SAFETY: guaranteed by the caller.
            unsafe { handle::borrow::<TraceObject>(trace, "trace")? }.spawn()
        };
        // SAFETY: as above.
        unsafe { pointer::write(child_trace, child, "child_trace") }
    })
}

const _: TRITONSERVER_InferenceTraceReportActivity = TRITONSERVER_InferenceTraceReportActivity;
/// Reports a custom activity, identified by name.
///
/// # Safety
///
/// `trace` must be null or a trace that outlives the call, and `activity_name` must be null or a
/// string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceTraceReportActivity(
    trace: *mut TRITONSERVER_InferenceTrace,
    timestamp: u64,
    activity_name: *const c_char,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_InferenceTraceReportActivity", || {
        if trace.is_null() {
            return Ok(());
        }
        // SAFETY: guaranteed by the caller.
        let (object, name) = unsafe {
            let object = handle::borrow::<TraceObject>(trace, "trace")?;
            (object, pointer::required_c_str(activity_name, "activity_name")?)
        };
        match &object.target {
            TraceTarget::Callbacks(callbacks) if callbacks.wants_times => {
                record_activity_name(object, timestamp, name);
                report(trace, object, TRITONSERVER_TRACE_CUSTOM_ACTIVITY, timestamp);
            }
            TraceTarget::Callbacks(_) => {}
            TraceTarget::Server(trace) => {
                record_activity_name(object, timestamp, name);
                trace.record_custom(name, timestamp);
            }
        }
        Ok(())
    })
}

const _: TRITONSERVER_InferenceTraceDelete = TRITONSERVER_InferenceTraceDelete;
/// Deletes a trace.
///
/// # Safety
///
/// `trace` must be null or a trace that is not in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceTraceDelete(
    trace: *mut TRITONSERVER_InferenceTrace,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_InferenceTraceDelete", || {
        // SAFETY: guaranteed by the caller.
        unsafe { handle::delete::<TraceObject>(trace, "trace") }
    })
}

/// Defines functions that read a trace.
macro_rules! readers {
    ($($function:ident($out:ident: $kind:ty) $read:expr;)*) => {
        $(
            const _: $function = $function;
            /// Reads the trace. A returned pointer is valid until the trace is deleted or that part
            /// of it changes.
            ///
            /// # Safety
            ///
            /// `trace` must be null or a trace that outlives the call, and the out pointer must be
            /// null or valid for a write.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $function(
                trace: *mut TRITONSERVER_InferenceTrace,
                $out: *mut $kind,
            ) -> *mut TRITONSERVER_Error {
                catch_panic(stringify!($function), || {
                    let read: fn(&TraceObject) -> $kind = $read;
                    // SAFETY: guaranteed by the caller.
                    unsafe {
                        let object = handle::borrow::<TraceObject>(trace, "trace")?;
                        pointer::write($out, read(object), stringify!($out))
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
        |trace| trace.subject.lock("read the subject").model_name.as_ptr();
    TRITONSERVER_InferenceTraceModelVersion(model_version: i64)
        |trace| trace.subject.lock("read the subject").model_version;
    TRITONSERVER_InferenceTraceRequestId(request_id: *const c_char)
        |trace| trace.subject.lock("read the subject").request_id.as_ptr();
    TRITONSERVER_InferenceTraceContext(trace_context: *const c_char)
        |trace| trace.context.lock("read the context").as_ptr();
}

const _: TRITONSERVER_InferenceTraceSetContext = TRITONSERVER_InferenceTraceSetContext;
/// Sets the context, a string that accompanies the trace.
///
/// # Safety
///
/// `trace` must be null or a valid trace whose context no thread is reading. The string must be
/// null or NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceTraceSetContext(
    trace: *mut TRITONSERVER_InferenceTrace,
    trace_context: *const c_char,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_InferenceTraceSetContext", || {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let context = if trace_context.is_null() { c"" } else { CStr::from_ptr(trace_context) };
            let object = handle::borrow::<TraceObject>(trace, "trace")?;
            *object.context.lock("set the context") = context.to_owned();
        }
        Ok(())
    })
}
