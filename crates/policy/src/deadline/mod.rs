//! Batching by deadlines: decides which requests are refused and when a batch closes.
//!
//! Within a level, requests are served in deadline order, the earliest first. A request is refused
//! on arrival if its response would come too late, and refused later if it becomes hopeless while
//! waiting, because an execution with a late result takes time away from other requests. No queue
//! delay needs to be configured. As long as the instances keep up, a batch closes when an instance
//! is free, because waiting would only save work for which there is time anyway. Under higher load,
//! an instance waits for enough requests to make its batch worth the time. Batch sizes follow from
//! the deadlines and the load (`plan`).
//!
//! Execution costs are learned from the times between `Dispatch` and `LaneFree`.
//!
//! With padding, requests of different lengths share batches, and work replaces rows as the unit
//! (`padded`).

mod admission;
mod arrivals;
mod next_batch;
mod order;
mod padded;
mod plan;
mod probe;

use std::collections::BTreeMap;

use self::arrivals::ArrivalRate;
use self::next_batch::NextBatch;
use self::order::{QueuePlace, ServiceOrder};
use self::padded::PaddedBatches;
use self::plan::Waiting;
use self::probe::{ActiveProbe, Probe};
use crate::batcher::{BatchDecision, Intake};
use crate::cost::CostModel;
use crate::ids::{InstanceId, RequestInfo, ShapeClassId};
use crate::lane_pool::LanePool;
use crate::queue::{DenseIndex, SlabIndex};
use crate::spec::DeadlineBatcherSpec;
use crate::time::Time;
use crate::tuned::LOOK_AHEAD;
use crate::units::{Elements, Length, Rows};

/// The waiting requests in deadline order, and the executions.
#[derive(Clone, Debug)]
pub(crate) struct DeadlineChooser {
    objective_ns: u64,
    max_rows: Rows,
    order: ServiceOrder,
    /// The request in each entry of the queue's slab.
    entries: Vec<Option<Entry>>,
    /// The total number of rows of the waiting requests, without padding.
    rows: Rows,
    elements: Elements,
    arrivals: u64,
    rate: ArrivalRate,
    /// The rate of arriving work: the execution time in nanoseconds that the requests would take
    /// one by one. Only used if batches are padded.
    work_rate: ArrivalRate,
    costs: Costs,
    probe: Probe,
    /// The probe that is executing, or is waiting only for an instance.
    probing: Option<ActiveProbe>,
    running: BTreeMap<InstanceId, Running>,
    /// The most recently decided batch.
    next: Option<NextBatch>,
    /// The requests that a plan considers and the times at which instances become free. The buffers
    /// are reused between plans.
    waiting: Vec<Waiting>,
    lanes_free: Vec<Time>,
}

/// A waiting request.
#[derive(Copy, Clone, Debug)]
struct Entry {
    place: QueuePlace,
    class: ShapeClassId,
    rows: Rows,
    length: Length,
}

/// The decision about an arriving request.
pub(crate) enum Admission {
    /// The request may wait at this place.
    Accepted(QueuePlace),
    /// The request would complete too late. A retry after this time might succeed.
    TooLate { retry_after_ns: u64 },
}

/// The costs of executions, which also determine the requests that can share a batch.
#[derive(Clone, Debug)]
enum Costs {
    /// Requests of equal lengths share a batch.
    Alike(CostModel),
    /// Requests of any lengths share a batch.
    Padded(Box<PaddedBatches>),
}

/// An execution in progress.
#[derive(Copy, Clone, Debug)]
struct Running {
    since: Time,
    /// The time at which the execution typically ends; `None` if no cost was known.
    until: Option<Time>,
    length: Length,
    rows: Rows,
}

impl DeadlineChooser {
    pub(crate) fn new(max_batch_size: u32, spec: &DeadlineBatcherSpec) -> Self {
        let max_rows = Rows(u64::from(max_batch_size.max(1)));
        let costs = match &spec.queue.padding {
            None => Costs::Alike(CostModel::new(max_rows)),
            Some(padding) => {
                let budget = Elements(padding.budget);
                let batches = PaddedBatches::new(max_rows, budget, spec.objective_ns);
                Costs::Padded(Box::new(batches))
            }
        };
        DeadlineChooser {
            objective_ns: spec.objective_ns,
            max_rows,
            order: ServiceOrder::default(),
            entries: Vec::new(),
            rows: Rows(0),
            elements: Elements(0),
            arrivals: 0,
            rate: ArrivalRate::default(),
            work_rate: ArrivalRate::default(),
            costs,
            probe: Probe::default(),
            probing: None,
            running: BTreeMap::new(),
            next: None,
            waiting: Vec::new(),
            lanes_free: Vec::new(),
        }
    }

    /// Counts an arriving request and decides whether it may wait.
    pub(crate) fn admit(
        &mut self,
        level: u64,
        request: &RequestInfo,
        now: Time,
        lanes: &LanePool,
    ) -> Admission {
        self.count_arrival(request, now);
        let deadline = now.saturating_add(self.objective_ns).min(request.deadline);
        let mut place = QueuePlace { level, deadline, arrival: self.arrivals };
        self.arrivals += 1;
        let answered_at = self.answered_at(place, request, now, lanes).unwrap_or(now);
        if answered_at <= deadline {
            self.probe.admit();
        } else if self.may_probe(now, deadline) && self.probe.tries_one() {
            // The probe is executed regardless of its prediction.
            place.deadline = Time::MAX;
            let arrival = place.arrival;
            self.probing = Some(ActiveProbe { deadline, arrival, instance: None });
        } else {
            let retry_after_ns = answered_at.saturating_since(deadline);
            return Admission::TooLate { retry_after_ns };
        }
        Admission::Accepted(place)
    }

    fn count_arrival(&mut self, request: &RequestInfo, now: Time) {
        self.rate.add(now, request.rows().0);
        if let Costs::Padded(padded) = &self.costs {
            self.work_rate.add(now, padded.alone_ns(request.rows(), request.row_length()));
        }
    }

    /// Returns true if a seemingly hopeless request may be executed because nothing else is
    /// executing.
    fn may_probe(&self, now: Time, deadline: Time) -> bool {
        deadline > now && self.running.is_empty() && self.order.is_empty()
    }

    /// Adds a waiting request.
    pub(crate) fn insert(&mut self, index: SlabIndex, request: &RequestInfo, place: QueuePlace) {
        let (rows, length) = (request.rows(), request.row_length());
        self.rows += rows;
        self.elements += rows.of_length(length);
        if let Costs::Padded(padded) = &mut self.costs {
            padded.insert(index);
        }
        self.order.insert(place, index);
        if self.entries.len() <= index.index() {
            self.entries.resize(index.index() + 1, None);
        }
        let entry = Entry { place, class: request.shape_class, rows, length };
        self.entries[index.index()] = Some(entry);
    }

    /// Removes a request that leaves the queue.
    pub(crate) fn remove(&mut self, index: SlabIndex) {
        let waiting = *self.entry(index);
        self.entries[index.index()] = None;
        self.order.remove(waiting.place);
        self.rows -= waiting.rows;
        self.elements -= waiting.rows.of_length(waiting.length);
    }

    fn entry(&self, index: SlabIndex) -> &Entry {
        self.entries[index.index()].as_ref().expect("a waiting request has an entry")
    }

    /// Ends the probe if it is this waiting request, which is canceled.
    pub(crate) fn cancel_probe(&mut self, index: SlabIndex) {
        let arrival = self.entry(index).place.arrival;
        self.probing.take_if(|probe| probe.arrival == arrival);
    }

    /// Records that the instance has finished its batch.
    pub(crate) fn finish_batch(&mut self, id: InstanceId, now: Time) {
        // Batches on other instances say nothing about the prediction.
        if let Some(probe) = self.probing.take_if(|probe| probe.instance == Some(id)) {
            self.probe.record_result(now <= probe.deadline);
        }
        if let Some(ended) = self.running.remove(&id) {
            self.learn_duration(ended.rows, ended.length, now.saturating_since(ended.since));
        }
    }

    /// Learns the duration of an execution with this many rows.
    pub(crate) fn learn_duration(&mut self, rows: Rows, length: Length, duration_ns: u64) {
        match &mut self.costs {
            Costs::Alike(costs) => costs.observe(rows, length, duration_ns),
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

    /// Returns the minimum duration of the request's execution.
    fn least_ns(&self, index: SlabIndex) -> u64 {
        let Entry { rows, length, .. } = *self.entry(index);
        match &self.costs {
            Costs::Alike(costs) => {
                let estimate = || costs.curve(length)?.estimate(rows);
                estimate().map_or(0, |estimate| estimate.typical_ns)
            }
            Costs::Padded(padded) => padded.alone_ns(rows, length),
        }
    }

    /// Returns the time at which it becomes impossible for the next request to complete in time.
    pub(crate) fn next_hopeless(&self) -> Option<Time> {
        self.order.next_deadline().map(|(deadline, index)| {
            Time(deadline.0.saturating_sub(self.least_ns(index))).saturating_add(1)
        })
    }

    /// Returns the time at which an instance will become free, as far as it can be predicted.
    pub(crate) fn next_free(&self) -> Option<Time> {
        self.running.values().filter_map(|running| running.until).min()
    }

    /// Returns the next request that is too late even if it executes alone at `start`, and its
    /// lateness. Checks only the earliest deadline, which suffices if executions take equally long.
    pub(crate) fn next_late(&self, start: Time) -> Option<(SlabIndex, u64)> {
        let (_, index) = self.order.next_deadline()?;
        Some((index, self.lateness_ns(index, start)?))
    }

    /// Returns all late requests among those that the next plan considers, each with its lateness.
    pub(crate) fn late_in_front(&self, now: Time) -> Vec<(SlabIndex, u64)> {
        let late = |(_, index)| Some((index, self.lateness_ns(index, now)?));
        self.order.range(..).take(LOOK_AHEAD).filter_map(late).collect()
    }

    /// Returns the delay of the request's response past its deadline if it executes alone at
    /// `start`; `None` if the response is in time.
    fn lateness_ns(&self, index: SlabIndex, start: Time) -> Option<u64> {
        let place = self.entry(index).place;
        let answered_at = start.saturating_add(self.least_ns(index));
        let late_ns = answered_at.saturating_since(place.deadline);
        (late_ns > 0).then_some(late_ns)
    }

    /// Decides on the next batch.
    pub(crate) fn decide(&mut self, now: Time, intake: Intake, lanes: &LanePool) -> BatchDecision {
        let Some((next, window)) = self.choose(now, lanes) else { return BatchDecision::Empty };
        let window = window.filter(|_| intake == Intake::Open && self.probing.is_none());
        if let Some(window) = window {
            let (rows, next_preferred) = (window.rows.as_u32(), window.wanted_rows.as_u32());
            return BatchDecision::Wait { until: Some(window.closes), rows, next_preferred };
        }
        let (requests, rows, reason) = next.summary();
        self.next = Some(next);
        BatchDecision::Close { requests, rows: rows.as_u32(), reason }
    }
}

#[cfg(test)]
mod tests;
