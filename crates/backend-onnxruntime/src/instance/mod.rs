//! Executes batches, one at a time.

mod executor;
mod groups;
mod growing;
mod inputs;
mod outputs;
mod staging;
mod state_memory;
mod strings;

use std::sync::Arc;
use std::time::Instant;

use galatea_backend::{ExecutionGuarantee, ExecutionTerminator, Host, Instance, RefusedBatch};
use galatea_infer::{ExecutionTimes, FailureReason, InferenceResponse, PendingRequest, Status};
use galatea_stdx::WakeBatch;
use smallvec::SmallVec;

use crate::api::{OutputPlace, RunOptions};
use crate::settings::ModelSettings;
use crate::signature::{ModelSignature, OutputPlan};
pub(crate) use executor::Executor;
use inputs::InputArenas;
use outputs::{BatchOutput, NewState};
use state_memory::StateMemory;
use strings::StringCharge;

/// Executes batches with its executor's session.
pub(crate) struct OnnxInstance {
    executor: Executor,
    signature: Arc<ModelSignature>,
    guarantee: ExecutionGuarantee,
    /// Shared with the terminators of a run.
    run_options: Arc<RunOptions>,
    /// The host policy, for which requests may have separate inputs.
    host_policy: String,
    arenas: InputArenas,
    state_memory: StateMemory,
    host: Arc<dyn Host>,
}

/// The result of a run for one request.
struct RequestResult {
    response: Result<InferenceResponse, Status>,
    /// The new states of the request's sequence, with the names of their outputs; empty if the
    /// response is an error.
    states: Vec<(Arc<str>, NewState)>,
}

impl RequestResult {
    /// Turns the result into an error.
    fn fail(&mut self, status: Status) {
        self.response = Err(status);
        self.states.clear();
    }
}

impl OnnxInstance {
    pub(crate) fn new(
        executor: Executor,
        signature: Arc<ModelSignature>,
        guarantee: ExecutionGuarantee,
        settings: &ModelSettings,
        host_policy: String,
        host: Arc<dyn Host>,
    ) -> Result<Self, Status> {
        let mut run_options = RunOptions::new(executor.session().environment())?;
        settings.apply_to_run(&mut run_options)?;
        let arenas = InputArenas::new(&signature);
        let state_memory = StateMemory::default();
        Ok(Self {
            executor,
            signature,
            guarantee,
            run_options: Arc::new(run_options),
            host_policy,
            arenas,
            state_memory,
            host,
        })
    }

    /// Executes a group of requests in one run.
    fn execute_group(&mut self, requests: Vec<PendingRequest>) {
        let start = Instant::now();
        let mut times =
            ExecutionTimes { start, compute_start: start, compute_end: start, end: start };
        let results = self.run(&requests, &mut times);
        times.end = Instant::now();
        match results {
            Ok(results) => {
                let total = requests.iter().map(|pending| u64::from(pending.batch_size())).sum();
                match self.executor.device_session() {
                    Some(session) => {
                        let gpu = session.stream().device().number();
                        self.host.record_gpu_batch(gpu, total, &times);
                    }
                    None => self.host.record_batch(total, &times),
                }
                let _wake_batch = WakeBatch::begin();
                for (pending, result) in requests.into_iter().zip(results) {
                    complete(pending, result, &times);
                }
            }
            // The cancellation ended the run, or nothing will read its error any more.
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

    /// Joins the inputs, runs the session, and splits the outputs that are states or that a
    /// request wants. Sets the times of the steps that it reaches.
    fn run(
        &mut self,
        requests: &[PendingRequest],
        times: &mut ExecutionTimes,
    ) -> Result<Vec<RequestResult>, Status> {
        let signature = &self.signature;
        let total = inputs::total_batch_size(signature, requests)?;
        let (executor, policy, arenas) = (&self.executor, &self.host_policy, &mut self.arenas);
        let mut strings = StringCharge::of_inputs(signature, requests, policy, executor.account())?;
        let values = inputs::gather(executor, signature, requests, total, policy, arenas)?;
        let is_needed = |plan: &&OutputPlan| {
            plan.is_state || requests.iter().any(|pending| plan.is_wanted_by(pending))
        };
        let plans: SmallVec<[&OutputPlan; 8]> =
            signature.outputs.iter().filter(is_needed).collect();
        let places: SmallVec<[(usize, OutputPlace<'_>); 8]> = plans
            .iter()
            .map(|plan| (plan.index, outputs::place(plan, requests, executor)))
            .collect();
        times.compute_start = Instant::now();
        let outputs = executor.run(&self.run_options, &values, &places);
        times.compute_end = Instant::now();
        let outputs = outputs?;
        strings.add_outputs(&outputs)?;
        // An output may be an input, so its memory is read before the inputs are gone.
        let outputs = outputs.into_outputs()?;
        let batch = signature.batched.then_some(total);
        let planned = plans.into_iter().zip(outputs);
        let mut outputs: Vec<BatchOutput<'_>> = planned
            .map(|(plan, output)| {
                let memory = &self.state_memory;
                BatchOutput::new(plan, output, batch, requests, memory, executor)
            })
            .collect();
        drop(values);
        strings.converted();
        let mut results: Vec<RequestResult> =
            requests.iter().map(|pending| self.request_result(pending, &mut outputs)).collect();
        growing::settle(executor, requests, &mut results);
        Ok(results)
    }

    fn request_result(
        &self,
        pending: &PendingRequest,
        outputs: &mut [BatchOutput<'_>],
    ) -> RequestResult {
        let request = pending.request();
        let mut tensors = Vec::with_capacity(outputs.len());
        let mut states = Vec::new();
        let mut failure = None;
        for output in outputs {
            match output.take_next(pending) {
                Ok(part) => {
                    tensors.extend(part.tensor);
                    states.extend(part.state.map(|state| (output.name().clone(), state)));
                }
                Err(status) => failure = Some(status),
            }
        }
        if let Some(status) = failure {
            let response = Err(status.prefixed(request.log_prefix()));
            return RequestResult { response, states: Vec::new() };
        }
        let response = InferenceResponse {
            model_name: self.signature.model_name.clone(),
            model_version: self.host.model_version(),
            id: request.id.clone(),
            parameters: Default::default(),
            outputs: tensors,
        };
        RequestResult { response: Ok(response), states }
    }
}

/// Completes a request. Its sequence gets the new states first, because the client may send the
/// sequence's next request as soon as it receives the response.
fn complete(mut pending: PendingRequest, result: RequestResult, times: &ExecutionTimes) {
    let RequestResult { mut response, states } = result;
    for (output, NewState { shape, data, .. }) in states {
        if let Err(status) = pending.update_state(&output, shape, data) {
            response = Err(status.prefixed(pending.request().log_prefix()));
            break;
        }
    }
    pending.complete(response, times);
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

impl Instance for OnnxInstance {
    fn execute(&mut self, requests: Vec<PendingRequest>) -> Result<(), RefusedBatch> {
        if are_all_cancelled(&requests) {
            fail_cancelled(requests, "request cancelled before its execution");
            return Ok(());
        }
        for group in groups::split(&self.signature, requests) {
            self.execute_group(group);
        }
        Ok(())
    }

    fn guarantee(&self) -> ExecutionGuarantee {
        self.guarantee
    }

    fn terminator(&self) -> Option<Arc<dyn ExecutionTerminator>> {
        Some(self.run_options.clone())
    }
}

/// Ends the run that an instance makes with its options. Only that instance uses them.
impl ExecutionTerminator for RunOptions {
    fn terminate(&self) {
        Self::terminate(self);
    }

    fn reset(&self) {
        self.reset_terminate();
    }
}
