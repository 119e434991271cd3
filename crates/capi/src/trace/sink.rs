//! The trace sink for C traces.

use core::ffi::CStr;
use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use galatea_abi::*;
use galatea_c_objects::clock::ClockConverter;
use galatea_c_objects::error::to_c_string;
use galatea_c_objects::handle;
use galatea_c_objects::names::data_type_to_c;
use galatea_c_objects::trace::{OwnedTracedRequest, TraceAddress, TraceObject};
use galatea_infer::{
    TensorTracePoint, Trace, TraceIdentity, TracePoint, TraceSink, TraceSubject, TracedTensor,
};
use galatea_stdx::{len64, run_foreign_code};

use super::{record_activity_name, report};
use crate::borrowed_request::BorrowedRequest;

/// Calls a C trace's callbacks. Dropping the sink releases the trace.
pub(crate) struct CTraceSink {
    trace: TraceAddress,
    owner: TraceOwner,
}

enum TraceOwner {
    /// The caller that passed the trace with a request. The request is released after the trace.
    Caller { _request: Arc<BorrowedRequest> },
    /// The server, which created the trace for one of its own requests.
    Server,
}

impl CTraceSink {
    /// Begins the trace of a request that is handed over together with a C trace.
    pub(crate) fn begin(
        trace: *mut TRITONSERVER_InferenceTrace,
        request: &Arc<BorrowedRequest>,
    ) -> Arc<Trace> {
        let owner = TraceOwner::Caller { _request: request.clone() };
        Trace::new(Box::new(Self { trace: TraceAddress(trace), owner }))
    }

    fn object(&self) -> Option<&TraceObject> {
        // SAFETY: the trace was handed over and isn't released before the drop, and everything that
        // changes in it is protected by a lock.
        unsafe { handle::borrow(self.trace.0, "trace") }.ok()
    }

    fn report(&self, activity: TRITONSERVER_InferenceTraceActivity, at: Instant) {
        if let Some(object) = self.object() {
            report(self.trace.0, object, activity, ClockConverter::shared().ns(at));
        }
    }
}

impl std::fmt::Debug for CTraceSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.trace.fmt(f)
    }
}

impl TraceSink for CTraceSink {
    fn wants_tensors(&self) -> bool {
        self.object()
            .and_then(TraceObject::callbacks)
            .is_some_and(|callbacks| callbacks.wants_tensors)
    }

    fn begin(&self, subject: &TraceSubject<'_>) {
        if let Some(object) = self.object() {
            *object.subject.lock("set the subject") = OwnedTracedRequest {
                model_name: to_c_string(subject.model_name),
                model_version: subject.model_version,
                request_id: to_c_string(subject.request_id),
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
        let Some(callbacks) = self.object().and_then(TraceObject::callbacks) else { return };
        let Some(call) = callbacks.tensor_activity else { return };
        let mut readable = tensor.data.clone();
        if readable.make_owned().is_err() {
            return;
        }
        let Some(bytes) = readable.host_bytes() else { return };
        let activity = match point {
            TensorTracePoint::QueueInput => TRITONSERVER_TRACE_TENSOR_QUEUE_INPUT,
            TensorTracePoint::BackendOutput => TRITONSERVER_TRACE_TENSOR_BACKEND_OUTPUT,
        };
        let name = to_c_string(tensor.name);
        // SAFETY: the caller set a function that accepts these arguments on any thread, and all
        // pointers are valid during the call.
        run_foreign_code(|| unsafe {
            call(
                self.trace.0,
                activity,
                name.as_ptr(),
                data_type_to_c(tensor.datatype),
                bytes.as_ptr().cast(),
                bytes.len(),
                tensor.dims.as_ptr(),
                len64(tensor.dims.len()),
                TRITONSERVER_MEMORY_CPU,
                0,
                callbacks.userp,
            );
        });
    }

    fn end(&self) {
        self.report(TRITONSERVER_TRACE_REQUEST_END, Instant::now());
    }

    fn child(&self) -> Option<Box<dyn TraceSink>> {
        let trace = TraceAddress(self.object()?.spawn());
        if trace.0.is_null() {
            return None;
        }
        Some(Box::new(Self { trace, owner: TraceOwner::Server }))
    }

    fn record_activity(&self, name: &str, at: Instant) {
        let Some(object) = self.object() else { return };
        if object.callbacks().is_some_and(|callbacks| callbacks.wants_times) {
            let at_ns = ClockConverter::shared().ns(at);
            record_activity_name(object, at_ns, name);
            report(self.trace.0, object, TRITONSERVER_TRACE_CUSTOM_ACTIVITY, at_ns);
        }
    }

    fn identity(&self) -> TraceIdentity {
        let Some(object) = self.object() else { return TraceIdentity::default() };
        let text = |text: &CStr| text.to_string_lossy().into_owned();
        let subject = object.subject.lock("read the subject");
        TraceIdentity {
            id: object.id,
            parent_id: object.parent_id,
            context: text(&object.context.lock("read the context")),
            model_name: text(&subject.model_name),
            model_version: subject.model_version,
            request_id: text(&subject.request_id),
        }
    }

    fn underlying(&self) -> Option<&dyn Any> {
        Some(&self.trace)
    }
}

impl Drop for CTraceSink {
    fn drop(&mut self) {
        let Some(callbacks) = self.object().and_then(TraceObject::callbacks).copied() else {
            return;
        };
        match (callbacks.release, &self.owner) {
            (Some(release), _) => {
                // SAFETY: the caller set a function that accepts these arguments on any thread, and
                // the trace is released once.
                run_foreign_code(|| unsafe { release(self.trace.0, callbacks.userp) });
            }
            // No other code refers to the trace.
            (None, TraceOwner::Server) => {
                // SAFETY: the trace was created here.
                drop(unsafe { handle::take::<TraceObject>(self.trace.0, "trace") });
            }
            (None, TraceOwner::Caller { .. }) => {}
        }
    }
}
