//! Batch execution: one token per request.

use std::sync::Arc;
use std::time::Instant;

use galatea_backend::{Instance, ModelHost, RefusedBatch};
use galatea_infer::{
    ExecutionReadings, ExecutionTimes, FailureReason, InferenceResponse, OutputTensor,
    PendingRequest, Status,
};
use galatea_tensor::{Buffer, DataType, Shape};

use crate::token_counter::interface::{COUNT, Interface, OutputKind};
use crate::token_counter::token_counts::{TokenCounts, read_scalar};

/// The maximum number of tokens that a request may ask for. This many tokens take four mebibytes.
const COUNT_MAX: u32 = 1 << 20;

pub(crate) struct TokenCounterInstance {
    pub(crate) interface: Arc<Interface>,
    pub(crate) token_counts: TokenCounts,
    pub(crate) host: Arc<dyn ModelHost>,
}

/// The progress of one request.
struct Progress {
    /// The number of tokens that the request wants.
    count: u32,
    /// The number of tokens that the request has received, including this execution's token.
    done: u32,
}

impl Instance for TokenCounterInstance {
    fn execute(&mut self, requests: Vec<PendingRequest>) -> Result<(), RefusedBatch> {
        let start = Instant::now();
        if !self.interface.delay.is_zero() {
            std::thread::sleep(self.interface.delay);
        }
        let rows: Vec<_> = requests.into_iter().filter(|request| !request.is_padding()).collect();
        let live = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        let end = Instant::now();
        let times = ExecutionTimes::from(ExecutionReadings {
            start,
            compute_start: start,
            compute_end: end,
            end,
        });
        self.host.record_batch(live.into(), &times);
        for request in rows {
            self.produce_token(request, live, &times);
        }
        Ok(())
    }
}

impl TokenCounterInstance {
    /// Produces a request's next token, then completes or reschedules the request.
    fn produce_token(&mut self, mut request: PendingRequest, live: u32, times: &ExecutionTimes) {
        if request.request().cancel.is_cancelled() {
            self.token_counts.remove(&request);
            let status = Status::cancelled("Request cancelled");
            let status = status.prefixed(request.request().log_prefix());
            return request.fail(status, FailureReason::Canceled);
        }
        let progress = match self.progress(&request) {
            Ok(progress) => progress,
            Err(status) => return self.end(request, Err(status), times),
        };
        if progress.done < progress.count {
            if self.interface.decoupled {
                let response = self.response(&request, &progress, live);
                request.respond_nonfinal(response);
            }
            return self.reschedule(request, progress.done, times);
        }
        if self.interface.decoupled && progress.count == 0 {
            self.token_counts.remove(&request);
            return request.finish_without_response(times);
        }
        let response = self.response(&request, &progress, live);
        self.end(request, response, times);
    }

    fn progress(&mut self, request: &PendingRequest) -> Result<Progress, Status> {
        let count = requested_count(request)?;
        let done = self.token_counts.get(request)?;
        Ok(Progress { count, done: done.saturating_add(1).min(count) })
    }

    fn reschedule(&mut self, mut request: PendingRequest, done: u32, times: &ExecutionTimes) {
        if let Err(status) = self.token_counts.set(&mut request, done) {
            return self.end(request, Err(status), times);
        }
        // Waiting here for a congested receiver would delay the rest of the batch.
        let (backpressure, times) = (request.request().backpressure.clone(), *times);
        backpressure.when_free(move || reschedule_now(request, &times));
    }

    fn end(
        &mut self,
        request: PendingRequest,
        outcome: Result<InferenceResponse, Status>,
        times: &ExecutionTimes,
    ) {
        self.token_counts.remove(&request);
        request.complete(outcome, times);
    }

    fn response(
        &self,
        pending: &PendingRequest,
        progress: &Progress,
        live: u32,
    ) -> Result<InferenceResponse, Status> {
        let request = pending.request();
        let first = if self.interface.decoupled { progress.done.saturating_sub(1) } else { 0 };
        let mut outputs = Vec::with_capacity(self.interface.outputs.len());
        for (name, kind) in &self.interface.outputs {
            if request.wants_output(name) {
                outputs.push(match kind {
                    OutputKind::Token => self.tensor(name, first..progress.done),
                    OutputKind::Live => self.tensor(name, [live]),
                    OutputKind::State => self.tensor(name, [progress.done]),
                }?);
            }
        }
        Ok(InferenceResponse {
            model_name: self.interface.model_name.clone(),
            model_version: self.host.model_version(),
            id: request.id.clone(),
            parameters: Default::default(),
            outputs,
        })
    }

    fn tensor(
        &self,
        name: &Arc<str>,
        elements: impl IntoIterator<Item = u32>,
    ) -> Result<OutputTensor, Status> {
        let data: Vec<u8> = elements.into_iter().flat_map(u32::to_le_bytes).collect();
        let length = i64::try_from(data.len() / size_of::<u32>()).unwrap_or(i64::MAX);
        let dims: &[i64] = if self.interface.batched { &[1, length] } else { &[length] };
        let shape = Shape::new(dims).map_err(|error| {
            Status::internal(format!("output '{name}' can't have the shape {dims:?}: {error}"))
        })?;
        let (name, data) = (name.clone(), Buffer::from_vec(data));
        Ok(OutputTensor { name, datatype: DataType::Int32, shape, data })
    }
}

/// The number of tokens that a request wants.
fn requested_count(pending: &PendingRequest) -> Result<u32, Status> {
    let request = pending.request();
    let count =
        request.input(COUNT).and_then(|input| read_scalar(&input.data)).ok_or_else(|| {
            Status::internal(format!("input '{COUNT}' can't be read"))
                .prefixed(request.log_prefix())
        })?;
    u32::try_from(count).ok().filter(|count| *count <= COUNT_MAX).ok_or_else(|| {
        let message = format!("input '{COUNT}' is {count}, which is not from 0 to {COUNT_MAX}");
        Status::invalid_argument(message).prefixed(request.log_prefix())
    })
}

/// Returns a request to its scheduler for another execution.
fn reschedule_now(request: PendingRequest, times: &ExecutionTimes) {
    // This is unexpected: models with non-iterative sequences are not loaded.
    if let Err((request, status)) = request.reschedule() {
        request.complete(Err(status), times);
    }
}
