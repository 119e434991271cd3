//! Batch execution.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use galatea_backend::{LogLevel, RefusedBatch};
use galatea_infer::{
    CorrelationId, ExecutionReadings, ExecutionTimes, FailureReason, PendingRequest, SequenceFlags,
    Status,
};
use galatea_stdx::InlineBudget;

use super::calls::CallSocket;
use super::{PROGRESS_PATIENCE, Worker, WorkerLoss};
use crate::held::{ResponseResult, StatisticsEntry};
use crate::wire::{
    BatchResult, ExecutionFrame, Frame, FrameSplitter, MalformedFrame, WireResponse, WireResult,
    to_a, to_b,
};

/// The time that a thread waiting for a model may spend executing another model that the first
/// model calls.
const CALL_BUDGET: Duration = Duration::from_micros(50);

/// An execution in progress.
pub(crate) struct RunningExecution {
    batch: Batch,
    reader: FrameSplitter,
    ended: Option<ExecutionEnd>,
}

/// The state of an execution after waiting for it.
pub(crate) enum WaitResult {
    /// The execution ended after this time.
    Ended(Duration),
    InProgress(RunningExecution),
    /// The worker is lost. The requests that it holds fail when it is given up.
    Lost(WorkerLoss),
}

/// A batch that has been passed to the worker.
struct Batch {
    requests: Vec<BatchRequest>,
    batch_size: u64,
    start: Instant,
    compute_start: Instant,
}

impl Batch {
    /// Counts the requests as failed, including those that a sender has already answered.
    fn lose(self, lost: WorkerLoss) -> WaitResult {
        self.requests.iter().for_each(|one| one.count_failure(FailureReason::Backend));
        WaitResult::Lost(lost)
    }
}

/// A request in a batch. The worker holds its reply channel.
struct BatchRequest {
    key: u64,
    pending: PendingRequest,
    /// `None` for padding.
    count: Option<Arc<StatisticsEntry>>,
}

impl BatchRequest {
    fn count_failure(&self, reason: FailureReason) {
        self.count.iter().for_each(|count| count.fail(reason));
    }
}

/// The worker's message at the end of an execution.
struct ExecutionEnd {
    batch_result: BatchResult,
    released: Vec<u64>,
    /// The number of frames that the worker sent on the second socket before this message.
    sent: u64,
}

impl ExecutionEnd {
    /// The requests that senders answer.
    fn keys_of_senders(&self) -> Vec<u64> {
        let BatchResult::Results(results) = &self.batch_result else { return Vec::new() };
        let is_left = |one: &&WireResult| {
            !one.is_rescheduled && matches!(one.response, WireResponse::Nothing)
        };
        results.iter().filter(is_left).map(|one| one.key).collect()
    }
}

/// The worker's message about one request in a batch.
struct RequestResult {
    is_rescheduled: bool,
    result: Option<ResponseResult>,
}

impl Worker {
    /// Sends a batch to the worker.
    ///
    /// # Errors
    ///
    /// The batch, if the worker didn't receive it.
    pub(crate) fn begin(
        self: &Arc<Self>,
        requests: Vec<PendingRequest>,
    ) -> Result<WaitResult, RefusedBatch> {
        let start = Instant::now();
        let mut stored = Vec::new();
        let (requests, encoded) = self.encode(requests, &mut stored);
        let frame = match encoded {
            Ok(frame) => frame,
            Err(status) => {
                self.arenas.discard(&stored);
                return Err(RefusedBatch { requests: self.take_back(requests), status });
            }
        };
        let batch_size = requests
            .iter()
            .map(|one| u64::from(one.pending.batch_size()))
            .fold(0, u64::saturating_add);
        let batch = Batch { requests, batch_size, start, compute_start: Instant::now() };
        // The reader is present, because no other execution uses it: the worker has only one
        // instance, or this instance has the turn.
        let Some(reader) = self.executions.lock("begin an execution").take() else {
            return Ok(batch.lose(WorkerLoss::Ended));
        };
        if !self.link.send_a(&frame) {
            return Ok(batch.lose(WorkerLoss::Ended));
        }
        Ok(WaitResult::InProgress(RunningExecution { batch, reader, ended: None }))
    }

    /// Waits for the end of an execution, and replies to the requests that the worker has answered.
    /// With a deadline, waits only for the worker, and only until the deadline.
    pub(crate) fn wait(
        self: &Arc<Self>,
        mut running: RunningExecution,
        until: Option<Instant>,
    ) -> WaitResult {
        if running.ended.is_none() {
            match self.read_result(&mut running.reader, until) {
                Ok(ended) => running.ended = ended,
                Err(lost) => return running.batch.lose(lost),
            }
        }
        let has_come =
            |ended: &ExecutionEnd| until.is_none() || self.progress.has_reached(ended.sent);
        let RunningExecution { batch, reader, ended } = running;
        match ended {
            Some(ended) if has_come(&ended) => {
                *self.executions.lock("end an execution") = Some(reader);
                let took = batch.start.elapsed();
                self.finish(batch, ended).map_or_else(
                    |error| WaitResult::Lost(WorkerLoss::Malformed(error)),
                    |()| WaitResult::Ended(took),
                )
            }
            ended => WaitResult::InProgress(RunningExecution { batch, reader, ended }),
        }
    }

    /// Executes a batch next to those of the other instances that share the worker. The execution
    /// lasts until senders have answered its requests, and the time limit applies to all of it.
    ///
    /// # Errors
    ///
    /// The batch, if the worker didn't receive it.
    pub(crate) fn execute_in_slot(
        self: &Arc<Self>,
        requests: Vec<PendingRequest>,
    ) -> Result<WaitResult, RefusedBatch> {
        let turn = self.turns.take();
        let RunningExecution { batch, mut reader, .. } = match self.begin(requests)? {
            WaitResult::InProgress(running) => running,
            ended => return Ok(ended),
        };
        let ended = loop {
            match self.read_result(&mut reader, None) {
                Ok(Some(ended)) => break ended,
                Ok(None) => {}
                Err(lost) => return Ok(batch.lose(lost)),
            }
        };
        *self.executions.lock("end an execution") = Some(reader);
        drop(turn);
        let deadline = self.execute_timeout.and_then(|limit| batch.start.checked_add(limit));
        if !self.held.wait_for_senders(&ended.keys_of_senders(), deadline) {
            return Ok(batch.lose(WorkerLoss::TimedOut));
        }
        let took = batch.start.elapsed();
        Ok(self.finish(batch, ended).map_or_else(
            |error| WaitResult::Lost(WorkerLoss::Malformed(error)),
            |()| WaitResult::Ended(took),
        ))
    }

    fn read(&self, reader: &mut FrameSplitter) -> Result<(), WorkerLoss> {
        self.link.a.read(reader).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => WorkerLoss::TimedOut,
            _ => WorkerLoss::Ended,
        })
    }

    fn encode(
        self: &Arc<Self>,
        requests: Vec<PendingRequest>,
        stored: &mut Vec<u64>,
    ) -> (Vec<BatchRequest>, Result<Vec<u8>, Status>) {
        let mut frame = Frame::new(to_a::EXECUTE);
        frame.write_count(requests.len());
        let mut keyed = Vec::with_capacity(requests.len());
        let mut failed = None;
        for mut pending in requests {
            let (key, count) = self.held.hold(&mut pending).unwrap_or_else(|status| {
                failed.get_or_insert(status);
                (0, None)
            });
            if failed.is_none() {
                failed = self.encode_request(&mut frame, key, &pending, stored).err();
            }
            keyed.push(BatchRequest { key, pending, count });
        }
        let encoded = failed.map_or_else(|| Ok(frame.finish()), Err);
        if encoded.is_ok() {
            self.watch_cancellation(&keyed);
        }
        (keyed, encoded)
    }

    fn encode_request(
        &self,
        frame: &mut Frame,
        key: u64,
        pending: &PendingRequest,
        stored: &mut Vec<u64>,
    ) -> Result<(), Status> {
        let request = pending.request();
        let inputs = self.arenas.encode_inputs(&request.inputs, stored)?;
        let sequence = pending.sequence();
        let correlation: &CorrelationId =
            sequence.map_or(&request.correlation_id, |sequence| &sequence.correlation_id);
        let flags: SequenceFlags =
            sequence.map_or(request.sequence_flags, |sequence| sequence.flags);
        let trace = pending.trace().filter(|trace| trace.is_traced());
        let trace = trace.map(|trace| trace.identity().context);
        frame.request(key, request, (correlation, flags, trace.as_deref()), &inputs);
        Ok(())
    }

    /// Notifies the worker when a client cancels.
    fn watch_cancellation(self: &Arc<Self>, requests: &[BatchRequest]) {
        for BatchRequest { key, pending, .. } in requests {
            let cancel = &pending.request().cancel;
            if cancel.can_be_cancelled() {
                let (worker, key) = (Arc::downgrade(self), *key);
                cancel.on_cancel(move || {
                    if let Some(worker) = worker.upgrade() {
                        worker.send_key(to_b::CANCELLED, key);
                    }
                });
            }
        }
    }

    fn take_back(&self, requests: Vec<BatchRequest>) -> Vec<PendingRequest> {
        let restored = requests.into_iter().map(|BatchRequest { key, mut pending, .. }| {
            if let Some(one) = self.held.take(key) {
                pending.restore_responder(one.responder);
            }
            pending
        });
        restored.collect()
    }

    /// Waits for the end of an execution; `None` if the deadline passes or if the model calls
    /// another model first.
    fn read_result(
        self: &Arc<Self>,
        reader: &mut FrameSplitter,
        until: Option<Instant>,
    ) -> Result<Option<ExecutionEnd>, WorkerLoss> {
        loop {
            let mut has_called = false;
            while let Some(body) = reader.next().map_err(WorkerLoss::Malformed)? {
                match ExecutionFrame::decode(body).map_err(WorkerLoss::Malformed)? {
                    ExecutionFrame::Result { batch_result, released, sent } => {
                        return Ok(Some(ExecutionEnd { batch_result, released, sent }));
                    }
                    ExecutionFrame::Call(call) if until.is_none() => {
                        // This thread has nothing else to do until the reply arrives.
                        InlineBudget::run_with_budget(CALL_BUDGET, || {
                            self.begin_call(call, CallSocket::Executions)
                        });
                    }
                    ExecutionFrame::Call(call) => {
                        self.begin_call(call, CallSocket::Executions);
                        has_called = true;
                    }
                    ExecutionFrame::Done(_) | ExecutionFrame::Failed(_) => {
                        return Err(WorkerLoss::Malformed(MalformedFrame("an answer to nothing")));
                    }
                }
            }
            if has_called {
                return Ok(None);
            }
            match until {
                None => self.read(reader)?,
                Some(deadline) => {
                    let has_read = self.link.a.read_until(reader, deadline);
                    if !has_read.map_err(|_| WorkerLoss::Ended)? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Replies to a batch's requests and releases them.
    fn finish(&self, batch: Batch, ended: ExecutionEnd) -> Result<(), MalformedFrame> {
        let ExecutionEnd { batch_result, released, sent } = ended;
        let Batch { requests, batch_size, start, compute_start } = batch;
        let compute_end = Instant::now();
        // Frames that the model's senders sent earlier are handled first.
        self.progress.wait_for(sent, PROGRESS_PATIENCE);
        let answers = self.answers(&requests, batch_result).inspect_err(|_| {
            requests.iter().for_each(|one| one.count_failure(FailureReason::Backend));
        })?;
        // Released after the responses are read, because outputs may be in the released blocks.
        let are_known = released.iter().all(|offset| self.arenas.inputs.release(*offset));
        let times = ExecutionTimes::from(ExecutionReadings {
            start,
            compute_start,
            compute_end,
            end: Instant::now(),
        });
        if let Some(host) = &self.model.host {
            match self.gpu {
                Some(gpu) => host.record_gpu_batch(gpu, batch_size, &times),
                None => host.record_batch(batch_size, &times),
            }
        }
        for (request, answer) in requests.into_iter().zip(answers) {
            self.finish_request(request, answer, &times);
        }
        if are_known { Ok(()) } else { Err(MalformedFrame("a block that is not in use")) }
    }

    /// The results for a batch's requests, in batch order.
    fn answers(
        &self,
        requests: &[BatchRequest],
        batch_result: BatchResult,
    ) -> Result<Vec<RequestResult>, MalformedFrame> {
        let results = match batch_result {
            BatchResult::Results(results) => results,
            BatchResult::Failed(status) => {
                let failed = requests.iter().map(|_| RequestResult {
                    is_rescheduled: false,
                    result: Some(Err(status.clone())),
                });
                return Ok(failed.collect());
            }
        };
        let keys = results.iter().map(|one| one.key);
        if !keys.eq(requests.iter().map(|one| one.key)) {
            return Err(MalformedFrame("a result of another batch"));
        }
        let answer = |(result, request): (WireResult, &BatchRequest)| {
            let WireResult { is_rescheduled, response, .. } = result;
            let result = self.response(&request.pending.request().id, response);
            RequestResult { is_rescheduled, result }
        };
        Ok(results.into_iter().zip(requests).map(answer).collect())
    }

    fn finish_request(&self, request: BatchRequest, answer: RequestResult, times: &ExecutionTimes) {
        if answer.is_rescheduled {
            return self.reschedule(request);
        }
        let Some(result) = answer.result else { return self.release(request, times) };
        let BatchRequest { key, mut pending, count } = request;
        match (self.held.take(key), count) {
            (Some(one), _) => pending.restore_responder(one.responder),
            // The worker has been given up, or a sender has answered the request.
            (None, Some(count)) if result.is_ok() => count.succeed(times),
            (None, Some(count)) => count.fail(FailureReason::Backend),
            (None, None) => {}
        }
        pending.complete(result, times);
    }

    /// Releases a request that a sender will answer or has answered.
    fn release(&self, request: BatchRequest, times: &ExecutionTimes) {
        let BatchRequest { key, mut pending, count } = request;
        if let Some(count) = count {
            count.succeed(times);
        }
        if let Some(trace) = pending.take_trace() {
            trace.record_execution(times);
            self.held.keep_trace(key, trace);
        }
    }

    fn reschedule(&self, request: BatchRequest) {
        let BatchRequest { key, mut pending, count } = request;
        let held = self.held.take(key);
        let is_answered = held.is_none();
        if let Some(one) = held {
            pending.restore_responder(one.responder);
        }
        if let Err((pending, status)) = pending.reschedule() {
            let text = format!("Failed to release request: {}", status.message());
            if let Some(host) = &self.model.host {
                host.log(LogLevel::Error, &text);
            }
            // Otherwise the request is counted when it is dropped.
            if let Some(count) = count.filter(|_| is_answered) {
                count.fail(FailureReason::Other);
            }
            drop(pending);
        }
    }
}
