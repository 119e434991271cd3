//! Executes batches, one at a time.

mod groups;
mod inputs;
mod outputs;
mod state_memory;

use std::sync::Arc;
use std::time::Instant;

use galatea_backend::{ExecutionGuarantee, Host, Instance, RefusedBatch};
use galatea_infer::{ExecutionTimes, FailureReason, InferenceResponse, PendingRequest, Status};
use galatea_stdx::WakeBatch;
use smallvec::SmallVec;

use crate::api::{RunOptions, Session};
use crate::settings::Settings;
use crate::signature::{OutputPlan, Signature};
use inputs::Arenas;
use outputs::{BatchOutput, NewState};
use state_memory::StateMemory;

/// Runs a session that others may be running too.
pub(crate) struct OnnxInstance {
    session: Arc<Session>,
    signature: Arc<Signature>,
    guarantee: ExecutionGuarantee,
    run_options: RunOptions,
    /// The policy by which it may have inputs of its own.
    host_policy: String,
    arenas: Arenas,
    state_memory: StateMemory,
    host: Arc<dyn Host>,
}

/// What a run means to one request.
struct Outcome {
    response: Result<InferenceResponse, Status>,
    /// The states that its sequence goes on with, and the outputs that they
    /// come from; none if the response is an error.
    states: SmallVec<[(Arc<str>, NewState); 2]>,
}

impl OnnxInstance {
    pub(crate) fn new(
        session: Arc<Session>,
        signature: Arc<Signature>,
        guarantee: ExecutionGuarantee,
        settings: &Settings,
        host_policy: String,
        host: Arc<dyn Host>,
    ) -> Result<Self, Status> {
        let mut run_options = RunOptions::new(session.environment())?;
        settings.prepare_run(&mut run_options)?;
        let arenas = Arenas::new(&signature);
        let state_memory = StateMemory::default();
        Ok(Self {
            session,
            signature,
            guarantee,
            run_options,
            host_policy,
            arenas,
            state_memory,
            host,
        })
    }

    /// Executes requests that one run can execute together.
    fn execute_group(&mut self, requests: Vec<PendingRequest>) {
        let start = Instant::now();
        let mut times =
            ExecutionTimes { start, compute_start: start, compute_end: start, end: start };
        let outcomes = self.run(&requests, &mut times);
        times.end = Instant::now();
        match outcomes {
            Ok(outcomes) => {
                let total = requests.iter().map(|pending| u64::from(pending.batch_size())).sum();
                self.host.record_batch(total, &times);
                let _wake_batch = WakeBatch::begin();
                for (pending, outcome) in requests.into_iter().zip(outcomes) {
                    answer(pending, outcome, &times);
                }
            }
            Err(status) => {
                for pending in requests {
                    pending.complete(Err(status.clone()), &times);
                }
            }
        }
    }

    /// Gathers the inputs, runs and gives each request its part of the outputs
    /// that are states or that any of the requests wants. The times are filled
    /// in as far as it comes.
    fn run(
        &mut self,
        requests: &[PendingRequest],
        times: &mut ExecutionTimes,
    ) -> Result<SmallVec<[Outcome; 8]>, Status> {
        let signature = &self.signature;
        let total = inputs::total_batch_size(signature, requests)?;
        let (session, policy, arenas) = (&self.session, &self.host_policy, &mut self.arenas);
        let values = inputs::gather(session, signature, requests, total, policy, arenas)?;
        let is_read = |plan: &&OutputPlan| {
            plan.is_state || requests.iter().any(|pending| plan.is_wanted_by(pending))
        };
        let read: SmallVec<[&OutputPlan; 8]> = signature.outputs.iter().filter(is_read).collect();
        let indices: SmallVec<[usize; 8]> = read.iter().map(|plan| plan.index).collect();
        times.compute_start = Instant::now();
        let outcome = self.session.run(&self.run_options, &values, &indices);
        times.compute_end = Instant::now();
        let outputs = outcome?.into_outputs()?;
        drop(values);
        let batch = signature.batched.then_some(total);
        let planned = read.into_iter().zip(outputs);
        let mut outputs: SmallVec<[BatchOutput<'_>; 8]> = planned
            .map(|(plan, output)| {
                BatchOutput::new(plan, output, batch, requests, &self.state_memory)
            })
            .collect();
        Ok(requests.iter().map(|pending| self.outcome(pending, &mut outputs)).collect())
    }

    fn outcome(&self, pending: &PendingRequest, outputs: &mut [BatchOutput<'_>]) -> Outcome {
        let request = pending.request();
        let mut tensors = Vec::with_capacity(outputs.len());
        let mut states = SmallVec::new();
        let mut failure = None;
        // Also what a request does not want must be stepped over.
        for output in outputs {
            match output.next_share(pending) {
                Ok(share) => {
                    tensors.extend(share.tensor);
                    states.extend(share.state.map(|state| (output.name().clone(), state)));
                }
                Err(status) => failure = Some(status),
            }
        }
        if let Some(status) = failure {
            let response = Err(status.prefixed(request.log_prefix()));
            return Outcome { response, states: SmallVec::new() };
        }
        let response = InferenceResponse {
            model_name: self.signature.model_name.clone(),
            model_version: self.host.model_version(),
            id: request.id.clone(),
            parameters: Vec::new(),
            outputs: tensors,
        };
        Outcome { response: Ok(response), states }
    }
}

/// Answers a request, after its sequence has its new states: whoever has the
/// answer may send the sequence's next request.
fn answer(mut pending: PendingRequest, outcome: Outcome, times: &ExecutionTimes) {
    let Outcome { mut response, states } = outcome;
    for (output, NewState { shape, data }) in states {
        if let Err(status) = pending.update_state(&output, shape, data) {
            response = Err(status.prefixed(pending.request().log_prefix()));
            break;
        }
    }
    pending.complete(response, times);
}

impl Instance for OnnxInstance {
    fn execute(&mut self, requests: Vec<PendingRequest>) -> Result<(), RefusedBatch> {
        let is_over =
            |one: &PendingRequest| one.is_padding() || one.request().cancel.is_cancelled();
        if requests.iter().all(is_over) {
            for pending in requests {
                let status = Status::cancelled("request cancelled before its execution");
                pending.fail(status, FailureReason::Canceled);
            }
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
}
