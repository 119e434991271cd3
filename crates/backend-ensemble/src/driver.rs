//! Performs the dataflow machine's actions for one request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use galatea_backend::LogLevel;
use galatea_infer::{
    AccessPass, CancelToken, FailureReason, Finality, InferenceResponse, InputTensor, OutputTensor,
    PendingRequest, Reply, Responder, ResponseSender, Status,
};
use galatea_policy::{
    EnsembleAction, EnsembleRun, EnsembleRunFailure, EnsembleTensorIndex, StepCallKey, StepIndex,
};

use crate::call::{CallInputs, CallSink, CallTemplate, NewCall, batch_size};
use crate::ensemble::Ensemble;
use crate::event::{RunEvent, RunInbox};
use crate::gates::WithdrawalResult;
use crate::tensor::{SequencePosition, StepTensor};
use crate::times::{StepTimes, batch_times};

type DriverAction = EnsembleAction<Arc<StepTensor>>;

/// A run's state. One thread at a time owns it.
pub(crate) struct RunDriver {
    ensemble: Arc<Ensemble>,
    machine: EnsembleRun<Arc<StepTensor>>,
    /// Actions of the state machine that have not been performed yet.
    actions: Vec<DriverAction>,
    calls: BTreeMap<StepCallKey, StepCall>,
    template: CallTemplate,
    /// `None` once the request has failed.
    responder: Option<Responder>,
    batch_size: u32,
    /// The latest response. It is held back because it may be the last one.
    held_response: Option<InferenceResponse>,
    /// The error of a failed call.
    failure: Option<Status>,
    /// The step of a call that has ended but still occupies a place in its gate.
    ended_step: Option<StepIndex>,
    start: Instant,
    progress: RunProgress,
}

/// Indicates if a run needs more events.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum RunProgress {
    Ongoing,
    Finished,
}

/// A request to a composing model.
struct StepCall {
    step: StepIndex,
    phase: CallPhase,
}

/// `AtGate` → `Sent`, or `AtGate` → `Cancelled`.
enum CallPhase {
    /// The call is waiting for admission.
    AtGate(CallInputs),
    /// The call was cancelled after its gate admitted it. The admission event is on its way.
    Cancelled,
    /// The request has been sent.
    Sent(SentCall),
}

struct SentCall {
    cancel: CancelToken,
    sequence: Arc<SequencePosition>,
    batch_size: Option<u32>,
    has_responded: bool,
}

impl RunDriver {
    /// Creates the driver for a new request; `None` if the request has already been cancelled.
    pub(crate) fn new(ensemble: &Arc<Ensemble>, mut pending: PendingRequest) -> Option<Self> {
        let start = Instant::now();
        let responder = pending.take_responder()?;
        let batch_size = pending.batch_size();
        let plan = &ensemble.plan;
        let mut given = std::mem::take(pending.inputs_mut());
        let request = pending.request().clone();
        if request.cancel.is_cancelled() {
            let status = prefixed(ensemble, &request.log_prefix(), cancelled());
            fail_twice(responder, status);
            return None;
        }
        let batch = plan.batches.then_some(batch_size);
        let inputs = plan.inputs.iter().map(|input| {
            let index = given.iter().position(|tensor| tensor.name == input.name);
            let tensor = index.map(|index| given.swap_remove(index)).map(|tensor| {
                let InputTensor { datatype, shape, data, .. } = tensor;
                Arc::new(StepTensor { datatype, shape, data, batch_size: batch, sequence: None })
            });
            (input.tensor, tensor)
        });
        let inputs = inputs.collect();
        let wanted = plan.outputs.iter().filter(|output| request.wants_output(&output.name));
        let wanted = wanted.map(|output| output.tensor).collect();
        let mut actions = Vec::new();
        let machine = EnsembleRun::begin(&plan.graph, inputs, wanted, &mut actions);
        let times = Arc::new(StepTimes::default());
        let trace = pending.take_trace();
        let sequence = Arc::new(SequencePosition {
            correlation_id: request.correlation_id.clone(),
            flags: request.sequence_flags,
        });
        Some(Self {
            ensemble: ensemble.clone(),
            machine,
            actions,
            calls: BTreeMap::new(),
            template: CallTemplate { request, sequence, times, trace },
            responder: Some(responder),
            batch_size,
            held_response: None,
            failure: None,
            ended_step: None,
            start,
            progress: RunProgress::Ongoing,
        })
    }

    /// Passes an event to the state machine and performs the resulting actions.
    pub(crate) fn handle(&mut self, run: &Arc<dyn RunInbox>, event: RunEvent) -> RunProgress {
        match event {
            RunEvent::Begin => {}
            RunEvent::Admitted(_, call) => self.handle_admission(run, call),
            RunEvent::Reply(call, reply) => self.handle_reply(call, reply),
            RunEvent::Cancelled => {
                self.machine.cancel(&self.ensemble.plan.graph, &mut self.actions);
            }
        }
        while !self.actions.is_empty() {
            for action in std::mem::take(&mut self.actions) {
                self.perform(run, action);
            }
        }
        self.send_held_response();
        // The gate is left last. By then, the following calls have entered their gates, so that the
        // admission of other calls takes them into account.
        self.leave_gate();
        self.progress
    }

    /// The request's pending work: responses of decoupled steps that are waiting for other tensors
    /// and, without gates, calls.
    pub(crate) fn load(&self) -> usize {
        let calls = if self.ensemble.gates.is_some() { 0 } else { self.calls.len() };
        self.machine.pending_decoupled_responses().saturating_add(calls)
    }

    fn perform(&mut self, run: &Arc<dyn RunInbox>, action: DriverAction) {
        match action {
            EnsembleAction::Start { call, step, inputs } => {
                self.calls.insert(call, StepCall { step, phase: CallPhase::AtGate(inputs) });
                match &self.ensemble.gates {
                    Some(gates) => gates.enter(step, run, call),
                    None => self.send(run, call),
                }
            }
            EnsembleAction::CancelCall(call) => self.cancel_call(run, call),
            EnsembleAction::Respond { outputs } => self.respond(&outputs),
            EnsembleAction::Fail(failure) => self.fail(failure),
            EnsembleAction::Finished => self.finish(),
        }
    }

    fn handle_admission(&mut self, run: &Arc<dyn RunInbox>, key: StepCallKey) {
        match self.calls.get(&key).map(|call| &call.phase) {
            Some(CallPhase::AtGate(_)) => self.send(run, key),
            Some(CallPhase::Cancelled | CallPhase::Sent(_)) | None => self.call_finished(key),
        }
    }

    fn send(&mut self, run: &Arc<dyn RunInbox>, key: StepCallKey) {
        let Some(call) = self.calls.get_mut(&key) else { return };
        let CallPhase::AtGate(inputs) = &mut call.phase else { return };
        let (step, inputs) = (call.step, std::mem::take(inputs));
        let sequence = self.template.sequence_of(&inputs).unwrap_or_else(|first| {
            let plan = &self.ensemble.plan;
            let line = format!(
                "inputs of step {} (model '{}') of ensemble '{}' belong to different sequences, or \
                 to different places in one; the first one counts",
                step.0,
                plan.step(step).model,
                plan.name
            );
            self.ensemble.host.log(LogLevel::Error, &line);
            first
        });
        let cancel = CancelToken::new();
        let new_call = NewCall { step, inputs: &inputs, sequence: &sequence, cancel: &cancel };
        let request = self.template.request(&self.ensemble, run, &new_call);
        drop(inputs);
        let request = match request {
            Ok(request) => request,
            Err(status) => return self.call_failed(key, status),
        };
        let batch_size = batch_size(self.ensemble.plan.step(step), &request);
        let sent = SentCall { cancel, sequence, batch_size, has_responded: false };
        call.phase = CallPhase::Sent(sent);
        let sink = CallSink { run: run.clone(), call: key };
        // The caller of the ensemble has already been admitted.
        let (pass, sender) = (AccessPass::in_process(), ResponseSender::new(Box::new(sink)));
        self.ensemble.models.infer(pass, Box::new(request), sender);
    }

    fn handle_reply(&mut self, call: StepCallKey, reply: Reply) {
        match reply {
            Reply::Finished => self.call_finished(call),
            Reply::Response { result, finality } => {
                let outputs = result.and_then(|response| self.map_outputs(call, response));
                match (outputs, finality) {
                    (Ok(outputs), Finality::More) => self.call_responded(call, outputs),
                    (Ok(outputs), Finality::Final | Finality::EndApart) => {
                        self.call_responded(call, outputs);
                        self.call_finished(call);
                    }
                    (Err(status), Finality::More) => {
                        self.record_failure(call, status);
                        let graph = &self.ensemble.plan.graph;
                        self.machine.call_responded_with_error(graph, call, &mut self.actions);
                    }
                    (Err(status), Finality::Final | Finality::EndApart) => {
                        self.call_failed(call, status);
                    }
                }
            }
        }
    }

    /// The outputs in a response that become tensors of the ensemble.
    fn map_outputs(
        &mut self,
        key: StepCallKey,
        response: InferenceResponse,
    ) -> Result<Vec<(EnsembleTensorIndex, Arc<StepTensor>)>, Status> {
        let broken = || Status::internal("a response came to a request that was not sent");
        let call = self.calls.get_mut(&key).ok_or_else(broken)?;
        let step = self.ensemble.plan.step(call.step);
        let CallPhase::Sent(sent) = &mut call.phase else { return Err(broken()) };
        if sent.has_responded && !step.decoupled {
            return Err(Status::internal("expected a single response, got more"));
        }
        sent.has_responded = true;
        let sequence = SequencePosition::of_response(&sent.sequence, &response)?;
        let mut outputs = Vec::with_capacity(step.outputs.len());
        for OutputTensor { name, datatype, shape, data } in response.outputs {
            // Outputs without a mapping are dropped.
            if let Some(output) = step.outputs.iter().find(|output| *output.name == *name) {
                let (batch_size, sequence) = (sent.batch_size, Some(sequence.clone()));
                let tensor = StepTensor { datatype, shape, data, batch_size, sequence };
                outputs.push((output.tensor, Arc::new(tensor)));
            }
        }
        Ok(outputs)
    }

    fn call_responded(
        &mut self,
        call: StepCallKey,
        outputs: Vec<(EnsembleTensorIndex, Arc<StepTensor>)>,
    ) {
        let graph = &self.ensemble.plan.graph;
        self.machine.call_responded(graph, call, outputs, &mut self.actions);
    }

    fn call_finished(&mut self, call: StepCallKey) {
        if self.remove_call(call) {
            self.machine.call_finished(&self.ensemble.plan.graph, call, &mut self.actions);
        }
    }

    fn call_failed(&mut self, call: StepCallKey, status: Status) {
        self.record_failure(call, status);
        if self.remove_call(call) {
            self.machine.call_failed(&self.ensemble.plan.graph, call, &mut self.actions);
        }
    }

    /// Records the first failure, which becomes the failure of the request.
    fn record_failure(&mut self, call: StepCallKey, status: Status) {
        if let Some(call) = self.calls.get(&call) {
            let step = call.step.0;
            let model = &self.ensemble.plan.step(call.step).model;
            let line = format!(
                "step {step} (model '{}') of ensemble '{}' failed: {}",
                model,
                self.ensemble.plan.name,
                status.message()
            );
            self.ensemble.host.log(LogLevel::Verbose(1), &line);
            self.failure.get_or_insert(status);
        }
    }

    /// Removes an admitted call that has ended. Returns true if the call was known.
    fn remove_call(&mut self, call: StepCallKey) -> bool {
        self.leave_gate();
        self.ended_step = self.calls.remove(&call).map(|call| call.step);
        self.ended_step.is_some()
    }

    /// Releases the gate place of the call that has ended.
    fn leave_gate(&mut self) {
        if let (Some(gates), Some(step)) = (&self.ensemble.gates, self.ended_step.take()) {
            gates.leave(step);
        }
    }

    fn cancel_call(&mut self, run: &Arc<dyn RunInbox>, key: StepCallKey) {
        let Some(call) = self.calls.get(&key) else { return };
        match &call.phase {
            CallPhase::Sent(sent) => return sent.cancel.cancel(),
            CallPhase::Cancelled => return,
            CallPhase::AtGate(_) => {}
        }
        let withdrawal = match &self.ensemble.gates {
            Some(gates) => gates.withdraw(call.step, run, key),
            None => WithdrawalResult::Withdrawn,
        };
        match withdrawal {
            WithdrawalResult::AlreadyAdmitted => {
                if let Some(call) = self.calls.get_mut(&key) {
                    call.phase = CallPhase::Cancelled;
                }
            }
            WithdrawalResult::Withdrawn => {
                self.calls.remove(&key);
                self.machine.call_finished(&self.ensemble.plan.graph, key, &mut self.actions);
            }
        }
    }

    fn respond(&mut self, outputs: &[(EnsembleTensorIndex, Option<Arc<StepTensor>>)]) {
        match self.response(outputs) {
            Ok(response) => {
                self.send_held_response();
                self.held_response = Some(response);
            }
            Err(status) => self.send_failure(status),
        }
    }

    fn response(
        &self,
        outputs: &[(EnsembleTensorIndex, Option<Arc<StepTensor>>)],
    ) -> Result<InferenceResponse, Status> {
        let plan = &self.ensemble.plan;
        let mut response = InferenceResponse {
            model_name: plan.name.clone(),
            model_version: plan.version,
            id: self.template.request.id.clone(),
            parameters: Default::default(),
            outputs: Vec::with_capacity(outputs.len()),
        };
        for output in &plan.outputs {
            let found = outputs.iter().find(|(tensor, _)| *tensor == output.tensor);
            let Some((_, tensor)) = found else { continue };
            // As in Triton, the ensemble omits an output that a model omitted.
            let Some(tensor) = tensor else {
                let line = format!("Composing models did not output tensor {}", output.name);
                self.ensemble.host.log(LogLevel::Verbose(1), &line);
                continue;
            };
            if let Some(sequence) = &tensor.sequence {
                response.parameters = sequence.parameters().into();
            }
            let mut data = tensor.data.clone();
            if !self.template.request.device_outputs.include(&output.name) {
                // The tensor is an input, or a step produced it in GPU memory for other steps.
                data.make_owned()?;
            }
            response.outputs.push(OutputTensor {
                name: output.name.clone(),
                datatype: tensor.datatype,
                shape: tensor.shape_for(&output.dims, plan.batches)?,
                data,
            });
        }
        Ok(response)
    }

    /// Sends the held-back response, once it is known not to be the last one.
    fn send_held_response(&mut self) {
        if let (Some(response), Some(responder)) = (self.held_response.take(), &mut self.responder)
        {
            responder.respond_nonfinal(Ok(response));
        }
    }

    fn fail(&mut self, failure: EnsembleRunFailure) {
        let prefix = self.template.request.log_prefix();
        let status = match failure {
            EnsembleRunFailure::Step(_) => {
                let status =
                    self.failure.take().unwrap_or_else(|| Status::internal("a step failed"));
                prefixed(&self.ensemble, "", status)
            }
            EnsembleRunFailure::Cancelled => prefixed(&self.ensemble, &prefix, cancelled()),
            EnsembleRunFailure::Deadlock => {
                let text = "unexpected deadlock, at least one output is not set while no more \
                            ensemble steps can be made";
                prefixed(&self.ensemble, &prefix, Status::invalid_argument(text))
            }
        };
        self.send_failure(status);
    }

    fn send_failure(&mut self, status: Status) {
        self.send_held_response();
        if let Some(responder) = self.responder.take() {
            fail_twice(responder, status);
        }
    }

    fn finish(&mut self) {
        self.progress = RunProgress::Finished;
        let Some(responder) = self.responder.take() else { return };
        let execution = self.template.times.execution(self.start, Instant::now());
        let host = &self.ensemble.host;
        host.record_batch(u64::from(self.batch_size), &batch_times(&execution));
        match self.held_response.take() {
            Some(response) => responder.complete(Ok(response), execution),
            None => responder.finish_without_response(execution),
        }
    }
}

impl Drop for RunDriver {
    /// A panic leaves calls behind. Their gate places are freed for other runs.
    fn drop(&mut self) {
        self.leave_gate();
        let Some(gates) = &self.ensemble.gates else { return };
        for call in self.calls.values() {
            match call.phase {
                // The run releases the place when the gate admits the call.
                CallPhase::AtGate(_) | CallPhase::Cancelled => {}
                CallPhase::Sent(_) => gates.leave(call.step),
            }
        }
    }
}

/// A status as the ensemble reports it, with Triton's prefix.
fn prefixed(ensemble: &Ensemble, prefix: &str, status: Status) -> Status {
    status.prefixed(format!("in ensemble '{}', {prefix}", ensemble.plan.name))
}

/// Fails a request. Triton counts an ensemble's failure twice: when the request ends and when its
/// error is sent.
fn fail_twice(responder: Responder, status: Status) {
    responder.statistics().report_failure(FailureReason::Other);
    responder.fail(status, FailureReason::Other);
}

fn cancelled() -> Status {
    Status::cancelled("Request cancelled")
}
