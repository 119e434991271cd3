//! The requests of a model whose batches are padded: who shares a batch when lengths differ.
//!
//! The request that is served first is in the next batch. Companions are chosen among those
//! of its level and shape class by their lengths (`choice`): as many as make the batch faster
//! than its requests one by one, by what executions have cost so far, and none if none does.
//! The budget bounds the elements of the padded batch, which are rows times length.
//!
//! A companion may be younger than others that fit worse. It is in no batch with a request of
//! a later level, and a request is passed over by at most [`PASSED_OVER_MAX`] batches: after
//! that, none of the requests behind it is chosen before it.
//!
//! Without a gain that is worth it, the order of arrival holds (`patience`).
//!
//! With a queue delay, a batch that would be faster with one more request waits for it.

mod choice;
mod front;
mod patience;

use std::collections::BTreeMap;

pub(crate) use self::choice::{Bounds, Choice, ChoiceEnd};
pub(crate) use self::front::{Front, FrontRequest};
use self::patience::{DueTime, Patience, TRIES};
use crate::batch::{Batch, BatchEntry, CloseReason};
use crate::batcher::Intake;
use crate::cost::PaddedCosts;
use crate::event::{Action, Actions, FailReason};
use crate::hold::DispatchHold;
use crate::ids::{InstanceId, RequestInfo, RequestKey};
use crate::lane_pool::LanePool;
use crate::queue::{DenseIndex, PolicyQueue, QueueFull, SlabIndex};
use crate::spec::{DynamicSpec, PaddingSpec};
use crate::status::{QueueStatus, QueueWaitReason, SchedulerStatus};
use crate::time::Time;

/// The requests that wait, and the executions.
#[derive(Clone, Debug)]
pub(crate) struct PaddedQueue {
    max_rows: u32,
    budget: u64,
    max_queue_delay_ns: u64,
    queue: PolicyQueue,
    /// The request of each entry of the queue's slab.
    entries: Vec<Entry>,
    /// The time of the waiting requests one by one, as far as was known when each came.
    alone_ns: u64,
    costs: PaddedCosts,
    running: BTreeMap<InstanceId, Running>,
    hold: DispatchHold,
    /// The reason for which the waiting requests wait, if an instance is free.
    waits: Waits,
    front: Front,
}

/// A waiting request's length, how many batches have passed it over, and when it is due.
#[derive(Copy, Clone, Debug, Default)]
struct Entry {
    length: u32,
    passed_over: u32,
    due_time: DueTime,
}

/// An execution.
#[derive(Copy, Clone, Debug)]
struct Running {
    since: Time,
    rows: u32,
    length: u32,
}

/// The reason for which requests wait while an instance is free.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Waits {
    /// None is free, or no request waits.
    Lane,
    Permit,
    /// For more requests.
    Growth {
        until: Option<Time>,
        rows: u32,
    },
}

/// The requests that wait with those in front, but can't be chosen.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Others {
    None,
    OfOtherClasses,
    /// Some were not looked at.
    Unseen,
}

/// A plan: the batch, and for how long it waits to grow.
struct Plan {
    choice: Choice,
    reason: CloseReason,
    /// None if it closes now.
    wait: Option<Waits>,
}

impl PaddedQueue {
    pub(crate) fn new(
        max_batch_size: u32,
        spec: &DynamicSpec,
        padding: &PaddingSpec,
        hold: DispatchHold,
    ) -> Self {
        PaddedQueue {
            max_rows: max_batch_size.max(1),
            budget: padding.budget,
            max_queue_delay_ns: spec.max_queue_delay_ns,
            queue: PolicyQueue::new(spec),
            entries: Vec::new(),
            alone_ns: 0,
            costs: PaddedCosts::new(),
            running: BTreeMap::new(),
            hold,
            waits: Waits::Lane,
            front: Front::default(),
        }
    }

    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Called when no request arrives any more, as a held request would never run.
    pub(crate) fn release_hold(&mut self) {
        self.hold = DispatchHold::Released;
    }

    pub(crate) fn next_wakeup(&self) -> Option<Time> {
        let rejection = self.queue.next_rejection();
        let Waits::Growth { until, .. } = self.waits else { return rejection };
        [rejection, self.queue.next_delay(), until].into_iter().flatten().min()
    }

    /// Called before each event, so that an expired request neither runs nor counts against
    /// the size limit.
    pub(crate) fn apply_timeouts(&mut self, now: Time, out: &mut Actions) {
        while let Some(index) = self.queue.next_expired(now) {
            let key = self.remove(index);
            out.push(Action::Fail { key, reason: FailReason::TimeoutExpired });
        }
        self.queue.apply_timeouts(now, out);
    }

    pub(crate) fn enqueue(
        &mut self,
        request: RequestInfo,
        now: Time,
        lanes: &LanePool,
        out: &mut Actions,
    ) {
        let (key, length) = (request.key, request.length);
        let due_time = self.due_time(&request, now, lanes);
        match self.queue.enqueue(request, now) {
            Ok(index) => {
                self.hold.count();
                self.alone_ns = self.alone_ns.saturating_add(due_time.alone_ns);
                if self.entries.len() <= index.index() {
                    self.entries.resize(index.index() + 1, Entry::default());
                }
                self.entries[index.index()] = Entry { length, passed_over: 0, due_time };
            }
            Err(QueueFull) => out.push(Action::Fail { key, reason: FailReason::QueueFull }),
        }
    }

    /// When a request that arrives would be answered one by one.
    fn due_time(&self, request: &RequestInfo, now: Time, lanes: &LanePool) -> DueTime {
        let (rows, length) = (request.rows(), request.length);
        if !self.costs.knows(rows, length) {
            return DueTime { arrived: now, due: Time::MAX, alone_ns: 0 };
        }
        let alone_ns = self.costs.estimate(rows, length).unwrap_or(0.0) as u64;
        let left = |running: &Running| {
            let takes_ns = self.costs.estimate(running.rows, running.length).unwrap_or(0.0);
            running.since.saturating_add(takes_ns as u64).saturating_since(now)
        };
        let running_ns = self.running.values().map(left).fold(0, u64::saturating_add);
        let ahead_ns = self.alone_ns.saturating_add(running_ns) / self.instances(lanes) as u64;
        let wait_ns = self.max_queue_delay_ns.saturating_add(ahead_ns).saturating_add(alone_ns);
        DueTime { arrived: now, due: now.saturating_add(wait_ns), alone_ns }
    }

    fn instances(&self, lanes: &LanePool) -> usize {
        (self.running.len() + lanes.free_count()).max(1)
    }

    pub(crate) fn cancel(&mut self, key: RequestKey, out: &mut Actions) {
        if let Some(index) = self.queue.find(key) {
            self.remove(index);
            out.push(Action::Fail { key, reason: FailReason::Cancelled });
        }
    }

    fn remove(&mut self, index: SlabIndex) -> RequestKey {
        let alone_ns = self.entries[index.index()].due_time.alone_ns;
        self.alone_ns = self.alone_ns.saturating_sub(alone_ns);
        self.queue.take(index).key
    }

    /// The instance has finished its batch.
    pub(crate) fn finish(&mut self, id: InstanceId, now: Time) {
        if let Some(ended) = self.running.remove(&id) {
            self.learn(ended.rows, ended.length, now.saturating_since(ended.since));
        }
    }

    /// An execution of this many rows took this long.
    pub(crate) fn learn(&mut self, rows: u32, length: u32, duration_ns: u64) {
        self.costs.observe(rows, length, duration_ns);
    }

    /// Closes batches while instances are free.
    pub(crate) fn dispatch(
        &mut self,
        now: Time,
        intake: Intake,
        lanes: &mut LanePool,
        out: &mut Actions,
    ) {
        self.waits = Waits::Lane;
        while self.hold.is_released() && lanes.has_free() {
            let instances = self.instances(lanes);
            let Some(plan) = self.plan(now, intake, instances) else {
                lanes.withdraw_all(out);
                return;
            };
            if let Some(wait) = plan.wait {
                self.waits = wait;
                lanes.withdraw_all(out);
                return;
            }
            let Some(instance) = lanes.assign(self.queue.len(), now, out) else {
                self.waits = Waits::Permit;
                return;
            };
            let Choice { rows, length, .. } = plan.choice;
            self.running.insert(instance, Running { since: now, rows, length });
            let batch = self.take(&plan);
            out.push(Action::Dispatch { instance, batch });
        }
    }

    /// Decides on the next batch; none if no request waits.
    fn plan(&mut self, now: Time, intake: Intake, instances: usize) -> Option<Plan> {
        let first = self.queue.first()?;
        let others = self.look_at_front(first);
        self.front.sort();
        let first = self.front.candidate_at(0)?;
        let choice = self.choose(now, first, instances);
        let delay_ns = match intake {
            Intake::Open => self.max_queue_delay_ns,
            Intake::Closed => 0,
        };
        let arrivals = self.front.requests().iter().map(|one| self.queue.get(one.index).enqueued);
        let oldest = arrivals.min()?;
        let is_over = now.saturating_since(oldest) >= delay_ns;
        let reason = match choice.end {
            ChoiceEnd::Rows => CloseReason::MaxSize,
            ChoiceEnd::Budget => CloseReason::Budget,
            ChoiceEnd::Cost | ChoiceEnd::Deadline => CloseReason::Cost,
            ChoiceEnd::All if others == Others::Unseen => CloseReason::Cost,
            ChoiceEnd::All if others == Others::OfOtherClasses => CloseReason::Shape,
            ChoiceEnd::All if self.max_queue_delay_ns == 0 => CloseReason::InstanceIdle,
            ChoiceEnd::All if delay_ns == 0 => CloseReason::Unloading,
            ChoiceEnd::All if is_over => CloseReason::Delay,
            ChoiceEnd::All => {
                let until = oldest.deadline_after(delay_ns);
                let wait = Some(Waits::Growth { until, rows: choice.rows });
                return Some(Plan { choice, reason: CloseReason::Delay, wait });
            }
        };
        Some(Plan { choice, reason, wait: None })
    }

    /// The fastest batch with this candidate that puts no request off too far.
    fn choose(&mut self, now: Time, first: usize, instances: usize) -> Choice {
        let bounds = Bounds::new(self.max_rows, self.budget).beginning(now);
        let mut choice = self.front.choose(&self.costs, &bounds, first);
        for tries in (0..TRIES).rev() {
            let mut patience = Patience::new(now, &self.costs, &choice, instances);
            for (one, is_chosen) in self.front.with_choice(&choice) {
                patience.look_at(&self.entries[one.index.index()].due_time, is_chosen);
            }
            let Some(ends_by) = patience.ends_by().filter(|_| choice.request_count() > 1) else {
                break;
            };
            // After all tries the request in front is executed alone.
            let ends_by = if tries == 0 { now } else { ends_by };
            choice = self.front.choose(&self.costs, &bounds.ending_by(ends_by), first);
        }
        choice
    }

    /// Fills `front` with the requests that wait with the first one, in the order of service.
    fn look_at_front(&mut self, first: SlabIndex) -> Others {
        let class = self.queue.get(first).shape_class;
        let mut others = Others::None;
        self.front.clear();
        let mut next = Some(first);
        while let Some(index) = next
            && self.queue.wait_alike(first, index)
        {
            let Entry { length, passed_over, .. } = self.entries[index.index()];
            let queued = self.queue.get(index);
            if !self.front.push(FrontRequest {
                index,
                class: queued.shape_class,
                rows: queued.rows,
                length,
                deadline: Time::MAX,
                passed_over,
            }) {
                return Others::Unseen;
            }
            if queued.shape_class != class {
                others = Others::OfOtherClasses;
            }
            next = self.queue.next_after(index);
        }
        others
    }

    /// Takes the chosen requests out of the queue.
    fn take(&mut self, plan: &Plan) -> Batch {
        let entries = &mut self.entries;
        let chosen = self.front.take(&plan.choice, |index| entries[index.index()].passed_over += 1);
        let take = |index| BatchEntry::Request(self.remove(index));
        let entries = chosen.into_iter().map(take).collect();
        Batch::new(entries, plan.choice.rows, plan.reason)
    }

    /// The waiting requests by level.
    pub(crate) fn status(&self) -> Vec<QueueStatus> {
        self.queue.statuses(self.wait_reason()).take(SchedulerStatus::ROWS_MAX).collect()
    }

    /// The reason for which queued requests wait.
    pub(crate) fn wait_reason(&self) -> QueueWaitReason {
        match (self.hold.wait_reason(), self.waits) {
            (Some(hold), _) => hold,
            (None, Waits::Lane) => QueueWaitReason::Lane,
            (None, Waits::Permit) => QueueWaitReason::Permit,
            (None, Waits::Growth { until, rows }) => QueueWaitReason::BatchDelay {
                pending_batch_size: rows,
                next_preferred_batch_size: self.max_rows,
                until,
            },
        }
    }
}

#[cfg(test)]
mod tests;
