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
//! Costs of executions are learned from the times between `Dispatch` and `LaneFree`.
//!
//! If batches are padded, requests of unequal lengths share them, and work takes the place of
//! rows (`padded`).

mod admission;
mod arrivals;
mod next_batch;
mod order;
mod padded;
mod plan;
mod probe;

use std::collections::BTreeMap;

use self::arrivals::ArrivalRate;
use self::order::{QueuePlace, ServiceOrder};
use self::padded::PaddedBatches;
use self::plan::{Waiting, Window};
use self::probe::Probe;
use crate::batcher::Intake;
use crate::cost::CostModel;
use crate::event::{Action, Actions, FailReason};
use crate::hold::DispatchHold;
use crate::ids::{InstanceId, RequestInfo, RequestKey};
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
    order: ServiceOrder,
    /// The place and length of each entry of the queue's slab.
    places: Vec<Option<(QueuePlace, u32)>>,
    rows: u64,
    /// Rows times length of the waiting requests.
    elements: u64,
    arrivals: u64,
    rate: ArrivalRate,
    /// The rate of the work that arrives: in nanoseconds of executions, if the requests were
    /// executed one by one. Only if batches are padded.
    work_rate: ArrivalRate,
    costs: Costs,
    probe: Probe,
    /// The deadline of a probe that waits, for nothing but an instance, or is executed.
    probing: Option<Time>,
    running: BTreeMap<InstanceId, Running>,
    hold: DispatchHold,
    /// At the end of the last step, a batch waited for a permit.
    awaits_permit: bool,
    /// At the end of the last step, an instance was free and waited for more requests.
    window: Option<Window>,
    /// The requests that a plan looks at, and the times at which instances are free, reused from
    /// plan to plan.
    waiting: Vec<Waiting>,
    lanes_free: Vec<Time>,
}

/// The costs of executions, and so the requests that share a batch.
#[derive(Clone, Debug)]
enum Costs {
    /// Requests of equal lengths.
    Alike(CostModel),
    /// Requests of any lengths.
    Padded(Box<PaddedBatches>),
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
        let costs = match &spec.queue.padding {
            None => Costs::Alike(CostModel::new(max_rows)),
            Some(padding) => {
                let batches = PaddedBatches::new(max_rows, padding.budget, spec.objective_ns);
                Costs::Padded(Box::new(batches))
            }
        };
        DeadlineQueue {
            objective_ns: spec.objective_ns,
            max_rows,
            queue: PolicyQueue::new(&spec.queue),
            order: ServiceOrder::default(),
            places: Vec::new(),
            rows: 0,
            elements: 0,
            arrivals: 0,
            rate: ArrivalRate::default(),
            work_rate: ArrivalRate::default(),
            costs,
            probe: Probe::default(),
            probing: None,
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
        self.count_arrival(&request, now);
        let deadline = now.saturating_add(self.objective_ns).min(request.deadline);
        let mut place = QueuePlace {
            level: self.queue.level_of(request.priority),
            deadline,
            arrival: self.arrivals,
        };
        self.arrivals += 1;
        let answered_at = self.answered_at(place, &request, now, lanes).unwrap_or(now);
        if answered_at <= deadline {
            self.probe.admit();
        } else if self.may_probe(now, deadline) && self.probe.tries_one() {
            // It is executed whatever is predicted.
            place.deadline = Time::MAX;
            self.probing = Some(deadline);
        } else {
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

    fn count_arrival(&mut self, request: &RequestInfo, now: Time) {
        self.rate.add(now, u64::from(request.rows()));
        if let Costs::Padded(padded) = &self.costs {
            self.work_rate.add(now, padded.work_ns(request.rows(), request.length));
        }
    }

    /// Returns true if a request that looks hopeless may be executed, as nothing else is.
    fn may_probe(&self, now: Time, deadline: Time) -> bool {
        deadline > now && self.running.is_empty() && self.queue.len() == 0
    }

    fn insert(&mut self, place: QueuePlace, index: SlabIndex, request: &RequestInfo) {
        self.hold.count();
        self.rows += u64::from(request.rows());
        self.elements += elements(request.rows(), request.length);
        if let Costs::Padded(padded) = &mut self.costs {
            padded.insert(index);
        }
        self.order.insert(place, index);
        if self.places.len() <= index.index() {
            self.places.resize(index.index() + 1, None);
        }
        self.places[index.index()] = Some((place, request.length));
    }

    /// Removes a request from its place.
    fn take(&mut self, index: SlabIndex) -> RequestKey {
        let (place, length) =
            self.places[index.index()].take().expect("a waiting request has a place");
        self.order.remove(place);
        let waiting = self.queue.take(index);
        self.rows -= u64::from(waiting.rows);
        self.elements -= elements(waiting.rows, length);
        waiting.key
    }

    pub(crate) fn cancel(&mut self, key: RequestKey, out: &mut Actions) {
        if let Some(index) = self.queue.find(key) {
            self.probing = None;
            self.take(index);
            out.push(Action::Fail { key, reason: FailReason::Cancelled });
        }
    }

    /// The instance has finished its batch.
    pub(crate) fn finish(&mut self, id: InstanceId, now: Time) {
        if let Some(deadline) = self.probing.take() {
            self.probe.finish(now <= deadline);
        }
        if let Some(ended) = self.running.remove(&id) {
            self.learn(ended.rows, ended.length, now.saturating_since(ended.since));
        }
    }

    /// An execution of this many rows took this long.
    pub(crate) fn learn(&mut self, rows: u32, length: u32, duration_ns: u64) {
        match &mut self.costs {
            Costs::Alike(costs) => costs.observe(length, rows, duration_ns),
            Costs::Padded(padded) => padded.costs.observe(rows, length, duration_ns),
        }
    }

    /// Fills `lanes_free`.
    fn look_at_lanes(&mut self, now: Time, lanes: &LanePool) {
        self.lanes_free.clear();
        self.lanes_free.extend((0..lanes.free_count()).map(|_| now));
        let busy = self.running.values().map(|running| running.until.unwrap_or(now).max(now));
        self.lanes_free.extend(busy);
        self.lanes_free.sort_unstable();
    }

    /// The least duration of the request's execution.
    fn least_ns(&self, index: SlabIndex) -> u64 {
        let (_, length) = self.places[index.index()].expect("a waiting request has a place");
        let rows = self.queue.get(index).rows;
        match &self.costs {
            Costs::Alike(costs) => {
                let estimate = || costs.curve(length)?.estimate(rows);
                estimate().map_or(0, |estimate| estimate.typical_ns)
            }
            Costs::Padded(padded) => padded.work_ns(rows, length),
        }
    }

    /// When the next request can't be answered in time any more, or has waited too long by
    /// its level's policy.
    pub(crate) fn next_wakeup(&self) -> Option<Time> {
        let hopeless = self.order.next_deadline().map(|(deadline, index)| {
            Time(deadline.0.saturating_sub(self.least_ns(index))).saturating_add(1)
        });
        let closes = self.window.map(|window| window.closes);
        [hopeless, self.queue.next_rejection(), closes].into_iter().flatten().min()
    }

    /// Refuses the requests that are too late even if they are executed at `start`, alone:
    /// all of them if executions take equally long.
    fn refuse_late(&mut self, start: Time, out: &mut Actions) {
        while let Some((_, index)) = self.order.next_deadline()
            && let Some(late_ns) = self.lateness_ns(index, start)
        {
            self.refuse(index, late_ns, out);
        }
    }

    /// The same for all requests that the next plan looks at.
    fn refuse_late_in_front(&mut self, now: Time, out: &mut Actions) {
        let late = |(_, index)| Some((index, self.lateness_ns(index, now)?));
        let late: Vec<(SlabIndex, u64)> =
            self.order.range(..).take(LOOK_AHEAD).filter_map(late).collect();
        for (index, late_ns) in late {
            self.refuse(index, late_ns, out);
        }
    }

    /// The delay of the request's answer behind its deadline if it is executed at `start`, alone;
    /// none if in time.
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
            let Some((next, window)) = self.choose(now, lanes, out) else {
                lanes.withdraw_all(out);
                return;
            };
            self.window = window.filter(|_| intake == Intake::Open && self.probing.is_none());
            if self.window.is_some() {
                lanes.withdraw_all(out);
                return;
            }
            let Some(instance) = lanes.assign(self.queue.len(), now, out) else {
                self.awaits_permit = true;
                return;
            };
            let batch = self.close(next, now, instance);
            out.push(Action::Dispatch { instance, batch });
        }
        if !lanes.has_free()
            && let Some(start) = self.running.values().filter_map(|running| running.until).min()
        {
            self.refuse_late(start.max(now), out);
        }
    }

    /// The waiting requests by level.
    pub(crate) fn status(&self) -> Vec<QueueStatus> {
        self.queue.statuses(self.wait_reason()).take(SchedulerStatus::ROWS_MAX).collect()
    }

    /// The reason for which queued requests wait.
    pub(crate) fn wait_reason(&self) -> QueueWaitReason {
        match self.hold.wait_reason() {
            Some(hold) => hold,
            None if self.awaits_permit => QueueWaitReason::Permit,
            None => {
                self.window.map_or(QueueWaitReason::Lane, |window| QueueWaitReason::BatchDelay {
                    pending_batch_size: window.rows,
                    next_preferred_batch_size: window.wanted_rows,
                    until: Some(window.closes),
                })
            }
        }
    }
}

/// The elements of a request; one of nothing counts as one.
fn elements(rows: u32, length: u32) -> u64 {
    (u64::from(rows) * u64::from(length)).max(1)
}

#[cfg(test)]
mod tests;
