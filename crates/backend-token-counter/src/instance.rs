//! Executes batches: one token for each request.

use std::sync::Arc;
use std::time::Instant;

use galatea_backend::{Host, Instance, RefusedBatch};
use galatea_infer::{
    ExecutionTimes, FailureReason, InferenceResponse, OutputTensor, PendingRequest, Status,
};
use galatea_tensor::{Buffer, DataType, Shape};

use crate::interface::{COUNT, Interface, OutputKind};
use crate::steps::{Steps, scalar};

/// What a client may ask for: four mebibytes of tokens.
const COUNT_MAX: u32 = 1 << 20;

pub(crate) struct CountingInstance {
    pub(crate) interface: Arc<Interface>,
    pub(crate) steps: Steps,
    pub(crate) host: Arc<dyn Host>,
}

/// What is next for a request.
struct Progress {
    /// How many tokens it wants.
    count: u32,
    /// How many it has had, the one of this execution included.
    done: u32,
}

impl Instance for CountingInstance {
    fn execute(&mut self, requests: Vec<PendingRequest>) -> Result<(), RefusedBatch> {
        let start = Instant::now();
        if !self.interface.delay.is_zero() {
            std::thread::sleep(self.interface.delay);
        }
        let rows: Vec<_> = requests.into_iter().filter(|request| !request.is_padding()).collect();
        let live = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        let end = Instant::now();
        let times = ExecutionTimes { start, compute_start: start, compute_end: end, end };
        self.host.batch_executed(live.into(), &times);
        for request in rows {
            self.serve(request, live, &times);
        }
        Ok(())
    }
}

impl CountingInstance {
    /// Gives a request its next token, and then an end or the next turn.
    fn serve(&mut self, mut request: PendingRequest, live: u32, times: &ExecutionTimes) {
        if request.request().cancel.is_cancelled() {
            self.steps.forget(&request);
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
                request.respond(response);
            }
            return self.go_on(request, progress.done, times);
        }
        if self.interface.decoupled && progress.count == 0 {
            self.steps.forget(&request);
            return request.finish(times);
        }
        let response = self.response(&request, &progress, live);
        self.end(request, response, times);
    }

    fn progress(&mut self, request: &PendingRequest) -> Result<Progress, Status> {
        let count = count(request)?;
        let done = self.steps.done(request)?;
        Ok(Progress { count, done: done.saturating_add(1).min(count) })
    }

    fn go_on(&mut self, mut request: PendingRequest, done: u32, times: &ExecutionTimes) {
        if let Err(status) = self.steps.keep(&mut request, done) {
            return self.end(request, Err(status), times);
        }
        // A thread that waited here would keep the other requests of its batch
        // waiting too.
        let (throttle, times) = (request.request().throttle.clone(), *times);
        throttle.when_room(move || reschedule(request, &times));
    }

    fn end(
        &mut self,
        request: PendingRequest,
        outcome: Result<InferenceResponse, Status>,
        times: &ExecutionTimes,
    ) {
        self.steps.forget(&request);
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
                    OutputKind::Steps => self.tensor(name, [progress.done]),
                }?);
            }
        }
        Ok(InferenceResponse {
            model_name: self.interface.model_name.clone(),
            model_version: self.host.model_version(),
            id: request.id.clone(),
            parameters: Vec::new(),
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

/// How many tokens a request asks for.
fn count(pending: &PendingRequest) -> Result<u32, Status> {
    let request = pending.request();
    let given = request.input(COUNT).and_then(|input| scalar(&input.data)).ok_or_else(|| {
        Status::internal(format!("input '{COUNT}' can't be read")).prefixed(request.log_prefix())
    })?;
    u32::try_from(given).ok().filter(|count| *count <= COUNT_MAX).ok_or_else(|| {
        let message = format!("input '{COUNT}' is {given}, which is not from 0 to {COUNT_MAX}");
        Status::invalid_argument(message).prefixed(request.log_prefix())
    })
}

/// Gives a request back; whoever takes it has it executed again.
fn reschedule(request: PendingRequest, times: &ExecutionTimes) {
    // Loading the model made sure that its sequences are iterative.
    if let Err((request, status)) = request.reschedule() {
        request.complete(Err(status), times);
    }
}
