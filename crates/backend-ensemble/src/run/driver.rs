//! Performs what the dataflow machine decides for one request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use galatea_backend::LogLevel;
use galatea_infer::{
    CancelToken, FailureReason, Finality, InferenceResponse, OutputTensor, PendingRequest, Reply,
    Responder, ResponseSender, Status,
};
use galatea_policy::{
    EnsembleAction, EnsembleRun, RunFailure, StepCallKey, StepIndex, TensorIndex,
};

use super::{Event, Run};
use crate::call::{CallInputs, CallSink, NewCall, Whole, batch_size};
use crate::gates::Withdrawn;
use crate::model::Ensemble;
use crate::tensor::{Carried, SequencePlace};
use crate::times::{StepTimes, as_batch};

type Action = EnsembleAction<Arc<Carried>>;

/// Everything that a request is on its way. Whoever has it drives the run.
pub(super) struct Driver {
    ensemble: Arc<Ensemble>,
    machine: EnsembleRun<Arc<Carried>>,
    /// What the machine decided and nobody did yet.
    decided: Vec<Action>,
    calls: BTreeMap<StepCallKey, Call>,
    whole: Whole,
    /// None when the request has failed.
    responder: Option<Responder>,
    batch_size: u32,
    /// A response that may turn out to be the last.
    ready: Option<InferenceResponse>,
    /// The error of a call that failed.
    failure: Option<(StepIndex, Status)>,
    /// The step of a call that is over and has not given its place back.
    left: Option<StepIndex>,
    start: Instant,
    progress: Progress,
}

/// Whether anything more will happen.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    GoesOn,
    Over,
}

/// A request to a composing model, from the decision on.
struct Call {
    step: StepIndex,
    phase: Phase,
}

enum Phase {
    /// It waits for the requests of others.
    AtGate(CallInputs),
    /// It was cancelled when it might start already, which the run learns next.
    Unwanted,
    /// It was sent.
    Sent(Sent),
}

struct Sent {
    cancel: CancelToken,
    sequence: Arc<SequencePlace>,
    batch: Option<u32>,
    responses: Responses,
}

/// Whether a call has had a response; models that are not decoupled give one.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Responses {
    None,
    Some,
}

impl Driver {
    /// The driver of a request that is to begin; `None` if it ended before.
    pub(super) fn new(ensemble: &Arc<Ensemble>, mut pending: PendingRequest) -> Option<Self> {
        let start = Instant::now();
        let responder = pending.take_responder()?;
        let batch_size = pending.batch_size();
        let plan = &ensemble.plan;
        let mut brought = std::mem::take(pending.inputs_mut());
        let request = pending.request().clone();
        if request.cancel.is_cancelled() {
            let status = named(ensemble, &request.log_prefix(), cancelled());
            responder.fail(status, FailureReason::Other);
            return None;
        }
        let batch = plan.batches.then_some(batch_size);
        let inputs = plan.inputs.iter().map(|input| {
            let place = brought.iter().position(|one| one.name == input.name);
            let carried = place.map(|place| brought.swap_remove(place)).map(|one| {
                let (datatype, shape, data) = (one.datatype, one.shape, one.data);
                Arc::new(Carried { datatype, shape, data, batch, sequence: None })
            });
            (input.tensor, carried)
        });
        let inputs = inputs.collect();
        let wanted = plan.outputs.iter().filter(|output| request.wants_output(&output.name));
        let wanted = wanted.map(|output| output.tensor).collect();
        let mut decided = Vec::new();
        let machine = EnsembleRun::begin(&plan.graph, inputs, wanted, &mut decided);
        let times = Arc::new(StepTimes::default());
        let trace = pending.take_trace();
        let sequence = Arc::new(SequencePlace {
            correlation_id: request.correlation_id.clone(),
            flags: request.sequence_flags,
        });
        Some(Self {
            ensemble: ensemble.clone(),
            machine,
            decided,
            calls: BTreeMap::new(),
            whole: Whole { request, sequence, times, trace },
            responder: Some(responder),
            batch_size,
            ready: None,
            failure: None,
            left: None,
            start,
            progress: Progress::GoesOn,
        })
    }

    /// Takes an event to the machine and does what it decides.
    pub(super) fn handle(&mut self, run: &Arc<Run>, event: Event) -> Progress {
        match event {
            Event::Begin => {}
            Event::Admitted(_, call) => self.admitted(run, call),
            Event::Reply(call, reply) => self.reply(call, reply),
            Event::Cancelled => {
                self.machine.cancel(&self.ensemble.plan.graph, &mut self.decided);
            }
        }
        while !self.decided.is_empty() {
            for action in std::mem::take(&mut self.decided) {
                self.perform(run, action);
            }
        }
        self.send_ready();
        // Behind what follows from it: who comes next should see that.
        if let (Some(gates), Some(step)) = (&self.ensemble.gates, self.left.take()) {
            gates.leave(step);
        }
        self.progress
    }

    /// What piles up in the request: responses of decoupled steps that wait for
    /// other tensors and, without gates, calls that are under way.
    pub(super) fn load(&self) -> usize {
        let calls = if self.ensemble.gates.is_some() { 0 } else { self.calls.len() };
        self.machine.pending_waves().saturating_add(calls)
    }

    fn perform(&mut self, run: &Arc<Run>, action: Action) {
        match action {
            EnsembleAction::Start { call, step, inputs } => {
                self.calls.insert(call, Call { step, phase: Phase::AtGate(inputs) });
                match &self.ensemble.gates {
                    Some(gates) => gates.enter(step, run, call),
                    None => self.send(run, call),
                }
            }
            EnsembleAction::CancelCall(call) => self.cancel_call(run, call),
            EnsembleAction::Respond { outputs } => self.respond(&outputs),
            EnsembleAction::Fail(failure) => self.fail(failure),
            EnsembleAction::Finished => self.end(),
        }
    }

    fn admitted(&mut self, run: &Arc<Run>, key: StepCallKey) {
        match self.calls.get(&key).map(|call| &call.phase) {
            Some(Phase::AtGate(_)) => self.send(run, key),
            Some(Phase::Unwanted | Phase::Sent(_)) | None => self.call_finished(key),
        }
    }

    fn send(&mut self, run: &Arc<Run>, key: StepCallKey) {
        let Some(call) = self.calls.get_mut(&key) else { return };
        let Phase::AtGate(inputs) = &mut call.phase else { return };
        let (step, inputs) = (call.step, std::mem::take(inputs));
        let sequence = self.whole.sequence_of(&inputs).unwrap_or_else(|first| {
            let plan = &self.ensemble.plan;
            let line = format!(
                "inputs of step {} (model '{}') of ensemble '{}' belong to different sequences, or \
                 to different places in one; the first one counts",
                step.0,
                plan.step(step).model.escape_debug(),
                plan.name.escape_debug()
            );
            self.ensemble.host.log(LogLevel::Error, &line);
            first
        });
        let cancel = CancelToken::new();
        let new = NewCall { step, inputs: &inputs, sequence: &sequence, cancel: &cancel };
        let request = self.whole.request(&self.ensemble, run, &new);
        drop(inputs);
        let request = match request {
            Ok(request) => request,
            Err(status) => return self.call_failed(key, status),
        };
        let batch = batch_size(self.ensemble.plan.step(step), &request);
        let responses = Responses::None;
        call.phase = Phase::Sent(Sent { cancel, sequence, batch, responses });
        let sink = CallSink { run: run.clone(), call: key };
        self.ensemble.models.infer(request, ResponseSender::new(Box::new(sink)));
    }

    fn reply(&mut self, call: StepCallKey, reply: Reply) {
        match reply {
            Reply::Finished => self.call_finished(call),
            Reply::Response { result, finality } => {
                let outputs = result.and_then(|response| self.take_response(call, response));
                match (outputs, finality) {
                    (Ok(outputs), Finality::More) => self.call_responded(call, outputs),
                    (Ok(outputs), Finality::Final) => {
                        self.call_responded(call, outputs);
                        self.call_finished(call);
                    }
                    (Err(status), Finality::More) => {
                        self.note_failure(call, status);
                        let graph = &self.ensemble.plan.graph;
                        self.machine.error_before_end(graph, call, &mut self.decided);
                    }
                    (Err(status), Finality::Final) => self.call_failed(call, status),
                }
            }
        }
    }

    /// What a response has for the ensemble.
    fn take_response(
        &mut self,
        key: StepCallKey,
        response: InferenceResponse,
    ) -> Result<Vec<(TensorIndex, Arc<Carried>)>, Status> {
        let broken = || Status::internal("a response came to a request that was not sent");
        let call = self.calls.get_mut(&key).ok_or_else(broken)?;
        let step = self.ensemble.plan.step(call.step);
        let Phase::Sent(sent) = &mut call.phase else { return Err(broken()) };
        if sent.responses == Responses::Some && !step.decoupled {
            return Err(Status::internal("expected a single response, got more"));
        }
        sent.responses = Responses::Some;
        let sequence = SequencePlace::of_response(&sent.sequence, &response)?;
        let mut outputs = Vec::with_capacity(step.outputs.len());
        for OutputTensor { name, datatype, shape, data } in response.outputs {
            // What is not mapped is nobody's.
            if let Some(output) = step.outputs.iter().find(|output| *output.name == *name) {
                let (batch, sequence) = (sent.batch, Some(sequence.clone()));
                let carried = Carried { datatype, shape, data, batch, sequence };
                outputs.push((output.tensor, Arc::new(carried)));
            }
        }
        Ok(outputs)
    }

    fn call_responded(&mut self, call: StepCallKey, outputs: Vec<(TensorIndex, Arc<Carried>)>) {
        let graph = &self.ensemble.plan.graph;
        self.machine.responded(graph, call, outputs, &mut self.decided);
    }

    fn call_finished(&mut self, call: StepCallKey) {
        if self.forget(call) {
            self.machine.finished(&self.ensemble.plan.graph, call, &mut self.decided);
        }
    }

    fn call_failed(&mut self, call: StepCallKey, status: Status) {
        self.note_failure(call, status);
        if self.forget(call) {
            self.machine.failed(&self.ensemble.plan.graph, call, &mut self.decided);
        }
    }

    /// The first failure is the request's.
    fn note_failure(&mut self, call: StepCallKey, status: Status) {
        if let Some(call) = self.calls.get(&call) {
            self.failure.get_or_insert((call.step, status));
        }
    }

    /// A call that had started is over.
    fn forget(&mut self, call: StepCallKey) -> bool {
        let left = self.calls.remove(&call).map(|call| call.step);
        let displaced = std::mem::replace(&mut self.left, left);
        if let (Some(gates), Some(step)) = (&self.ensemble.gates, displaced) {
            gates.leave(step);
        }
        left.is_some()
    }

    fn cancel_call(&mut self, run: &Arc<Run>, key: StepCallKey) {
        let Some(call) = self.calls.get(&key) else { return };
        match &call.phase {
            Phase::Sent(sent) => return sent.cancel.cancel(),
            Phase::Unwanted => return,
            Phase::AtGate(_) => {}
        }
        let withdrawn = match &self.ensemble.gates {
            Some(gates) => gates.withdraw(call.step, run, key),
            None => Withdrawn::InTime,
        };
        match withdrawn {
            Withdrawn::TooLate => {
                if let Some(call) = self.calls.get_mut(&key) {
                    call.phase = Phase::Unwanted;
                }
            }
            Withdrawn::InTime => {
                self.calls.remove(&key);
                self.machine.finished(&self.ensemble.plan.graph, key, &mut self.decided);
            }
        }
    }

    fn respond(&mut self, outputs: &[(TensorIndex, Option<Arc<Carried>>)]) {
        match self.response(outputs) {
            Ok(response) => {
                self.send_ready();
                self.ready = Some(response);
            }
            Err(status) => self.answer_failure(status),
        }
    }

    fn response(
        &self,
        outputs: &[(TensorIndex, Option<Arc<Carried>>)],
    ) -> Result<InferenceResponse, Status> {
        let plan = &self.ensemble.plan;
        let mut response = InferenceResponse {
            model_name: plan.name.clone(),
            model_version: plan.version,
            id: self.whole.request.id.clone(),
            parameters: Vec::new(),
            outputs: Vec::with_capacity(outputs.len()),
        };
        for output in &plan.outputs {
            let found = outputs.iter().find(|(tensor, _)| *tensor == output.tensor);
            // As in the original, what a model left out is left out.
            let Some((_, Some(carried))) = found else { continue };
            if let Some(sequence) = &carried.sequence {
                response.parameters = sequence.parameters();
            }
            response.outputs.push(OutputTensor {
                name: output.name.clone(),
                datatype: carried.datatype,
                shape: carried.shape_for(&output.dims, plan.batches)?,
                data: carried.data.clone(),
            });
        }
        Ok(response)
    }

    /// Sends the response that was held back, because it is not the last.
    fn send_ready(&mut self) {
        if let (Some(response), Some(responder)) = (self.ready.take(), &mut self.responder) {
            responder.respond(Ok(response));
        }
    }

    fn fail(&mut self, failure: RunFailure) {
        let plan = &self.ensemble.plan;
        let prefix = self.whole.request.log_prefix();
        let status = match failure {
            RunFailure::Step(_) => match self.failure.take() {
                Some((step, status)) => plan.failure(step, status),
                None => named(&self.ensemble, "", Status::internal("a step failed")),
            },
            RunFailure::Cancelled => named(&self.ensemble, &prefix, cancelled()),
            RunFailure::Deadlock => {
                let text = "unexpected deadlock, at least one output is not set while no more \
                            ensemble steps can be made";
                named(&self.ensemble, &prefix, Status::invalid_argument(text))
            }
        };
        self.answer_failure(status);
    }

    fn answer_failure(&mut self, status: Status) {
        self.send_ready();
        if let Some(responder) = self.responder.take() {
            responder.fail(status, FailureReason::Other);
        }
    }

    fn end(&mut self) {
        self.progress = Progress::Over;
        let Some(responder) = self.responder.take() else { return };
        let execution = self.whole.times.execution(self.start, Instant::now());
        let host = &self.ensemble.host;
        host.record_batch(u64::from(self.batch_size), &as_batch(&execution));
        match self.ready.take() {
            Some(response) => responder.complete(Ok(response), execution),
            None => responder.finish(execution),
        }
    }
}

impl Drop for Driver {
    /// A run that broke has calls left. Others wait for their places.
    fn drop(&mut self) {
        let Some(gates) = &self.ensemble.gates else { return };
        if let Some(step) = self.left.take() {
            gates.leave(step);
        }
        for call in self.calls.values() {
            match call.phase {
                // The run is told when it may start, and gives the place back.
                Phase::AtGate(_) | Phase::Unwanted => {}
                Phase::Sent(_) => gates.leave(call.step),
            }
        }
    }
}

/// A status of the ensemble itself.
fn named(ensemble: &Ensemble, prefix: &str, status: Status) -> Status {
    status.prefixed(format!("in ensemble '{}', {prefix}", ensemble.plan.name))
}

fn cancelled() -> Status {
    Status::cancelled("Request cancelled")
}
