//! Traces: the caller is told when a request passes its stations.
//!
//! A [`TraceObject`] is what C holds: callbacks and what the trace is about. While a
//! request is on its way, a [`Told`] stands behind the request's trace and calls them.

use core::ffi::{CStr, c_char, c_void};
use std::any::Any;
use std::ffi::CString;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use galatea_abi::server::*;
use galatea_abi::*;
use galatea_c_objects::clock::Clock;
use galatea_c_objects::error::c_text;
use galatea_c_objects::names::data_type_to_c;
use galatea_c_objects::trace::TraceAddress;
use galatea_c_objects::{guard, handle, log, pointer};
use galatea_infer::{
    Status, TensorTracePoint, Trace, TracePoint, TraceSink, TraceSubject, TracedTensor,
};
use galatea_stdx::run_foreign;

use crate::infer::Loan;

static IDS: AtomicU64 = AtomicU64::new(1);

/// A trace of one request.
pub(crate) struct TraceObject {
    id: u64,
    parent_id: u64,
    callbacks: Callbacks,
    subject: Mutex<Subject>,
    /// What the caller wants carried along. The names of custom activities are added.
    context: Mutex<CString>,
}
galatea_c_objects::object!(TraceObject as TRITONSERVER_InferenceTrace, kind 46);

/// Whom to tell, which children inherit.
#[derive(Copy, Clone)]
struct Callbacks {
    wants_times: bool,
    wants_tensors: bool,
    activity: TRITONSERVER_InferenceTraceActivityFn_t,
    tensor_activity: TRITONSERVER_InferenceTraceTensorActivityFn_t,
    release: TRITONSERVER_InferenceTraceReleaseFn_t,
    userp: *mut c_void,
}

/// What a trace is about, once the server knows.
struct Subject {
    model_name: CString,
    model_version: i64,
    request_id: CString,
}

impl TraceObject {
    fn subject(&self) -> MutexGuard<'_, Subject> {
        self.subject.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn context(&self) -> MutexGuard<'_, CString> {
        self.context.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The names of custom activities travel in the context, as an object with their
    /// times as keys.
    fn note_activity(&self, timestamp_ns: u64, name: &str) {
        let mut context = self.context();
        let known = match context.to_bytes() {
            [] => Ok(serde_json::Map::new()),
            text => serde_json::from_slice(text),
        };
        let mut names = known.unwrap_or_else(|error| {
            log::error(&format!("a trace's context is not a JSON object: {error}"));
            serde_json::Map::new()
        });
        names.insert(timestamp_ns.to_string(), name.into());
        *context = c_text(&serde_json::Value::Object(names).to_string());
    }
}

/// Tells a trace of C where its request is. Dropped, it gives the trace back.
pub(crate) struct Told {
    trace: TraceAddress,
    kind: Kind,
}

enum Kind {
    /// The caller gave it with a request; that is released after the trace.
    Given { _loan: Arc<Loan> },
    /// It was made for a request that the server made.
    Child,
}

impl Told {
    /// The trace of a request that is handed over with a trace of C.
    pub(crate) fn begin(trace: *mut TRITONSERVER_InferenceTrace, loan: &Arc<Loan>) -> Arc<Trace> {
        let kind = Kind::Given { _loan: loan.clone() };
        Trace::new(Box::new(Self { trace: TraceAddress(trace), kind }))
    }

    fn object(&self) -> Option<&TraceObject> {
        // SAFETY: the trace was handed over and is not given back before the drop; all
        // that changes in it is locked.
        unsafe { handle::borrow(self.trace.0, "trace") }.ok()
    }

    fn report(&self, activity: TRITONSERVER_InferenceTraceActivity, at: Instant) {
        if let Some(object) = self.object() {
            report(self.trace.0, object, activity, Clock::shared().ns(at));
        }
    }
}

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.trace.fmt(f)
    }
}

impl TraceSink for Told {
    fn wants_tensors(&self) -> bool {
        self.object().is_some_and(|object| object.callbacks.wants_tensors)
    }

    fn begin(&self, subject: &TraceSubject<'_>) {
        if let Some(object) = self.object() {
            *object.subject() = Subject {
                model_name: c_text(subject.model_name),
                model_version: subject.model_version,
                request_id: c_text(subject.request_id),
            };
        }
    }

    fn record(&self, point: TracePoint, at: Instant) {
        let activity = match point {
            TracePoint::RequestStart => TRITONSERVER_TRACE_REQUEST_START,
            TracePoint::QueueStart => TRITONSERVER_TRACE_QUEUE_START,
            TracePoint::ComputeStart => TRITONSERVER_TRACE_COMPUTE_START,
            TracePoint::ComputeInputEnd => TRITONSERVER_TRACE_COMPUTE_INPUT_END,
            TracePoint::ComputeOutputStart => TRITONSERVER_TRACE_COMPUTE_OUTPUT_START,
            TracePoint::ComputeEnd => TRITONSERVER_TRACE_COMPUTE_END,
        };
        self.report(activity, at);
    }

    fn record_tensor(&self, point: TensorTracePoint, tensor: &TracedTensor<'_>) {
        let Some(object) = self.object() else { return };
        let (Some(tell), Some(bytes)) = (object.callbacks.tensor_activity, tensor.data.host())
        else {
            return;
        };
        let activity = match point {
            TensorTracePoint::QueueInput => TRITONSERVER_TRACE_TENSOR_QUEUE_INPUT,
            TensorTracePoint::BackendOutput => TRITONSERVER_TRACE_TENSOR_BACKEND_OUTPUT,
        };
        let name = c_text(tensor.name);
        // SAFETY: the caller set a function that takes these from any thread; what is
        // pointed to stays during the call.
        run_foreign(|| unsafe {
            tell(
                self.trace.0,
                activity,
                name.as_ptr(),
                data_type_to_c(tensor.datatype),
                bytes.as_ptr().cast(),
                bytes.len(),
                tensor.dims.as_ptr(),
                u64::try_from(tensor.dims.len()).unwrap_or(0),
                TRITONSERVER_MEMORY_CPU,
                0,
                object.callbacks.userp,
            );
        });
    }

    fn end(&self) {
        self.report(TRITONSERVER_TRACE_REQUEST_END, Instant::now());
    }

    fn child(&self) -> Option<Box<dyn TraceSink>> {
        let trace = TraceAddress(self.object()?.spawn());
        Some(Box::new(Self { trace, kind: Kind::Child }))
    }

    fn underlying(&self) -> Option<&dyn Any> {
        Some(&self.trace)
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let Some(callbacks) = self.object().map(|object| object.callbacks) else { return };
        match (callbacks.release, &self.kind) {
            (Some(release), _) => {
                // SAFETY: the caller set a function that takes these from any thread;
                // the trace is given back once.
                run_foreign(|| unsafe { release(self.trace.0, callbacks.userp) });
            }
            // Nobody else knows of it.
            (None, Kind::Child) => {
                // SAFETY: the trace was made here.
                drop(unsafe { handle::take::<TraceObject>(self.trace.0, "trace") });
            }
            (None, Kind::Given { .. }) => {}
        }
    }
}

/// Whether this is a trace that a request can be handed over with.
///
/// # Errors
///
/// `InvalidArgument` if it is neither null nor a trace.
///
/// # Safety
///
/// `trace` must be null or an object of C.
pub(crate) unsafe fn check(trace: *mut TRITONSERVER_InferenceTrace) -> Result<(), Status> {
    if trace.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise is passed on.
    unsafe { handle::borrow::<TraceObject>(trace, "trace") }.map(drop)
}

fn report(
    trace: *mut TRITONSERVER_InferenceTrace,
    object: &TraceObject,
    activity: TRITONSERVER_InferenceTraceActivity,
    timestamp_ns: u64,
) {
    let callbacks = &object.callbacks;
    if let (true, Some(tell)) = (callbacks.wants_times, callbacks.activity) {
        // SAFETY: the caller set a function that takes these from any thread.
        run_foreign(|| unsafe { tell(trace, activity, timestamp_ns, callbacks.userp) });
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
        pointer::check_not_null(trace, "trace")?;
        let made = new_trace(level, parent_id, activity_fn, None, release_fn, trace_userp);
        // SAFETY: the caller's promise is passed on.
        unsafe { pointer::write(trace, made, "trace") }
    })
}

const _: TRITONSERVER_InferenceTraceTensorNew = TRITONSERVER_InferenceTraceTensorNew;
/// Makes a trace of times and tensors.
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
        pointer::check_not_null(trace, "trace")?;
        let made =
            new_trace(level, parent_id, activity_fn, tensor_activity_fn, release_fn, trace_userp);
        // SAFETY: the caller's promise is passed on.
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
    let asks = |wanted: TRITONSERVER_InferenceTraceLevel| level.0 & wanted.0 != 0;
    let callbacks = Callbacks {
        // The first two levels are old names for the third.
        wants_times: asks(TRITONSERVER_TRACE_LEVEL_MIN)
            || asks(TRITONSERVER_TRACE_LEVEL_MAX)
            || asks(TRITONSERVER_TRACE_LEVEL_TIMESTAMPS),
        wants_tensors: asks(TRITONSERVER_TRACE_LEVEL_TENSORS) && tensor_activity.is_some(),
        activity,
        tensor_activity,
        release,
        userp,
    };
    TraceObject::give(parent_id, callbacks)
}

impl TraceObject {
    fn give(parent_id: u64, callbacks: Callbacks) -> *mut TRITONSERVER_InferenceTrace {
        handle::into_raw(Self {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            parent_id,
            callbacks,
            subject: Mutex::new(Subject {
                model_name: CString::default(),
                model_version: -1,
                request_id: CString::default(),
            }),
            context: Mutex::default(),
        })
    }

    /// A trace that has this one as its parent and tells the same functions.
    fn spawn(&self) -> *mut TRITONSERVER_InferenceTrace {
        Self::give(self.id, self.callbacks)
    }
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
        pointer::check_not_null(child_trace, "child_trace")?;
        // A request that is not traced needs no trace for what is made for it.
        let child = if trace.is_null() {
            core::ptr::null_mut()
        } else {
            // SAFETY: the caller's promise is passed on.
            unsafe { handle::borrow::<TraceObject>(trace, "trace")? }.spawn()
        };
        // SAFETY: as above.
        unsafe { pointer::write(child_trace, child, "child_trace") }
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
        if trace.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promises are passed on.
        let (object, name) = unsafe {
            let object = handle::borrow::<TraceObject>(trace, "trace")?;
            (object, pointer::required_text(activity_name, "activity_name")?)
        };
        if object.callbacks.wants_times {
            object.note_activity(timestamp, name);
        }
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
            /// Reads the trace; what is pointed to lives as long as it, or until it is
            /// changed.
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
                        pointer::write($place, read(object), stringify!($place))
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
        |trace| trace.subject().model_name.as_ptr();
    TRITONSERVER_InferenceTraceModelVersion(model_version: i64)
        |trace| trace.subject().model_version;
    TRITONSERVER_InferenceTraceRequestId(request_id: *const c_char)
        |trace| trace.subject().request_id.as_ptr();
    TRITONSERVER_InferenceTraceContext(trace_context: *const c_char)
        |trace| trace.context().as_ptr();
}

const _: TRITONSERVER_InferenceTraceSetContext = TRITONSERVER_InferenceTraceSetContext;
/// Sets the context that whoever started the trace wants carried along.
///
/// # Safety
///
/// `trace` must be null or a trace whose context nobody reads, the text null or ended
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
            let object = handle::borrow::<TraceObject>(trace, "trace")?;
            *object.context() = context.to_owned();
        }
        Ok(())
    })
}
