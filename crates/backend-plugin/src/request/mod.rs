//! Inference requests, which a plug-in holds from execution until release.

pub(crate) mod functions;
pub(crate) mod input;
pub(crate) mod state;

use core::ffi::{c_char, c_void};
use std::ffi::CString;
use std::sync::{Arc, OnceLock};

use galatea_abi::{
    TRITONSERVER_InferenceTrace, TRITONSERVER_PARAMETER_BOOL, TRITONSERVER_PARAMETER_DOUBLE,
    TRITONSERVER_PARAMETER_INT, TRITONSERVER_PARAMETER_STRING, TRITONSERVER_ParameterType,
};
use galatea_c_objects::error::to_c_string;
use galatea_c_objects::log;
use galatea_c_objects::output_query::OutputBufferQuery;
use galatea_c_objects::trace::{LentTrace, TraceAddress};
use galatea_infer::{
    CorrelationId, InputTensor, NOT_RESCHEDULED, Parameter, ParameterValue, PendingRequest,
    SequenceFlags, Status,
};
use galatea_stdx::Lock;

use crate::execution_recorder::ExecutionRecorder;
use crate::instance::InstanceGuard;
use crate::model::{Model, ServingModel};
use crate::owned::Owned;
use crate::response_channel::ResponseChannel;
use input::InputObject;
use state::{SharedState, StateObject};

/// A request as C sees it.
pub(crate) struct RequestObject {
    /// Dropped first, because a caller that observes the release may stop the model.
    pub(crate) channel: Arc<ResponseChannel>,
    /// Unchanged while C holds the request. The responder is in the channel.
    pending: PendingRequest,
    id: OnceLock<CString>,
    correlation_id: OnceLock<CString>,
    inputs: Box<[OnceLock<Owned<InputObject>>]>,
    /// The outputs that the client requested. A request that specifies none gets all outputs.
    outputs: OnceLock<Vec<CString>>,
    parameters: OnceLock<Vec<ParameterView>>,
    states: Lock<Vec<Owned<StateObject>>>,
    /// The states whose input and output share one buffer.
    shared_states: Vec<SharedState>,
    /// The inputs whose values apply to the whole batch.
    shape_tensors: Option<Arc<[String]>>,
    /// The request's trace, set when C asks for it.
    lent_trace: OnceLock<LentTrace>,
    /// Set while the request is queued and a batching strategy is examining it.
    queued_for: Option<Arc<Model>>,
    /// Dropped last, because the plug-in may be finalised as soon as the guard is dropped.
    pub(crate) instance_guard: InstanceGuard,
}
galatea_c_objects::object!(RequestObject as TRITONBACKEND_Request, kind 25);

/// A parameter whose strings are C strings.
struct ParameterView {
    name: CString,
    value: ValueView,
}

enum ValueView {
    Bool(bool),
    Int64(i64),
    Double(f64),
    String(CString),
}

impl RequestObject {
    pub(crate) fn new(
        mut pending: PendingRequest,
        serving: &ServingModel,
        instance_guard: InstanceGuard,
    ) -> Self {
        let responder = pending.take_responder();
        let channel = match responder {
            Some(responder) => match ResponseChannel::of_rescheduled(&responder) {
                Some(returned) => {
                    responder.discard();
                    returned
                }
                None => Arc::new(ResponseChannel::new(Some(responder), pending.request(), serving)),
            },
            None => Arc::new(ResponseChannel::new(None, pending.request(), serving)),
        };
        let count = pending.request().inputs.len();
        let shared_states = state::shared_states(&pending, serving);
        Self {
            channel,
            pending,
            id: OnceLock::new(),
            correlation_id: OnceLock::new(),
            inputs: (0..count).map(|_| OnceLock::new()).collect(),
            outputs: OnceLock::new(),
            parameters: OnceLock::new(),
            states: Lock::default(),
            shared_states,
            shape_tensors: serving.shape_tensors.clone(),
            lent_trace: OnceLock::new(),
            queued_for: None,
            instance_guard,
        }
    }

    /// Creates a request for a batching strategy to examine while it is queued for `model`.
    pub(crate) fn queued(
        pending: PendingRequest,
        serving: &ServingModel,
        model: Arc<Model>,
    ) -> Self {
        Self { queued_for: Some(model), ..Self::new(pending, serving, InstanceGuard::none()) }
    }

    /// The model that the request is for.
    pub(crate) fn model(&self) -> Option<&Model> {
        self.queued_for.as_deref().or_else(|| self.instance_guard.model())
    }

    /// Checks that the request is being executed, as most functions require.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if a batching strategy is examining the request.
    pub(crate) fn check_executed(&self) -> Result<(), Status> {
        if self.queued_for.is_none() {
            return Ok(());
        }
        Err(Status::invalid_argument(format!(
            "{}a queued request can only be looked at, not answered or released",
            self.log_prefix()
        )))
    }

    /// Removes the C state and returns the request, or `None` if it already has its final response.
    pub(crate) fn into_refused(mut self) -> Option<PendingRequest> {
        if !self.pending.is_padding() {
            self.pending.restore_responder(self.channel.take_responder()?);
        }
        Some(self.pending)
    }

    /// Releases the request as done. The sequence keeps the new states.
    pub(crate) fn release(mut self) {
        self.update_states();
    }

    /// Checks that the request may be released for rescheduling.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the model doesn't support rescheduling or the request already has its
    /// final response.
    pub(crate) fn check_reschedule(&self) -> Result<(), Status> {
        if self.pending.is_padding() {
            return Ok(());
        }
        if !self.pending.sequence().is_some_and(|step| step.iterative) {
            return Err(Status::invalid_argument(NOT_RESCHEDULED));
        }
        if !self.channel.is_open() {
            let why = "a request can't be rescheduled after its final response";
            return Err(Status::invalid_argument(why).prefixed(self.log_prefix()));
        }
        Ok(())
    }

    /// Releases the request for rescheduling. [`RequestObject::check_reschedule`] must have
    /// succeeded.
    pub(crate) fn reschedule(mut self) {
        self.update_states();
        if let Some(responder) = self.channel.rescheduled_responder() {
            self.pending.restore_responder(responder);
        }
        if let Err((_, status)) = self.pending.reschedule() {
            log::error(status.message());
        }
    }

    /// The request's execution recorder; `None` for padding.
    pub(crate) fn recorder(&self) -> Option<ExecutionRecorder> {
        let statistics = self.channel.statistics()?.clone();
        Some(ExecutionRecorder { statistics, trace: self.pending.trace().map(Arc::downgrade) })
    }

    /// The request's trace, or null.
    fn trace(&self) -> *mut TRITONSERVER_InferenceTrace {
        let Some(trace) = self.pending.trace().filter(|trace| trace.is_traced()) else {
            return core::ptr::null_mut();
        };
        match trace.backing_object().and_then(|origin| origin.downcast_ref::<TraceAddress>()) {
            Some(address) => address.0,
            None => self.lent_trace.get_or_init(|| LentTrace::new(trace.clone())).address(),
        }
    }

    /// The query for output memory, if the request came through the C API.
    fn output_query(&self) -> Option<&OutputBufferQuery> {
        self.pending.request().output_query.as_ref()?.downcast_ref()
    }

    fn update_states(&mut self) {
        let states = std::mem::take(&mut *self.states.lock("take all states"));
        for state in states.into_iter().filter_map(Owned::into_inner) {
            if let Some((name, shape, data)) = state.into_update(&mut self.shared_states) {
                // The name was validated when the state was created.
                let _ = self.pending.update_state(&name, shape, data);
            }
        }
    }

    pub(crate) fn log_prefix(&self) -> String {
        self.pending.request().log_prefix()
    }

    fn id(&self) -> *const c_char {
        self.id.get_or_init(|| to_c_string(&self.pending.request().id)).as_ptr()
    }

    fn sequence(&self) -> (&CorrelationId, SequenceFlags) {
        match self.pending.sequence() {
            Some(step) => (&step.correlation_id, step.flags),
            None => {
                let request = self.pending.request();
                (&request.correlation_id, request.sequence_flags)
            }
        }
    }

    fn correlation_text(&self) -> Option<*const c_char> {
        let CorrelationId::Text(text) = self.sequence().0 else { return None };
        Some(self.correlation_id.get_or_init(|| to_c_string(text)).as_ptr())
    }

    fn tensors(&self) -> &[InputTensor] {
        &self.pending.request().inputs
    }

    /// The input at this index. Its object is created on first use.
    fn input(&self, index: usize) -> Option<&Owned<InputObject>> {
        let tensor = self.tensors().get(index)?;
        let slot = self.inputs.get(index)?;
        Some(slot.get_or_init(|| {
            let shared = self.shared_states.iter().find(|shared| shared.input_name == tensor.name);
            let input = InputObject::new(tensor, shared.map(SharedState::view));
            let is_shape =
                self.shape_tensors.as_ref().is_some_and(|all| all.contains(&tensor.name));
            let batch_size = is_shape.then(|| i64::from(self.pending.batch_size()));
            Owned::new(match batch_size {
                Some(batch_size) => input.with_batch_size(batch_size),
                None => input,
            })
        }))
    }

    fn outputs<'a>(&'a self, serving: &'a ServingModel) -> &'a [CString] {
        let request = self.pending.request();
        // Padding has no outputs.
        if request.outputs.is_empty() && !self.pending.is_padding() {
            return &serving.all_outputs;
        }
        self.outputs.get_or_init(|| {
            let mut names: Vec<CString> =
                request.outputs.iter().map(|name| to_c_string(name)).collect();
            names.sort();
            names.dedup();
            names
        })
    }

    fn parameters(&self) -> &[ParameterView] {
        self.parameters.get_or_init(|| {
            self.pending.request().parameters.iter().map(ParameterView::new).collect()
        })
    }
}

impl ParameterView {
    fn new(parameter: &Parameter) -> Self {
        let value = match &parameter.value {
            ParameterValue::Bool(value) => ValueView::Bool(*value),
            ParameterValue::Int64(value) => ValueView::Int64(*value),
            ParameterValue::Double(value) => ValueView::Double(*value),
            ParameterValue::String(text) => ValueView::String(to_c_string(text)),
        };
        Self { name: to_c_string(&parameter.name), value }
    }

    /// The parameter's type and the address of its value.
    fn view(&self) -> (TRITONSERVER_ParameterType, *const c_void) {
        match &self.value {
            ValueView::Bool(value) => {
                (TRITONSERVER_PARAMETER_BOOL, core::ptr::from_ref(value).cast())
            }
            ValueView::Int64(value) => {
                (TRITONSERVER_PARAMETER_INT, core::ptr::from_ref(value).cast())
            }
            ValueView::Double(value) => {
                (TRITONSERVER_PARAMETER_DOUBLE, core::ptr::from_ref(value).cast())
            }
            ValueView::String(text) => (TRITONSERVER_PARAMETER_STRING, text.as_ptr().cast()),
        }
    }
}
