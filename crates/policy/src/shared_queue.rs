//! The requests of models without a sequence batcher: one queue, from which any
//! free instance gets its batch.

use crate::batch::{Batch, BatchEntry, CloseReason};
use crate::batch_strategy::BatchStrategy;
use crate::batcher::{BatchDecision, DynamicBatcher, Intake};
use crate::event::{Action, Actions, FailReason};
use crate::hold::DispatchHold;
use crate::ids::{RequestInfo, RequestKey};
use crate::lane_pool::LanePool;
use crate::queue::{PolicyQueue, QueueFull};
use crate::status::{QueueStatus, QueueWaitReason, SchedulerStatus};
use crate::time::Time;

/// The queue, its batcher, and the hold of the test hook.
#[derive(Clone, Debug)]
pub(crate) struct SharedQueue<S> {
    queue: PolicyQueue,
    batcher: DynamicBatcher<S>,
    hold: DispatchHold,
    /// The decision at the end of the last step; none if no lane was free or the test
    /// hook holds. After `Close` the batch waits for a permit.
    last_decision: Option<BatchDecision>,
}

impl<S: BatchStrategy> SharedQueue<S> {
    pub(crate) fn new(queue: PolicyQueue, batcher: DynamicBatcher<S>, hold: DispatchHold) -> Self {
        SharedQueue { queue, batcher, hold, last_decision: None }
    }

    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn next_wakeup(&self) -> Option<Time> {
        let rejection = self.queue.next_rejection();
        // Without a free lane the order of the queue has no effect yet.
        let Some(BatchDecision::Wait { until, .. }) = self.last_decision else { return rejection };
        [rejection, self.queue.next_delay(), until].into_iter().flatten().min()
    }

    /// Called before each event, so that an expired request neither runs nor counts
    /// against the size limit.
    pub(crate) fn apply_timeouts(&mut self, now: Time, out: &mut Actions) {
        self.queue.apply_timeouts(now, out);
    }

    pub(crate) fn enqueue(&mut self, request: RequestInfo, now: Time, out: &mut Actions) {
        let key = request.key;
        match self.queue.enqueue(request, now) {
            Ok(_) => self.hold.count(),
            Err(QueueFull) => out.push(Action::Fail { key, reason: FailReason::QueueFull }),
        }
    }

    pub(crate) fn cancel(&mut self, key: RequestKey, out: &mut Actions) {
        self.queue.cancel(key, out);
    }

    /// Called when no request arrives any more, as a held request would never run.
    pub(crate) fn release_hold(&mut self) {
        self.hold = DispatchHold::Released;
    }

    /// Closes batches while lanes are free, and so as late as possible.
    pub(crate) fn dispatch(
        &mut self,
        now: Time,
        intake: Intake,
        lanes: &mut LanePool,
        out: &mut Actions,
    ) {
        while self.hold.is_released() && lanes.has_free() {
            let decision = self.batcher.decide(&self.queue, now, intake);
            self.last_decision = Some(decision);
            match decision {
                BatchDecision::Empty | BatchDecision::Wait { .. } => {
                    lanes.withdraw_all(out);
                    return;
                }
                BatchDecision::Close { requests, rows, reason } => {
                    let Some(instance) = lanes.assign(self.queue.len(), now, out) else { return };
                    let batch = self.take_from_front(requests, rows, reason);
                    out.push(Action::Dispatch { instance, batch });
                }
            }
        }
        self.last_decision = None;
    }

    fn take_from_front(&mut self, requests: usize, rows: u32, reason: CloseReason) -> Batch {
        self.batcher.close();
        let mut entries = Vec::with_capacity(requests);
        for _ in 0..requests {
            let first = self.queue.first().expect("the batcher counted queued requests");
            entries.push(BatchEntry::Request(self.queue.take(first).key));
        }
        Batch::new(entries, rows, reason)
    }

    /// The waiting requests by level.
    pub(crate) fn status(&self) -> Vec<QueueStatus> {
        self.queue.statuses(self.wait_reason()).take(SchedulerStatus::ROWS_MAX).collect()
    }

    /// The reason for which queued requests wait. It is the same for all, because a batch that
    /// waits to grow contains all of them.
    pub(crate) fn wait_reason(&self) -> QueueWaitReason {
        if let Some(hold) = self.hold.wait_reason() {
            return hold;
        }
        match self.last_decision {
            Some(BatchDecision::Wait { until, rows, next_preferred }) => {
                QueueWaitReason::BatchDelay {
                    pending_batch_size: rows,
                    next_preferred_batch_size: next_preferred,
                    until,
                }
            }
            Some(BatchDecision::Close { .. }) => QueueWaitReason::Permit,
            Some(BatchDecision::Empty) | None => QueueWaitReason::Lane,
        }
    }
}
