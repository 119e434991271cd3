//! The one owned thing that travels from admission to the backend.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{FailureReason, InferenceRequest, InferenceResponse, ResponseSender, Status};

/// An admitted request with its sender: what the engine queues and what a
/// backend receives.
///
/// Dropping it releases the request; if its sender is still inside, the
/// client gets an internal error.
#[derive(Debug)]
pub struct PendingRequest {
    request: InferenceRequest,
    /// Taken by the final answer.
    sender: Option<ResponseSender>,
    batch_size: u32,
    times: RequestTimes,
    observer: Arc<dyn RequestObserver>,
}

/// When a request reached the stations before the backend.
#[derive(Copy, Clone, Debug)]
pub struct RequestTimes {
    /// When the server received it.
    pub arrival: Instant,
    /// When it entered its model's queue.
    pub queued: Instant,
}

/// When a backend passed the stages of one execution.
#[derive(Copy, Clone, Debug)]
pub struct ExecutionTimes {
    /// The batch was handed over.
    pub start: Instant,
    /// The inputs are in place and computing begins.
    pub compute_start: Instant,
    /// Computing is done and outputs are collected.
    pub compute_end: Instant,
    /// The outputs are ready to be sent.
    pub end: Instant,
}

impl ExecutionTimes {
    /// Time spent on gathering inputs.
    #[must_use]
    pub fn input(&self) -> Duration {
        self.compute_start.saturating_duration_since(self.start)
    }

    /// Time spent on computing.
    #[must_use]
    pub fn infer(&self) -> Duration {
        self.compute_end.saturating_duration_since(self.compute_start)
    }

    /// Time spent on collecting outputs.
    #[must_use]
    pub fn output(&self) -> Duration {
        self.end.saturating_duration_since(self.compute_end)
    }
}

/// Who keeps the books of a model's requests; also what keeps the model
/// loaded while a request of its is on the way.
pub trait RequestObserver: Send + Sync + std::fmt::Debug {
    /// A request was executed and answered without an error.
    fn succeeded(&self, batch_size: u32, times: &RequestTimes, execution: &ExecutionTimes);
    /// A request ended with an error.
    fn failed(&self, times: &RequestTimes, reason: FailureReason);
}

impl PendingRequest {
    /// Joins an admitted request with its sender.
    ///
    /// `batch_size` is the request's size in its first dimension, 1 for a
    /// model without batching.
    pub fn new(
        request: InferenceRequest,
        sender: ResponseSender,
        batch_size: u32,
        times: RequestTimes,
        observer: Arc<dyn RequestObserver>,
    ) -> Self {
        Self { request, sender: Some(sender), batch_size, times, observer }
    }

    /// What the client asked for.
    #[must_use]
    pub const fn request(&self) -> &InferenceRequest {
        &self.request
    }

    /// How many batch elements it brings.
    #[must_use]
    pub const fn batch_size(&self) -> u32 {
        self.batch_size
    }

    /// When it passed the stations so far.
    #[must_use]
    pub const fn times(&self) -> RequestTimes {
        self.times
    }

    /// Answers the request with its only response, counts it and releases it.
    ///
    /// It is counted first: whoever has the response sees it in the
    /// statistics.
    pub fn complete(
        mut self,
        outcome: Result<InferenceResponse, Status>,
        execution: &ExecutionTimes,
    ) {
        match &outcome {
            Ok(_) => self.observer.succeeded(self.batch_size, &self.times, execution),
            Err(_) => self.observer.failed(&self.times, FailureReason::Backend),
        }
        if let Some(sender) = self.sender.take() {
            sender.send_final(outcome);
        }
    }

    /// Ends the request with an error before it was executed, and counts it
    /// under `reason`.
    pub fn fail(mut self, status: Status, reason: FailureReason) {
        self.observer.failed(&self.times, reason);
        if let Some(sender) = self.sender.take() {
            sender.fail(status);
        }
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        self.request.cancel.clear_hook();
        if self.sender.is_some() {
            self.observer.failed(&self.times, FailureReason::Other);
        }
    }
}
