//! Executes batches, one at a time.

mod inputs;
mod outputs;

use std::sync::Arc;
use std::time::Instant;

use galatea_backend::{Host, Instance, Refused};
use galatea_infer::{ExecutionTimes, FailureReason, InferenceResponse, PendingRequest, Status};
use smallvec::SmallVec;

use crate::api::{Arena, RunOptions, Session};
use crate::settings::Settings;
use crate::signature::{OutputPlan, Signature};
use outputs::BatchOutput;

/// Runs a session that others may be running too.
pub(crate) struct OnnxInstance {
    session: Arc<Session>,
    signature: Arc<Signature>,
    run_options: RunOptions,
    /// One for each input.
    arenas: Vec<Arena>,
    host: Arc<dyn Host>,
}

impl OnnxInstance {
    pub(crate) fn new(
        session: Arc<Session>,
        signature: Arc<Signature>,
        settings: &Settings,
        host: Arc<dyn Host>,
    ) -> Result<Self, Status> {
        let mut run_options = RunOptions::new(session.environment())?;
        settings.prepare_run(&mut run_options)?;
        let arenas = signature.inputs.iter().map(|_| Arena::default()).collect();
        Ok(Self { session, signature, run_options, arenas, host })
    }

    /// Gathers the inputs, runs and collects the outputs that any of the
    /// requests wants. The times are filled in as far as it comes.
    fn run(
        &mut self,
        requests: &[PendingRequest],
        times: &mut ExecutionTimes,
    ) -> Result<Vec<BatchOutput>, Status> {
        let total = inputs::total_batch_size(&self.signature, requests)?;
        let values =
            inputs::gather(&self.session, &self.signature, requests, total, &mut self.arenas)?;
        let wanted: SmallVec<[&OutputPlan; 8]> = self
            .signature
            .outputs
            .iter()
            .filter(|plan| requests.iter().any(|one| one.request().wants_output(&plan.name)))
            .collect();
        let indices: SmallVec<[usize; 8]> = wanted.iter().map(|plan| plan.index).collect();
        times.compute_start = Instant::now();
        let outcome = self.session.run(&self.run_options, &values, &indices);
        times.compute_end = Instant::now();
        let outputs = outcome?.into_outputs()?;
        let batch = self.signature.batched.then_some(total);
        let planned = wanted.into_iter().zip(outputs);
        Ok(planned.map(|(plan, output)| BatchOutput::new(plan, output, batch)).collect())
    }

    /// Gives each request its part of the outputs.
    fn answer(
        &self,
        requests: Vec<PendingRequest>,
        mut outputs: Vec<BatchOutput>,
        times: &mut ExecutionTimes,
    ) {
        let responses: SmallVec<[Result<InferenceResponse, Status>; 8]> =
            requests.iter().map(|pending| self.response(pending, &mut outputs)).collect();
        times.end = Instant::now();
        let total = requests.iter().map(|pending| u64::from(pending.batch_size())).sum();
        self.host.batch_executed(total, times);
        for (pending, response) in requests.into_iter().zip(responses) {
            pending.complete(response, times);
        }
    }

    fn response(
        &self,
        pending: &PendingRequest,
        outputs: &mut [BatchOutput],
    ) -> Result<InferenceResponse, Status> {
        let request = pending.request();
        let mut tensors = Vec::with_capacity(outputs.len());
        let mut failure = None;
        for output in outputs {
            // Also what a request does not want must be stepped over.
            let rows = output.next_rows(pending.batch_size());
            if !request.wants_output(&output.name) {
                continue;
            }
            match output.part(rows) {
                Ok(tensor) => tensors.push(tensor),
                Err(status) => failure = Some(status),
            }
        }
        if let Some(status) = failure {
            return Err(status.prefixed(request.log_prefix()));
        }
        Ok(InferenceResponse {
            model_name: self.signature.model_name.clone(),
            model_version: self.host.model_version(),
            id: request.id.clone(),
            parameters: Vec::new(),
            outputs: tensors,
        })
    }
}

impl Instance for OnnxInstance {
    fn execute(&mut self, requests: Vec<PendingRequest>) -> Result<(), Refused> {
        if requests.iter().all(|pending| pending.request().cancel.is_cancelled()) {
            for pending in requests {
                let status = Status::cancelled("request cancelled before its execution");
                pending.fail(status, FailureReason::Canceled);
            }
            return Ok(());
        }
        let start = Instant::now();
        let mut times =
            ExecutionTimes { start, compute_start: start, compute_end: start, end: start };
        match self.run(&requests, &mut times) {
            Ok(outputs) => self.answer(requests, outputs, &mut times),
            Err(status) => {
                times.end = Instant::now();
                for pending in requests {
                    pending.complete(Err(status.clone()), &times);
                }
            }
        }
        Ok(())
    }
}
