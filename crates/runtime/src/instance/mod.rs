//! Executes batches, one at a time.

mod copier;
mod groups;
mod growing;
mod inputs;
mod outputs;
mod staging;
mod state_memory;
mod strings;

use std::sync::Arc;
use std::time::Instant;

use galatea_backend::{
    ExecutionPredictability, ExecutionTerminator, Instance, ModelHost, RefusedBatch,
};
use galatea_devices::CudaStream;
use galatea_infer::{
    ExecutionReadings, ExecutionTimes, FailureReason, InferenceResponse, PendingRequest, Status,
};
use galatea_stdx::WakeBatch;
use smallvec::SmallVec;

use crate::machine::MachineResources;
use crate::session::{OutputPlace, Session, SessionOutputs};
use crate::signature::{ModelSignature, OutputPlan};
use copier::Copier;
pub use copier::copy_failed_error;
use inputs::InputArenas;
use outputs::{BatchOutput, NewState};
use state_memory::StateMemory;
use strings::StringCharge;

/// Executes batches with a session.
pub(crate) struct RuntimeInstance<S> {
    session: S,
    parts: InstanceParts,
    arenas: InputArenas,
    state_memory: StateMemory,
}

/// The parts of an instance that don't depend on its library.
pub(crate) struct InstanceParts {
    pub(crate) signature: Arc<ModelSignature>,
    pub(crate) guarantee: ExecutionPredictability,
    pub(crate) machine: MachineResources,
    /// True if inputs for a GPU are gathered in pinned memory.
    pub(crate) pins_inputs: bool,
    /// The host policy. Requests may contain separate inputs for it.
    pub(crate) host_policy: String,
    pub(crate) host: Arc<dyn ModelHost>,
}

impl InstanceParts {
    const fn copier<'a>(&'a self, stream: Option<&'a CudaStream>) -> Copier<'a> {
        Copier::new(&self.machine, stream, self.pins_inputs)
    }
}

/// The result of a run for one request.
struct RequestResult {
    response: Result<InferenceResponse, Status>,
    /// The new states of the request's sequence, with their output names; empty if the response is
    /// an error.
    states: Vec<(Arc<str>, NewState)>,
    /// True if the request is executed again.
    continues: bool,
}

impl RequestResult {
    /// Replaces the result with an error.
    fn fail(&mut self, status: Status) {
        self.response = Err(status);
        self.states.clear();
        self.continues = false;
    }
}

impl<S: Session> RuntimeInstance<S> {
    pub(crate) fn new(session: S, parts: InstanceParts) -> Self {
        let arenas = InputArenas::new(&parts.signature);
        Self { session, parts, arenas, state_memory: StateMemory::default() }
    }

    /// Executes a group of requests in one run.
    fn execute_group(&mut self, requests: Vec<PendingRequest>) {
        let start = Instant::now();
        let mut readings =
            ExecutionReadings { start, compute_start: start, compute_end: start, end: start };
        let results = self.run(&requests, &mut readings);
        readings.end = Instant::now();
        let times = ExecutionTimes::from(readings);
        match results {
            Ok(results) => {
                let total = requests.iter().map(|pending| u64::from(pending.batch_size())).sum();
                let host = &self.parts.host;
                match self.session.stream() {
                    Some(stream) => host.record_gpu_batch(stream.device().number(), total, &times),
                    None => host.record_batch(total, &times),
                }
                let _wake_batch = WakeBatch::begin();
                let decoupled = self.parts.signature.decoupled;
                for (pending, result) in requests.into_iter().zip(results) {
                    finish(pending, result, decoupled, &times);
                }
            }
            // The cancellation ended the run, or nothing reads its error any more.
            Err(_) if are_all_cancelled(&requests) => {
                fail_cancelled(requests, "request cancelled during its execution");
            }
            Err(status) => {
                for pending in requests {
                    pending.complete(Err(status.clone()), &times);
                }
            }
        }
    }

    /// Joins the inputs, runs the session, and splits the outputs that are states or that a request
    /// wants. Sets the readings of the steps that it reaches.
    fn run(
        &mut self,
        requests: &[PendingRequest],
        readings: &mut ExecutionReadings,
    ) -> Result<Vec<RequestResult>, Status> {
        let Self { session, parts, arenas, state_memory } = self;
        let signature = &parts.signature;
        let total = inputs::total_batch_size(signature, requests)?;
        let (policy, account) = (&parts.host_policy, &parts.machine.account);
        let mut strings = StringCharge::of_inputs(signature, requests, policy, account)?;
        let copier = parts.copier(session.stream());
        let values = inputs::gather(session, copier, signature, requests, total, policy, arenas)?;
        let is_needed = |plan: &&OutputPlan| {
            plan.is_state
                || plan.is_continuation
                || requests.iter().any(|pending| plan.is_wanted_by(pending))
        };
        let plans: SmallVec<[&OutputPlan; 8]> =
            signature.outputs.iter().filter(is_needed).collect();
        let places: SmallVec<[(usize, OutputPlace); 8]> =
            plans.iter().map(|plan| (plan.index, outputs::place(plan, requests, copier))).collect();
        readings.compute_start = Instant::now();
        let outputs = session.run(&values, &places);
        readings.compute_end = Instant::now();
        let outputs = outputs?;
        strings.add_outputs(&outputs)?;
        // An output may share memory with an input, so it is read before the inputs are dropped.
        let outputs = outputs.read()?;
        let batch = signature.batched.then_some(total);
        let planned = plans.into_iter().zip(outputs);
        let copier = parts.copier(session.stream());
        let mut outputs: Vec<BatchOutput<'_>> = planned
            .map(|(plan, output)| {
                BatchOutput::new(plan, output, batch, requests, state_memory, &copier)
            })
            .collect();
        drop(values);
        strings.converted();
        let mut results: Vec<RequestResult> =
            requests.iter().map(|pending| parts.request_result(pending, &mut outputs)).collect();
        if let Some(stream) = copier.stream() {
            growing::settle(stream, requests, &mut results);
        }
        Ok(results)
    }
}

impl InstanceParts {
    fn request_result(
        &self,
        pending: &PendingRequest,
        outputs: &mut [BatchOutput<'_>],
    ) -> RequestResult {
        let request = pending.request();
        let mut tensors = Vec::with_capacity(outputs.len());
        let mut states = Vec::new();
        let mut continues = false;
        let mut failure = None;
        for output in outputs {
            match output.take_next(pending) {
                Ok(part) => {
                    tensors.extend(part.tensor);
                    continues |= part.continues;
                    states.extend(part.state.map(|state| (output.name().clone(), state)));
                }
                Err(status) => failure = Some(status),
            }
        }
        if let Some(status) = failure {
            let response = Err(status.prefixed(request.log_prefix()));
            return RequestResult { response, states: Vec::new(), continues: false };
        }
        let response = InferenceResponse {
            model_name: self.signature.model_name.clone(),
            model_version: self.host.model_version(),
            id: request.id.clone(),
            parameters: Default::default(),
            outputs: tensors,
        };
        RequestResult { response: Ok(response), states, continues }
    }
}

/// Completes a request, or reschedules it. Its sequence receives the new states first, because the
/// client may send the sequence's next request as soon as it receives the response.
fn finish(
    mut pending: PendingRequest,
    result: RequestResult,
    decoupled: bool,
    times: &ExecutionTimes,
) {
    let RequestResult { mut response, states, continues } = result;
    for (output, NewState { shape, data, .. }) in states {
        if let Err(status) = pending.update_state(&output, shape, data) {
            response = Err(status.prefixed(pending.request().log_prefix()));
            break;
        }
    }
    match response {
        Ok(response) if continues => continue_later(pending, response, decoupled, times),
        Ok(_) | Err(_) => pending.complete(response, times),
    }
}

/// Reschedules a request for another execution. A decoupled model's client gets this execution's
/// response; any other client only gets the last one.
fn continue_later(
    mut pending: PendingRequest,
    response: InferenceResponse,
    decoupled: bool,
    times: &ExecutionTimes,
) {
    if pending.request().cancel.is_cancelled() {
        return fail_cancelled(vec![pending], "request cancelled between its executions");
    }
    if decoupled {
        pending.respond_nonfinal(Ok(response));
    }
    // Waiting here for a congested receiver would delay the rest of the batch.
    let (backpressure, times) = (pending.request().backpressure.clone(), *times);
    backpressure.when_free(move || {
        if let Err((pending, status)) = pending.reschedule() {
            pending.complete(Err(status), &times);
        }
    });
}

fn are_all_cancelled(requests: &[PendingRequest]) -> bool {
    let is_cancelled =
        |one: &PendingRequest| one.is_padding() || one.request().cancel.is_cancelled();
    requests.iter().all(is_cancelled)
}

fn fail_cancelled(requests: Vec<PendingRequest>, why: &'static str) {
    for pending in requests {
        pending.fail(Status::cancelled(why), FailureReason::Canceled);
    }
}

impl<S: Session> Instance for RuntimeInstance<S> {
    fn execute(&mut self, requests: Vec<PendingRequest>) -> Result<(), RefusedBatch> {
        if are_all_cancelled(&requests) {
            fail_cancelled(requests, "request cancelled before its execution");
            return Ok(());
        }
        for group in groups::split(&self.parts.signature, requests) {
            self.execute_group(group);
        }
        Ok(())
    }

    fn guarantee(&self) -> ExecutionPredictability {
        self.parts.guarantee
    }

    fn terminator(&self) -> Option<Arc<dyn ExecutionTerminator>> {
        self.session.terminator()
    }
}
