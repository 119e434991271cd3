//! Padded batches of requests with different lengths that meet their deadlines.
//!
//! A request's work is the time that it takes when it is executed alone. A padded batch completes
//! the work of its requests in less time, by a factor that is called its speed. The instances are
//! overloaded if the arriving work requires a higher speed than any batch reaches.
//!
//! While the instances aren't overloaded, the next batch contains the request with the earliest
//! deadline. The batch grows by length (`padding`) as long as it ends before the deadlines of its
//! own requests and before the latest start times of the other requests that could execute behind
//! that request. If the arriving work needs faster batches than this yields, the plan passes over
//! as few requests at the front as possible to form such a batch. If the instances are overloaded,
//! the fastest batch is executed or waited for.

use super::plan::WaitWindow;
use crate::cost::PaddedCosts;
use crate::ids::ShapeClassId;
use crate::padding::{BatchBounds, ChoiceEnd, Front, FrontRequest, PaddedChoice};
use crate::queue::{DenseIndex, SlabIndex};
use crate::time::Time;
use crate::tuned::{LATEST_SHARE, PATIENCE, TRIES, WORTH_IT};
use crate::units::{Elements, Length, RowRate, Rows, Speed, Work};

/// The load of the arriving requests.
#[derive(Copy, Clone, Debug)]
pub(super) struct ArrivalLoad {
    /// The batch speed that keeps up with the arriving work.
    pub(super) speed: Speed,
    /// The total speed of all instances that keeps up with the arriving work.
    pub(super) work: Speed,
    /// The rate of arriving rows.
    pub(super) rows: RowRate,
}

/// The requests that wait ahead of another request.
#[derive(Copy, Clone, Default, Debug)]
pub(super) struct QueuedAhead {
    pub(super) rows: Rows,
    /// The number of elements without padding.
    pub(super) elements: Elements,
}

impl QueuedAhead {
    pub(super) fn add(&mut self, rows: Rows, length: Length) {
        self.rows += rows;
        self.elements += rows.of_length(length);
    }

    pub(super) fn remove(&mut self, others: QueuedAhead) {
        self.rows -= others.rows;
        self.elements -= others.elements;
    }
}

/// The fastest batch of requests with one length.
struct FastestBatch {
    rows: Rows,
    takes_ns: f64,
    speed: Speed,
}

/// The costs of padded batches, and the plan for the next one.
#[derive(Clone, Debug)]
pub(super) struct PaddedBatches {
    pub(super) costs: PaddedCosts,
    bounds: BatchBounds,
    objective_ns: u64,
    pub(super) front: Front,
    /// The number of batches that have passed over each entry of the queue's slab.
    passed_over: Vec<u32>,
    /// The ratio of a batch's elements to the elements of its requests.
    stretch: f64,
}

impl PaddedBatches {
    pub(super) fn new(max_rows: Rows, budget: Elements, objective_ns: u64) -> Self {
        PaddedBatches {
            costs: PaddedCosts::new(),
            bounds: BatchBounds::new(max_rows, budget),
            objective_ns,
            front: Front::default(),
            passed_over: Vec::new(),
            stretch: 1.0,
        }
    }

    /// Returns the duration of a request's execution alone, or 0 as long as nothing is known.
    pub(super) fn alone_ns(&self, rows: Rows, length: Length) -> u64 {
        self.costs.least(rows, length).unwrap_or(0.0) as u64
    }

    /// Adds a waiting request.
    pub(super) fn insert(&mut self, index: SlabIndex) {
        if self.passed_over.len() <= index.index() {
            self.passed_over.resize(index.index() + 1, 0);
        }
        self.passed_over[index.index()] = 0;
    }

    pub(super) fn passed_over(&self, index: SlabIndex) -> u32 {
        self.passed_over[index.index()]
    }

    /// Returns the fastest batch of requests of this length. Returns `None` as long as nothing is
    /// known.
    fn fastest(&self, length: Length) -> Option<FastestBatch> {
        let rows_max = self.bounds.rows_max(length);
        let (rows, takes_ns) = self.costs.fastest(length, rows_max, self.objective_ns)?;
        let work = Work::alone(self.costs.estimate(Rows(1), length)?) * rows;
        Some(FastestBatch { rows, takes_ns, speed: work.over(takes_ns) })
    }

    /// Returns the time at which a request that encounters this load would typically complete.
    /// Returns `None` as long as nothing is known.
    pub(super) fn answered_at(
        &self,
        lanes_free: &[Time],
        ahead: QueuedAhead,
        rows: Rows,
        length: Length,
    ) -> Option<Time> {
        let own_ns = self.costs.least(rows, length)?;
        let common = self.common_length(ahead);
        let full = self.fastest(common)?;
        let (batches, rest) = ahead.rows.in_batches_of(full.rows);
        let lanes = lanes_free.len() as u64;
        let (rounds, lane) = (batches / lanes, (batches % lanes) as usize);
        let own_ns = match rest {
            Rows(0) => own_ns,
            _ => {
                let apart_ns = self.costs.estimate(rest, common)? + own_ns;
                let together = (rest + rows, common.max(length));
                let fits = together.0 <= self.bounds.rows_max(together.1);
                let joined_ns = self.costs.estimate(together.0, together.1)?;
                if fits { apart_ns.min(joined_ns) } else { apart_ns }
            }
        };
        let starts = lanes_free[lane].saturating_add(rounds.saturating_mul(full.takes_ns as u64));
        Some(starts.saturating_add(own_ns as u64))
    }

    /// Returns the length of batches of these requests.
    fn common_length(&self, requests: QueuedAhead) -> Length {
        Length((requests.elements.per_row(requests.rows) * self.stretch) as u32)
    }

    /// Returns the duration of the fastest batch of these requests if even that batch is too slow
    /// for the arriving work.
    pub(super) fn falls_behind(&self, requests: QueuedAhead, demand: &ArrivalLoad) -> Option<u64> {
        let fastest = self.fastest(self.common_length(requests))?;
        (fastest.speed < demand.speed).then_some(fastest.takes_ns as u64)
    }

    /// Chooses the next batch from the requests at the front, of which there is at least one. If
    /// the turn of the first one has come, the batch contains it.
    pub(super) fn choose(
        &mut self,
        now: Time,
        lanes_free: &[Time],
        demand: &ArrivalLoad,
        has_turn: bool,
    ) -> (PaddedChoice, Option<WaitWindow>) {
        self.front.sort();
        let bounds = self.bounds.beginning(now);
        let next_free = lanes_free.get(1).copied().unwrap_or(Time::MAX);
        let considerate = self.choose_considerately(&bounds, now, next_free);
        if has_turn {
            return (considerate, None);
        }
        let fastest = self.fastest(considerate.length).map_or(Speed(f64::MAX), |one| one.speed);
        let keeps_up = fastest >= demand.speed;
        if keeps_up
            && (considerate.speed >= demand.speed
                || self.front.has_all(&considerate)
                || self.is_feasible(now, lanes_free))
        {
            return (considerate, None);
        }
        let mut best = (considerate, None);
        let mut most = if keeps_up { considerate.speed } else { Speed(0.0) };
        for place in places(self.front.requests().len()) {
            let Some(chosen) = self.front.candidate_at(place) else { continue };
            let choice = self.front.choose(&self.costs, &bounds, chosen);
            if choice.speed > most * WORTH_IT {
                (best, most) = ((choice, None), choice.speed);
            }
            if choice.speed >= demand.speed.min(fastest) {
                break;
            }
            if !keeps_up
                && let Some((window, speed)) = self.wait(now, &choice, demand)
                && speed > most * WORTH_IT
            {
                (best, most) = ((choice, Some(window)), speed);
            }
        }
        best
    }

    /// Returns a batch that contains the first request and still leaves the other requests enough
    /// time.
    fn choose_considerately(
        &self,
        bounds: &BatchBounds,
        now: Time,
        next_free: Time,
    ) -> PaddedChoice {
        let first = self.front.candidate_at(0).expect("the first request is a candidate");
        let mut choice = self.front.choose(&self.costs, bounds, first);
        let alone = &self.front.requests()[0];
        let alone_ends = now.saturating_add(self.alone_ns(alone.rows, alone.length));
        let mut ends_by = Time::MAX;
        for _ in 0..TRIES {
            let ends = now.saturating_add(choice.takes_ns());
            let latest = self.front.left_out(&choice).map(|one| self.latest_start(one));
            let is_harmed =
                |latest: &Time| *latest < ends && *latest >= alone_ends && *latest < next_free;
            let Some(harmed) = latest.filter(is_harmed).min() else { break };
            ends_by = ends_by.min(harmed);
            choice = self.front.choose(&self.costs, &bounds.ending_by(ends_by), first);
        }
        choice
    }

    /// Returns the latest time at which the request must start executing.
    fn latest_start(&self, one: &FrontRequest) -> Time {
        if one.deadline == Time::MAX {
            return Time::MAX;
        }
        let takes_ns = self.costs.least(one.rows, one.length).unwrap_or(0.0);
        Time(one.deadline.0.saturating_sub(self.costs.cautious(takes_ns) as u64))
    }

    /// Returns true if all these requests can be served in time, in order and one by one.
    fn is_feasible(&self, now: Time, lanes_free: &[Time]) -> bool {
        let mut lanes = lanes_free.to_vec();
        self.front.requests().iter().all(|one| {
            let Some(free) = lanes.iter_mut().min() else { return false };
            let starts = (*free).max(now);
            *free = starts.saturating_add(self.alone_ns(one.rows, one.length));
            starts <= self.latest_start(one)
        })
    }

    /// Returns the window of a batch that waits for more requests, if its deadlines allow it, and
    /// the resulting speed.
    fn wait(
        &self,
        now: Time,
        choice: &PaddedChoice,
        demand: &ArrivalLoad,
    ) -> Option<(WaitWindow, Speed)> {
        let has_all = choice.end == ChoiceEnd::All && self.front.has_all(choice);
        if !has_all || demand.rows <= RowRate::ZERO {
            return None;
        }
        let FastestBatch { rows: wanted, takes_ns, .. } = self.fastest(choice.length)?;
        if wanted <= choice.rows {
            return None;
        }
        let wait_ns = demand.rows.ns_for(wanted.saturating_sub(choice.rows));
        let cautious_ns = self.costs.cautious(takes_ns) as u64;
        let last_moment = Time(choice.earliest.0.saturating_sub(cautious_ns));
        if last_moment <= now.saturating_add(wait_ns as u64) {
            return None;
        }
        let work = choice.work + demand.work.during(wait_ns);
        let closes = last_moment.min(now.saturating_add((wait_ns * PATIENCE) as u64 + 1));
        let window = WaitWindow { closes, rows: choice.rows, wanted_rows: wanted };
        Some((window, work.over(wait_ns + takes_ns)))
    }

    /// Returns the chosen requests, in service order.
    pub(super) fn take_batch(&mut self, choice: &PaddedChoice) -> Vec<SlabIndex> {
        if choice.request_count() > 1 {
            let own: Elements = self.front.chosen(choice).map(FrontRequest::elements).sum();
            let stretch = choice.rows.of_length(choice.length).ratio_to(own);
            self.stretch += (stretch.max(1.0) - self.stretch) * LATEST_SHARE;
        }
        let passed_over = &mut self.passed_over;
        self.front.take_batch(choice, |index| passed_over[index.index()] += 1)
    }

    /// Returns true if requests of classes other than the first request's are at the front.
    pub(super) fn has_other_classes(&self) -> bool {
        let class: Option<ShapeClassId> = self.front.requests().first().map(|one| one.class);
        self.front.requests().iter().any(|one| Some(one.class) != class)
    }
}

/// Returns the places at the front from which a batch is tried, each twice as far back as the
/// previous one.
fn places(count: usize) -> impl Iterator<Item = usize> {
    let next = |place: &usize| Some((place * 2).max(place + 1));
    std::iter::successors(Some(0), next).take_while(move |place| *place < count)
}

#[cfg(test)]
mod tests;
