//! Requests of models without a sequence batcher: any free instance gets its batch from a single
//! queue.
//!
//! A scheduler of independent requests combines an order, a chooser and a cost:
//!
//! | chooser | order | cost | module |
//! |---|---|---|---|
//! | by rows | priority, arrival | none | `batcher` |
//! | padded | priority, arrival | learned by rows and length | `padding` |
//! | by deadlines, rows or padded | priority, deadline, arrival | learned by rows, or by rows and length | `deadline` |
//!
//! A chooser decides on the next batch and is notified of requests that arrive or leave and of
//! executions that end. Everything else is implemented once, in this module: levels and their
//! policies, timeouts, the test hook's hold, free instances and permits.

use crate::batch::{Batch, BatchEntry, CloseReason};
use crate::batch_strategy::BatchStrategy;
use crate::batcher::{BatchDecision, DynamicBatcher, Intake};
use crate::deadline::{Admission, DeadlineChooser};
use crate::event::{FailReason, SchedulerAction, SchedulerActions, WarmupMeasurement};
use crate::hold::DispatchHold;
use crate::ids::{InstanceId, RequestInfo, RequestKey};
use crate::lane_pool::LanePool;
use crate::padding::PaddedChooser;
use crate::queue::{PolicyQueue, QueueFull, SlabIndex};
use crate::spec::{DeadlineBatcherSpec, DynamicBatcherSpec};
use crate::status::{PriorityLevelStatus, QueueWaitReason, SchedulerStatus};
use crate::time::Time;
use crate::units::{Length, Rows};

/// The queue, its chooser and the test hook's hold.
#[derive(Clone, Debug)]
pub(crate) struct IndependentRequests<S> {
    queue: PolicyQueue,
    chooser: Chooser<S>,
    hold: DispatchHold,
    /// The decision at the end of the last step; `None` if no lane was free or the test hook held
    /// requests. After `Close`, the batch waits for a permit.
    last_decision: Option<BatchDecision>,
}

/// The component that decides which requests form the next batch.
#[derive(Clone, Debug)]
enum Chooser<S> {
    Rows(DynamicBatcher<S>),
    Padded(Box<PaddedChooser>),
    Deadlines(Box<DeadlineChooser>),
}

impl<S: BatchStrategy> IndependentRequests<S> {
    /// Creates a scheduler that executes each request in a batch of its own, first come, first
    /// served.
    pub(crate) fn unbatched(hold: DispatchHold) -> Self {
        let chooser = Chooser::Rows(DynamicBatcher::one_request_per_batch());
        Self::new(PolicyQueue::unlimited(), chooser, hold)
    }

    /// Creates a scheduler that batches requests in arrival order, padded or not.
    pub(crate) fn dynamic(
        max_batch_size: u32,
        spec: &DynamicBatcherSpec,
        strategy: Option<S>,
        hold: DispatchHold,
    ) -> Self {
        let chooser = match &spec.padding {
            None => {
                Chooser::Rows(DynamicBatcher::new(max_batch_size, spec).with_strategy(strategy))
            }
            Some(padding) => {
                Chooser::Padded(Box::new(PaddedChooser::new(max_batch_size, spec, padding)))
            }
        };
        Self::new(PolicyQueue::new(spec), chooser, hold)
    }

    /// Creates a scheduler that batches requests in deadline order, padded or not.
    pub(crate) fn by_deadlines(
        max_batch_size: u32,
        spec: &DeadlineBatcherSpec,
        hold: DispatchHold,
    ) -> Self {
        let chooser = Chooser::Deadlines(Box::new(DeadlineChooser::new(max_batch_size, spec)));
        Self::new(PolicyQueue::new(&spec.queue), chooser, hold)
    }

    fn new(queue: PolicyQueue, chooser: Chooser<S>, hold: DispatchHold) -> Self {
        IndependentRequests { queue, chooser, hold, last_decision: None }
    }

    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Returns the time at which the next step is due: a timeout, a request that becomes hopeless,
    /// or the end of a wait.
    pub(crate) fn next_wakeup(&self) -> Option<Time> {
        let rejection = self.queue.next_rejection();
        let rejection = match &self.chooser {
            Chooser::Rows(_) | Chooser::Padded(_) => rejection,
            Chooser::Deadlines(deadlines) => {
                [rejection, deadlines.next_hopeless()].into_iter().flatten().min()
            }
        };
        // Without a free lane, the queue order has no effect yet.
        let Some(BatchDecision::Wait { until, .. }) = self.last_decision else { return rejection };
        [rejection, self.queue.next_delay(), until].into_iter().flatten().min()
    }

    /// Fails the requests whose timeouts expired under REJECT, and moves back those that expired
    /// under DELAY. Called before each event, so that an expired request neither runs nor counts
    /// against the size limit.
    pub(crate) fn apply_timeouts(&mut self, now: Time, out: &mut SchedulerActions) {
        while let Some(index) = self.queue.next_expired(now) {
            let key = self.take(index);
            out.push(SchedulerAction::Fail { key, reason: FailReason::TimeoutExpired });
        }
        self.queue.move_delayed(now);
    }

    /// Adds a request, unless its level is full or it would complete too late.
    pub(crate) fn enqueue(
        &mut self,
        request: RequestInfo,
        now: Time,
        lanes: &LanePool,
        out: &mut SchedulerActions,
    ) {
        let key = request.key;
        let entered = match &mut self.chooser {
            Chooser::Rows(_) => self.queue.enqueue(request, now).map(|_| ()),
            Chooser::Padded(padded) => {
                let due_time = padded.due_time(&request, now, lanes);
                let entered = self.queue.enqueue(request, now);
                entered.map(|index| padded.insert(index, &request, due_time))
            }
            Chooser::Deadlines(deadlines) => {
                let level = self.queue.level_of(request.priority);
                match deadlines.admit(level, &request, now, lanes) {
                    Admission::Accepted(place) => {
                        let entered = self.queue.enqueue(request, now);
                        entered.map(|index| deadlines.insert(index, &request, place))
                    }
                    Admission::TooLate { retry_after_ns } => {
                        let reason = FailReason::TooLate { retry_after_ns };
                        out.push(SchedulerAction::Fail { key, reason });
                        return;
                    }
                }
            }
        };
        match entered {
            Ok(()) => self.hold.count_queued(),
            Err(QueueFull) => {
                out.push(SchedulerAction::Fail { key, reason: FailReason::QueueFull })
            }
        }
    }

    /// Fails the request if it is waiting.
    pub(crate) fn cancel(&mut self, key: RequestKey, out: &mut SchedulerActions) {
        if let Some(index) = self.queue.find(key) {
            if let Chooser::Deadlines(deadlines) = &mut self.chooser {
                deadlines.cancel_probe(index);
            }
            self.take(index);
            out.push(SchedulerAction::Fail { key, reason: FailReason::Cancelled });
        }
    }

    /// Removes a request from the queue.
    fn take(&mut self, index: SlabIndex) -> RequestKey {
        match &mut self.chooser {
            Chooser::Rows(_) => {}
            Chooser::Padded(padded) => padded.remove(index),
            Chooser::Deadlines(deadlines) => deadlines.remove(index),
        }
        self.queue.take(index).key
    }

    /// Records that the instance has finished its batch.
    pub(crate) fn finish_batch(&mut self, id: InstanceId, now: Time) {
        match &mut self.chooser {
            Chooser::Rows(_) => {}
            Chooser::Padded(padded) => padded.finish_batch(id, now),
            Chooser::Deadlines(deadlines) => deadlines.finish_batch(id, now),
        }
    }

    /// Learns the cost of an execution if decisions depend on it.
    pub(crate) fn learn(&mut self, execution: &WarmupMeasurement) {
        let WarmupMeasurement { rows, length, duration_ns } = *execution;
        let (rows, length) = (Rows(u64::from(rows)), Length(length));
        match &mut self.chooser {
            Chooser::Rows(_) => {}
            Chooser::Padded(padded) => padded.learn_duration(rows, length, duration_ns),
            Chooser::Deadlines(deadlines) => deadlines.learn_duration(rows, length, duration_ns),
        }
    }

    /// Releases the hold. Called when no more requests arrive, because a held request would never
    /// run.
    pub(crate) fn release_hold(&mut self) {
        self.hold = DispatchHold::Released;
    }

    /// Closes batches while lanes are free, and therefore as late as possible.
    pub(crate) fn dispatch(
        &mut self,
        now: Time,
        intake: Intake,
        lanes: &mut LanePool,
        out: &mut SchedulerActions,
    ) {
        self.refuse_late(now, out);
        while self.hold.is_released() && lanes.has_free() {
            let decision = self.decide(now, intake, lanes, out);
            self.last_decision = Some(decision);
            match decision {
                BatchDecision::Empty | BatchDecision::Wait { .. } => {
                    lanes.withdraw_all(out);
                    return;
                }
                BatchDecision::Close { requests, rows, reason } => {
                    let Some(instance) = lanes.assign(self.queue.len(), now, out) else { return };
                    let batch = self.close((requests, rows, reason), now, instance);
                    out.push(SchedulerAction::Dispatch { instance, batch });
                }
            }
        }
        self.last_decision = None;
        if !lanes.has_free() {
            self.refuse_late_behind_others(now, out);
        }
    }

    fn decide(
        &mut self,
        now: Time,
        intake: Intake,
        lanes: &LanePool,
        out: &mut SchedulerActions,
    ) -> BatchDecision {
        match &mut self.chooser {
            Chooser::Rows(batcher) => batcher.decide(&self.queue, now, intake),
            Chooser::Padded(padded) => padded.decide(&self.queue, now, intake, lanes),
            Chooser::Deadlines(deadlines) => {
                for (index, late_ns) in deadlines.late_in_front(now) {
                    deadlines.remove(index);
                    refuse(self.queue.take(index).key, late_ns, out);
                }
                deadlines.decide(now, intake, lanes)
            }
        }
    }

    /// Takes the requests of the decided batch out of the queue.
    fn close(
        &mut self,
        (requests, rows, reason): (usize, u32, CloseReason),
        now: Time,
        instance: InstanceId,
    ) -> Batch {
        let mut entries = Vec::with_capacity(requests);
        let chosen = match &mut self.chooser {
            Chooser::Rows(batcher) => {
                batcher.close();
                for _ in 0..requests {
                    let first = self.queue.first().expect("the batcher counted queued requests");
                    entries.push(BatchEntry::Request(self.queue.take(first).key));
                }
                Vec::new()
            }
            Chooser::Padded(padded) => padded.close_batch(now, instance),
            Chooser::Deadlines(deadlines) => deadlines.close_batch(now, instance),
        };
        entries.extend(chosen.into_iter().map(|index| BatchEntry::Request(self.take(index))));
        Batch::new(entries, rows, reason)
    }

    /// Refuses requests that would miss their deadlines even if they were executed now.
    fn refuse_late(&mut self, now: Time, out: &mut SchedulerActions) {
        if let Chooser::Deadlines(deadlines) = &mut self.chooser {
            while let Some((index, late_ns)) = deadlines.next_late(now) {
                deadlines.remove(index);
                refuse(self.queue.take(index).key, late_ns, out);
            }
        }
    }

    /// Refuses requests that would miss their deadlines even if they were executed as soon as an
    /// instance becomes free.
    fn refuse_late_behind_others(&mut self, now: Time, out: &mut SchedulerActions) {
        if let Chooser::Deadlines(deadlines) = &self.chooser
            && let Some(start) = deadlines.next_free()
        {
            self.refuse_late(start.max(now), out);
        }
    }

    /// Returns the waiting requests by level.
    pub(crate) fn status(&self) -> Vec<PriorityLevelStatus> {
        self.queue.statuses(self.wait_reason()).take(SchedulerStatus::ROWS_MAX).collect()
    }

    /// Returns the reason why queued requests wait. It is the same for all of them, because a batch
    /// that waits to grow contains all of them.
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

/// Refuses a waiting request because it would complete too late.
fn refuse(key: RequestKey, retry_after_ns: u64, out: &mut SchedulerActions) {
    out.push(SchedulerAction::Fail { key, reason: FailReason::TooLate { retry_after_ns } });
}
