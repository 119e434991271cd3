//! Padded batching: decides which requests share a batch when their lengths differ.
//!
//! The next batch always contains the request that is served first. Its companions are chosen by
//! length from the requests of its level and shape class (`choice`). The batch gets the companions
//! that make it fastest relative to executing its requests one by one, judged by past execution
//! costs. It gets none if none helps. The budget limits the number of elements in the padded batch,
//! which is rows times length.
//!
//! A companion may be younger than other requests that fit worse. It never shares a batch with a
//! request at a later level. A request is passed over by at most 16 batches: after that, no request
//! behind it is chosen before it.
//!
//! If batching doesn't gain enough, the arrival order is kept (`patience`).
//!
//! With a queue delay, a batch that would be faster with one more request waits for it.

mod choice;
mod front;
mod patience;

use std::collections::BTreeMap;

pub(crate) use self::choice::{BatchBounds, ChoiceEnd, PaddedChoice};
pub(crate) use self::front::{Front, FrontRequest};
use self::patience::{DelayLimit, DueTime};
use crate::batch::CloseReason;
use crate::batcher::{BatchDecision, Intake};
use crate::cost::PaddedCosts;
use crate::ids::{InstanceId, RequestInfo};
use crate::lane_pool::LanePool;
use crate::queue::{DenseIndex, PolicyQueue, SlabIndex};
use crate::spec::{DynamicBatcherSpec, PaddingSpec};
use crate::time::Time;
use crate::tuned::TRIES;
use crate::units::{Elements, Length, Rows};

/// The lengths of the waiting requests, and the execution costs.
#[derive(Clone, Debug)]
pub(crate) struct PaddedChooser {
    max_rows: Rows,
    budget: Elements,
    max_queue_delay_ns: u64,
    /// The request in each entry of the queue's slab.
    entries: Vec<Entry>,
    /// The total time that the waiting requests would take one by one, as estimated on arrival.
    alone_ns: u64,
    costs: PaddedCosts,
    running: BTreeMap<InstanceId, Running>,
    front: Front,
    /// The most recently decided batch.
    choice: Option<PaddedChoice>,
}

/// A waiting request's length, the number of batches that have passed it over, and its due time.
#[derive(Copy, Clone, Debug, Default)]
struct Entry {
    length: Length,
    passed_over: u32,
    due_time: DueTime,
}

/// An execution in progress.
#[derive(Copy, Clone, Debug)]
struct Running {
    since: Time,
    rows: Rows,
    length: Length,
}

/// The requests that wait with those at the front but can't be chosen.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum UnchosenRequests {
    None,
    OfOtherClasses,
    /// Some requests weren't examined.
    Unseen,
}

impl PaddedChooser {
    pub(crate) fn new(
        max_batch_size: u32,
        spec: &DynamicBatcherSpec,
        padding: &PaddingSpec,
    ) -> Self {
        PaddedChooser {
            max_rows: Rows(u64::from(max_batch_size.max(1))),
            budget: Elements(padding.budget),
            max_queue_delay_ns: spec.max_queue_delay_ns,
            entries: Vec::new(),
            alone_ns: 0,
            costs: PaddedCosts::new(),
            running: BTreeMap::new(),
            front: Front::default(),
            choice: None,
        }
    }

    /// Returns the time at which an arriving request would complete if requests were executed one
    /// by one.
    pub(crate) fn due_time(&self, request: &RequestInfo, now: Time, lanes: &LanePool) -> DueTime {
        let (rows, length) = (request.rows(), request.row_length());
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

    /// Adds a waiting request.
    pub(crate) fn insert(&mut self, index: SlabIndex, request: &RequestInfo, due_time: DueTime) {
        let length = request.row_length();
        self.alone_ns = self.alone_ns.saturating_add(due_time.alone_ns);
        if self.entries.len() <= index.index() {
            self.entries.resize(index.index() + 1, Entry::default());
        }
        self.entries[index.index()] = Entry { length, passed_over: 0, due_time };
    }

    /// Removes a request that leaves the queue.
    pub(crate) fn remove(&mut self, index: SlabIndex) {
        let alone_ns = self.entries[index.index()].due_time.alone_ns;
        self.alone_ns = self.alone_ns.saturating_sub(alone_ns);
    }

    /// Records that the instance has finished its batch.
    pub(crate) fn finish_batch(&mut self, id: InstanceId, now: Time) {
        if let Some(ended) = self.running.remove(&id) {
            self.learn_duration(ended.rows, ended.length, now.saturating_since(ended.since));
        }
    }

    /// Learns the duration of an execution with this many rows.
    pub(crate) fn learn_duration(&mut self, rows: Rows, length: Length, duration_ns: u64) {
        self.costs.observe(rows, length, duration_ns);
    }

    /// Decides on the next batch.
    pub(crate) fn decide(
        &mut self,
        queue: &PolicyQueue,
        now: Time,
        intake: Intake,
        lanes: &LanePool,
    ) -> BatchDecision {
        let Some(first) = queue.first() else { return BatchDecision::Empty };
        let others = self.look_at_front(queue, first);
        self.front.sort();
        let choice = self.choose(now, self.instances(lanes));
        self.choice = Some(choice);
        let delay_ns = match intake {
            Intake::Open => self.max_queue_delay_ns,
            Intake::Closed => 0,
        };
        let arrivals = self.front.requests().iter().map(|one| queue.get(one.index).enqueued);
        let oldest = arrivals.min().unwrap_or(now);
        let is_over = now.saturating_since(oldest) >= delay_ns;
        let reason = match choice.end {
            ChoiceEnd::Rows => CloseReason::MaxSize,
            ChoiceEnd::Budget => CloseReason::Budget,
            ChoiceEnd::Cost | ChoiceEnd::Deadline => CloseReason::Cost,
            ChoiceEnd::All if others == UnchosenRequests::Unseen => CloseReason::Cost,
            ChoiceEnd::All if others == UnchosenRequests::OfOtherClasses => CloseReason::Shape,
            ChoiceEnd::All if self.max_queue_delay_ns == 0 => CloseReason::InstanceIdle,
            ChoiceEnd::All if delay_ns == 0 => CloseReason::Unloading,
            ChoiceEnd::All if is_over => CloseReason::Delay,
            ChoiceEnd::All => {
                let until = oldest.deadline_after(delay_ns);
                let (rows, next_preferred) = (choice.rows.as_u32(), self.max_rows.as_u32());
                return BatchDecision::Wait { until, rows, next_preferred };
            }
        };
        let (requests, rows) = (choice.request_count(), choice.rows.as_u32());
        BatchDecision::Close { requests, rows, reason }
    }

    /// Returns the fastest batch with the first request that doesn't delay any request too much.
    fn choose(&mut self, now: Time, instances: usize) -> PaddedChoice {
        let first = self.front.candidate_at(0).expect("the first request is a candidate");
        let bounds = BatchBounds::new(self.max_rows, self.budget).beginning(now);
        let mut choice = self.front.choose(&self.costs, &bounds, first);
        for tries in (0..TRIES).rev() {
            let mut patience = DelayLimit::new(now, &self.costs, &choice, instances);
            for (one, is_chosen) in self.front.with_choice(&choice) {
                patience.add_waiting(&self.entries[one.index.index()].due_time, is_chosen);
            }
            let Some(ends_by) = patience.ends_by().filter(|_| choice.request_count() > 1) else {
                break;
            };
            // After all tries, the request at the front is executed alone.
            let ends_by = if tries == 0 { now } else { ends_by };
            choice = self.front.choose(&self.costs, &bounds.ending_by(ends_by), first);
        }
        choice
    }

    /// Fills `front` with the requests that wait along with the first one, in service order.
    fn look_at_front(&mut self, queue: &PolicyQueue, first: SlabIndex) -> UnchosenRequests {
        let class = queue.get(first).shape_class;
        let mut others = UnchosenRequests::None;
        self.front.clear();
        let mut next = Some(first);
        while let Some(index) = next
            && queue.wait_alike(first, index)
        {
            let Entry { length, passed_over, .. } = self.entries[index.index()];
            let queued = queue.get(index);
            if !self.front.push(FrontRequest {
                index,
                class: queued.shape_class,
                rows: queued.rows,
                length,
                deadline: Time::MAX,
                passed_over,
            }) {
                return UnchosenRequests::Unseen;
            }
            if queued.shape_class != class {
                others = UnchosenRequests::OfOtherClasses;
            }
            next = queue.next_after(index);
        }
        others
    }

    /// Returns the requests of the most recently decided batch, in service order. They aren't
    /// removed yet.
    pub(crate) fn close_batch(&mut self, now: Time, instance: InstanceId) -> Vec<SlabIndex> {
        let choice = self.choice.take().expect("a batch was decided on");
        let PaddedChoice { rows, length, .. } = choice;
        self.running.insert(instance, Running { since: now, rows, length });
        let entries = &mut self.entries;
        self.front.take_batch(&choice, |index| entries[index.index()].passed_over += 1)
    }
}

#[cfg(test)]
mod tests;
