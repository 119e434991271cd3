//! The requests of a model that is batched by deadlines: what waits, what is refused, and
//! when a batch closes.
//!
//! Requests of a level are served by their deadlines, the earliest first. A request is
//! refused when it arrives if its answer would come too late, and later if it turns out so:
//! an execution whose result comes too late takes the time of others. No queue delay has
//! to be configured: as long as the instances keep up, a batch closes when one is free,
//! because waiting would only save work that nothing else needs. Beyond that an instance
//! waits for the requests that make its batch worth the time. How large batches are follows
//! from the deadlines and the load (`plan`).
//!
//! What executions cost is learned from the times between `Dispatch` and `LaneFree`.

mod admission;
mod arrivals;
mod plan;

use std::collections::BTreeMap;
use std::ops::RangeBounds;

use self::admission::Load;
use self::arrivals::ArrivalRate;
use self::plan::{BatchEnd, Choice, Planner, Waiting, Window};
use crate::batch::{Batch, BatchEntry, CloseReason};
use crate::batcher::Intake;
use crate::cost::{CostModel, Rate};
use crate::event::{Action, Actions, FailReason};
use crate::hold::DispatchHold;
use crate::ids::{InstanceId, RequestInfo, RequestKey, ShapeClassId};
use crate::lane_pool::LanePool;
use crate::queue::{DenseIndex, PolicyQueue, QueueFull, SlabIndex};
use crate::spec::DeadlineSpec;
use crate::status::{QueueStatus, QueueWaitReason, SchedulerStatus};
use crate::time::Time;

/// A plan looks at this many requests in front of the queue.
const LOOK_AHEAD: usize = 128;

/// The batches are as large as this many times the arrivals demand, so that a queue that
/// has grown shrinks again.
const CATCH_UP: f64 = 1.05;

/// The requests that wait, and the executions.
#[derive(Clone, Debug)]
pub(crate) struct DeadlineQueue {
    objective_ns: u64,
    max_rows: u32,
    queue: PolicyQueue,
    /// The waiting requests in the order of service.
    order: BTreeMap<Place, SlabIndex>,
    /// The waiting requests that have a deadline, by it alone, whatever their levels.
    by_deadline: BTreeMap<(Time, u64), SlabIndex>,
    /// The place and length of each entry of the queue's slab.
    places: Vec<Option<(Place, u32)>>,
    rows: u64,
    arrivals: u64,
    rate: ArrivalRate,
    costs: CostModel,
    running: BTreeMap<InstanceId, Running>,
    hold: DispatchHold,
    /// At the end of the last step, a batch waited for a permit.
    awaits_permit: bool,
    /// At the end of the last step, an instance was free and waited for more requests.
    window: Option<Window>,
    /// For the plans; empty between them.
    waiting: Vec<Waiting>,
    lanes_free: Vec<Time>,
}

/// A place in the order of service.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    level: u64,
    deadline: Time,
    arrival: u64,
}

/// An execution.
#[derive(Copy, Clone, Debug)]
struct Running {
    since: Time,
    /// When it typically ends; none if no cost was known.
    until: Option<Time>,
    length: u32,
    rows: u32,
}

impl DeadlineQueue {
    pub(crate) fn new(max_batch_size: u32, spec: &DeadlineSpec, hold: DispatchHold) -> Self {
        let max_rows = max_batch_size.max(1);
        DeadlineQueue {
            objective_ns: spec.objective_ns,
            max_rows,
            queue: PolicyQueue::new(&spec.queue),
            order: BTreeMap::new(),
            by_deadline: BTreeMap::new(),
            places: Vec::new(),
            rows: 0,
            arrivals: 0,
            rate: ArrivalRate::default(),
            costs: CostModel::new(max_rows),
            running: BTreeMap::new(),
            hold,
            awaits_permit: false,
            window: None,
            waiting: Vec::new(),
            lanes_free: Vec::new(),
        }
    }

    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Called when no request arrives any more, as a held request would never run.
    pub(crate) fn release_hold(&mut self) {
        self.hold = DispatchHold::Released;
    }

    /// Refuses the requests that wait too long by their level's policy.
    pub(crate) fn apply_timeouts(&mut self, now: Time, out: &mut Actions) {
        while let Some(index) = self.queue.next_expired(now) {
            let key = self.take(index);
            out.push(Action::Fail { key, reason: FailReason::TimeoutExpired });
        }
    }

    /// Adds a request, or refuses it if its answer would come too late.
    pub(crate) fn enqueue(
        &mut self,
        request: RequestInfo,
        now: Time,
        lanes: &LanePool,
        out: &mut Actions,
    ) {
        self.rate.add(now, request.rows());
        let deadline = now.saturating_add(self.objective_ns).min(request.deadline);
        let place = Place {
            level: self.queue.level_of(request.priority),
            deadline,
            arrival: self.arrivals,
        };
        self.arrivals += 1;
        let answered_at = self.answered_at(place, &request, now, lanes).unwrap_or(now);
        if answered_at > deadline {
            let retry_after_ns = answered_at.saturating_since(deadline);
            let reason = FailReason::TooLate { retry_after_ns };
            out.push(Action::Fail { key: request.key, reason });
            return;
        }
        match self.queue.enqueue(request, now) {
            Ok(index) => self.insert(place, index, &request),
            Err(QueueFull) => {
                out.push(Action::Fail { key: request.key, reason: FailReason::QueueFull });
            }
        }
    }

    fn insert(&mut self, place: Place, index: SlabIndex, request: &RequestInfo) {
        self.hold.count();
        self.rows += u64::from(request.rows());
        self.order.insert(place, index);
        if place.deadline != Time::MAX {
            self.by_deadline.insert((place.deadline, place.arrival), index);
        }
        if self.places.len() <= index.index() {
            self.places.resize(index.index() + 1, None);
        }
        self.places[index.index()] = Some((place, request.length));
    }

    /// Removes a request from its place.
    fn take(&mut self, index: SlabIndex) -> RequestKey {
        let (place, _) = self.places[index.index()].take().expect("a waiting request has a place");
        self.order.remove(&place).expect("its place is in the order");
        self.by_deadline.remove(&(place.deadline, place.arrival));
        let waiting = self.queue.take(index);
        self.rows -= u64::from(waiting.rows);
        waiting.key
    }

    pub(crate) fn cancel(&mut self, key: RequestKey, out: &mut Actions) {
        if let Some(index) = self.queue.find(key) {
            self.take(index);
            out.push(Action::Fail { key, reason: FailReason::Cancelled });
        }
    }

    /// The instance has finished its batch.
    pub(crate) fn finish(&mut self, id: InstanceId, now: Time) {
        if let Some(ended) = self.running.remove(&id) {
            self.costs.observe(ended.length, ended.rows, now.saturating_since(ended.since));
        }
    }

    /// When the request would typically be answered. None as long as nothing was executed,
    /// or without an instance.
    fn answered_at(
        &mut self,
        place: Place,
        request: &RequestInfo,
        now: Time,
        lanes: &LanePool,
    ) -> Option<Time> {
        self.look_at_lanes(now, lanes);
        let first_free = *self.lanes_free.first()?;
        let curve = self.costs.curve(request.length)?;
        let rate = self.rate.rows_per_second(now) * CATCH_UP;
        let passed_over = match curve.rows_for_rate(rate, self.lanes_free.len())? {
            Rate::KeepsUp(_) => 0,
            // What is too late for a full batch will be passed over.
            Rate::FallsBehind(rows) => {
                let full_ns = curve.estimate(rows)?.typical_ns;
                let deadline = first_free.saturating_add(full_ns).min(place.deadline);
                let level = Place { deadline: Time(0), arrival: 0, ..place };
                self.rows_within(level..Place { deadline, ..level })
            }
        };
        let rows_ahead = self.rows - self.rows_within(place..) - passed_over;
        let full_rows = curve.rows_within(self.objective_ns)?;
        let load = Load { curve, lanes_free: &self.lanes_free, rows_ahead, full_rows };
        load.answered_at(request.rows())
    }

    /// The rows of the requests in this part of the order, or of some of many.
    fn rows_within(&self, part: impl RangeBounds<Place>) -> u64 {
        let part = self.order.range(part).take(LOOK_AHEAD);
        part.map(|(_, index)| u64::from(self.queue.get(*index).rows)).sum()
    }

    /// Fills `lanes_free`.
    fn look_at_lanes(&mut self, now: Time, lanes: &LanePool) {
        self.lanes_free.clear();
        self.lanes_free.extend((0..lanes.free_count()).map(|_| now));
        let busy = self.running.values().map(|running| running.until.unwrap_or(now).max(now));
        self.lanes_free.extend(busy);
        self.lanes_free.sort_unstable();
    }

    /// How long the request's execution takes at least.
    fn least_ns(&self, index: SlabIndex) -> u64 {
        let (_, length) = self.places[index.index()].expect("a waiting request has a place");
        let estimate = || self.costs.curve(length)?.estimate(self.queue.get(index).rows);
        estimate().map_or(0, |estimate| estimate.typical_ns)
    }

    /// When the next request can't be answered in time any more, or has waited too long by
    /// its level's policy.
    pub(crate) fn next_wakeup(&self) -> Option<Time> {
        let hopeless = self.by_deadline.first_key_value().map(|((deadline, _), index)| {
            Time(deadline.0.saturating_sub(self.least_ns(*index))).saturating_add(1)
        });
        let closes = self.window.map(|window| window.closes);
        [hopeless, self.queue.next_rejection(), closes].into_iter().flatten().min()
    }

    /// Refuses the requests that are too late even if they are executed at `start`, alone:
    /// all of them if executions take equally long.
    fn refuse_late(&mut self, start: Time, out: &mut Actions) {
        while let Some(index) = self.by_deadline.values().next().copied()
            && let Some(late_ns) = self.lateness_ns(index, start)
        {
            self.refuse(index, late_ns, out);
        }
    }

    /// The same for all requests that the next plan looks at.
    fn refuse_late_in_front(&mut self, now: Time, out: &mut Actions) {
        let late = |index: &SlabIndex| Some((*index, self.lateness_ns(*index, now)?));
        let late: Vec<(SlabIndex, u64)> =
            self.order.values().take(LOOK_AHEAD).filter_map(late).collect();
        for (index, late_ns) in late {
            self.refuse(index, late_ns, out);
        }
    }

    /// How much too late the request is answered if it is executed at `start`, alone; none
    /// if it is answered in time.
    fn lateness_ns(&self, index: SlabIndex, start: Time) -> Option<u64> {
        let (place, _) = self.places[index.index()].expect("a waiting request has a place");
        let answered_at = start.saturating_add(self.least_ns(index));
        let late_ns = answered_at.saturating_since(place.deadline);
        (late_ns > 0).then_some(late_ns)
    }

    fn refuse(&mut self, index: SlabIndex, retry_after_ns: u64, out: &mut Actions) {
        let key = self.take(index);
        out.push(Action::Fail { key, reason: FailReason::TooLate { retry_after_ns } });
    }

    /// Closes batches while instances are free.
    pub(crate) fn dispatch(
        &mut self,
        now: Time,
        intake: Intake,
        lanes: &mut LanePool,
        out: &mut Actions,
    ) {
        self.awaits_permit = false;
        self.window = None;
        self.refuse_late(now, out);
        while self.hold.is_released() && lanes.has_free() {
            let Some((choice, window)) = self.choose(now, lanes, out) else {
                lanes.withdraw_all(out);
                return;
            };
            self.window = window.filter(|_| intake == Intake::Open);
            if self.window.is_some() {
                lanes.withdraw_all(out);
                return;
            }
            let Some(instance) = lanes.assign(self.queue.len(), now, out) else {
                self.awaits_permit = true;
                return;
            };
            let batch = self.close(choice, now, instance);
            out.push(Action::Dispatch { instance, batch });
        }
        if !lanes.has_free()
            && let Some(start) = self.running.values().filter_map(|running| running.until).min()
        {
            self.refuse_late(start.max(now), out);
        }
    }

    /// Plans the next batch: the first request's shape class decides who may share it. With
    /// a window, it is better to wait for more.
    fn choose(
        &mut self,
        now: Time,
        lanes: &LanePool,
        out: &mut Actions,
    ) -> Option<(Choice, Option<Window>)> {
        self.refuse_late_in_front(now, out);
        self.look_at_lanes(now, lanes);
        let (class, length) = self.first()?;
        self.waiting.clear();
        for (place, index) in self.order.iter().take(LOOK_AHEAD) {
            let queued = self.queue.get(*index);
            if queued.shape_class == class {
                self.waiting.push(Waiting { deadline: place.deadline, rows: queued.rows });
            }
        }
        let rate = self.rate.rows_per_second(now) * CATCH_UP;
        let planned = self.costs.curve(length).and_then(|curve| {
            let needed = curve.rows_for_rate(rate, self.lanes_free.len())?;
            let lanes_free = &self.lanes_free;
            let planner = Planner { curve, lanes_free, needed, rate, max_rows: self.max_rows };
            Some(planner.choose(now, &self.waiting))
        });
        Some(
            planned.unwrap_or_else(|| (Planner::without_costs(self.max_rows, &self.waiting), None)),
        )
    }

    /// The shape class and the length of the request that is served first.
    fn first(&self) -> Option<(ShapeClassId, u32)> {
        let (_, index) = self.order.first_key_value()?;
        let (_, length) = self.places[index.index()].expect("a waiting request has a place");
        Some((self.queue.get(*index).shape_class, length))
    }

    /// Takes the chosen requests out of the queue.
    fn close(&mut self, choice: Choice, now: Time, instance: InstanceId) -> Batch {
        let (class, length) = self.first().expect("the batch was chosen from the queue");
        let alike = |index: &&SlabIndex| self.queue.get(**index).shape_class == class;
        let chosen: Vec<SlabIndex> = self
            .order
            .values()
            .filter(alike)
            .skip(choice.passed_over)
            .take(choice.requests)
            .copied()
            .collect();
        let entries = chosen.into_iter().map(|index| BatchEntry::Request(self.take(index)));
        let entries: Vec<BatchEntry> = entries.collect();
        let estimate = self.costs.curve(length).and_then(|curve| curve.estimate(choice.rows));
        let until = estimate.map(|estimate| now.saturating_add(estimate.typical_ns));
        let running = Running { since: now, until, length, rows: choice.rows };
        self.running.insert(instance, running);
        let reason = match choice.end {
            BatchEnd::Full => CloseReason::MaxSize,
            BatchEnd::Deadline => CloseReason::Deadline,
            BatchEnd::NoneWaits => CloseReason::InstanceIdle,
        };
        Batch::new(entries, choice.rows, reason)
    }

    /// The waiting requests by level.
    pub(crate) fn status(&self) -> Vec<QueueStatus> {
        let waits_for = match self.hold.wait_reason() {
            Some(hold) => hold,
            None if self.awaits_permit => QueueWaitReason::Permit,
            None => {
                self.window.map_or(QueueWaitReason::Lane, |window| QueueWaitReason::BatchDelay {
                    pending_batch_size: window.rows,
                    next_preferred_batch_size: window.wanted_rows,
                    until: Some(window.closes),
                })
            }
        };
        self.queue.statuses(waits_for).take(SchedulerStatus::ROWS_MAX).collect()
    }
}

#[cfg(test)]
mod tests;
