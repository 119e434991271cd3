//! Plans the next batch: chooses the waiting requests that form it, and those that are passed over.
//!
//! A batch of n rows takes about a + b·n, so a large batch serves more rows in the same time, but
//! it must end by the earliest of its deadlines. The request with the earliest deadline may leave
//! so little time that only a small batch fits. Serving that request is right as long as the others
//! can still be served in time. Under overload they can't: small batches let the queue grow until
//! each request is served alone and almost too late. In that case, the plan passes over as few
//! requests at the front as possible to reach the batch size that the load demands.

use crate::cost::{CostCurve, RequiredRows};
use crate::time::Time;
use crate::tuned::{PATIENCE, WORTH_IT};
use crate::units::{RowRate, Rows};

/// The inputs of a plan.
pub(super) struct Planner<'a> {
    /// The durations of batches of these requests.
    pub(super) curve: &'a CostCurve,
    /// The time at which each instance becomes free, ascending. The first is free now.
    pub(super) lanes_free: &'a [Time],
    /// The rate of arriving rows.
    pub(super) rate: RowRate,
    /// The number of rows in a batch that keeps up with the arrivals.
    pub(super) needed: RequiredRows,
    pub(super) max_rows: Rows,
}

/// A plan's view of a waiting request.
#[derive(Copy, Clone, Debug)]
pub(super) struct Waiting {
    pub(super) deadline: Time,
    pub(super) rows: Rows,
}

/// The next batch.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct PlannedBatch {
    /// The number of requests at the front that are passed over.
    pub(super) passed_over: usize,
    /// The number of requests in the batch, at least one.
    pub(super) requests: usize,
    /// Their total number of rows.
    pub(super) rows: Rows,
    /// The reason why the batch has no more requests.
    pub(super) end: BatchEnd,
}

/// The time for which a free instance waits for more requests.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct WaitWindow {
    /// The time at which the batch closes as is.
    pub(super) closes: Time,
    /// The number of rows that the batch has.
    pub(super) rows: Rows,
    /// The number of rows at which the batch closes immediately.
    pub(super) wanted_rows: Rows,
}

/// The reason why a batch has no more requests.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum BatchEnd {
    /// No other request is waiting.
    NoneWaits,
    /// The batch has the maximum number of rows, or the next request would exceed it.
    Full,
    /// The batch would end after its earliest deadline if it included the next request.
    Deadline,
}

impl Planner<'_> {
    /// Chooses the next batch from the requests that can still be served. They are in service
    /// order, and there is at least one.
    pub(super) fn choose(
        &self,
        now: Time,
        waiting: &[Waiting],
    ) -> (PlannedBatch, Option<WaitWindow>) {
        match self.needed {
            RequiredRows::KeepsUp(rows) => (self.in_order(now, waiting, rows), None),
            RequiredRows::FallsBehind(rows) => self.for_most_rows(now, waiting, rows),
        }
    }

    /// Chooses the requests at the front unless that would make others too late. Applies while the
    /// instances keep up.
    fn in_order(&self, now: Time, waiting: &[Waiting], needed: Rows) -> PlannedBatch {
        let mut best = self.batch_from(now, waiting, 0);
        if best.rows >= needed || leaves_none(&best, waiting) || self.is_feasible(waiting) {
            return best;
        }
        for passed_over in candidates(waiting).skip(1) {
            let choice = self.batch_from(now, waiting, passed_over);
            if choice.rows > best.rows {
                best = choice;
            }
            if choice.rows >= needed || leaves_none(&choice, waiting) {
                break;
            }
        }
        best
    }

    /// Chooses the batch with the most rows per unit of time, including the time for which an
    /// instance waits for more rows. Applies when the instances are overloaded.
    fn for_most_rows(
        &self,
        now: Time,
        waiting: &[Waiting],
        wanted: Rows,
    ) -> (PlannedBatch, Option<WaitWindow>) {
        let mut best = (self.batch_from(now, waiting, 0), None);
        let mut most = RowRate::ZERO;
        for passed_over in candidates(waiting) {
            let choice = self.batch_from(now, waiting, passed_over);
            let takes = self.curve.estimate(choice.rows).unwrap_or_default();
            let rate = choice.rows.per_ns(takes.typical_ns.max(1) as f64);
            if rate > most * WORTH_IT {
                (best, most) = ((choice, None), rate);
            }
            if choice.rows >= wanted {
                break;
            }
            if leaves_none(&choice, waiting)
                && let Some((window, rate)) = self.wait(now, &choice, waiting, wanted)
                && rate > most * WORTH_IT
            {
                (best, most) = ((choice, Some(window)), rate);
            }
        }
        best
    }

    /// Returns the window of a batch that waits until it has the wanted number of rows, if its
    /// deadlines allow it, and the resulting rate.
    fn wait(
        &self,
        now: Time,
        choice: &PlannedBatch,
        waiting: &[Waiting],
        wanted: Rows,
    ) -> Option<(WaitWindow, RowRate)> {
        let wait_ns = self.rate.ns_for(wanted.saturating_sub(choice.rows));
        let takes = self.curve.estimate(wanted)?;
        let earliest = waiting[choice.passed_over..].iter().map(|one| one.deadline).min()?;
        let last_moment = Time(earliest.0.saturating_sub(takes.cautious_ns));
        if last_moment <= now.saturating_add(wait_ns as u64) {
            return None;
        }
        let rate = wanted.per_ns(wait_ns + takes.typical_ns as f64);
        let closes = last_moment.min(now.saturating_add((wait_ns * PATIENCE) as u64 + 1));
        Some((WaitWindow { closes, rows: choice.rows, wanted_rows: wanted }, rate))
    }

    /// Returns the batch of all requests that fit, regardless of their deadlines. Used as long as
    /// no cost is known.
    pub(super) fn without_costs(max_rows: Rows, waiting: &[Waiting]) -> PlannedBatch {
        extend(max_rows, waiting, 0, |_, _| true)
    }

    /// Returns the largest batch that starts at this request and ends by its earliest deadline. The
    /// first request is always included.
    pub(super) fn batch_from(
        &self,
        start: Time,
        waiting: &[Waiting],
        passed_over: usize,
    ) -> PlannedBatch {
        extend(self.max_rows, waiting, passed_over, |rows, deadline| {
            let takes = self.curve.estimate(rows).unwrap_or_default();
            start.saturating_add(takes.cautious_ns) <= deadline
        })
    }

    /// Returns true if all these requests can be served in time, in order, by the largest batches
    /// that fit.
    fn is_feasible(&self, waiting: &[Waiting]) -> bool {
        let mut lanes = self.lanes_free.to_vec();
        let mut next = 0;
        while next < waiting.len() {
            let Some(free) = lanes.iter_mut().min() else { return false };
            let batch = self.batch_from(*free, waiting, next);
            let takes = self.curve.estimate(batch.rows).unwrap_or_default();
            if free.saturating_add(takes.cautious_ns) > waiting[next].deadline {
                return false;
            }
            *free = free.saturating_add(takes.typical_ns);
            next += batch.requests;
        }
        true
    }
}

/// Returns true if no request is left waiting behind the batch.
fn leaves_none(choice: &PlannedBatch, waiting: &[Waiting]) -> bool {
    choice.passed_over + choice.requests == waiting.len()
}

/// Returns the numbers of requests at the front that may be passed over: none, then one by one, and
/// then in steps of an eighth.
fn candidates(waiting: &[Waiting]) -> impl Iterator<Item = usize> {
    let next = |passed_over: &usize| Some(passed_over + 1 + passed_over / 8);
    std::iter::successors(Some(0), next).take_while(|passed_over| *passed_over < waiting.len())
}

/// Adds requests to a batch while they fit by its rows and its earliest deadline.
fn extend(
    max_rows: Rows,
    waiting: &[Waiting],
    passed_over: usize,
    fits: impl Fn(Rows, Time) -> bool,
) -> PlannedBatch {
    let mut choice =
        PlannedBatch { passed_over, requests: 0, rows: Rows(0), end: BatchEnd::NoneWaits };
    let mut earliest = Time::MAX;
    for one in &waiting[passed_over..] {
        let rows = choice.rows + one.rows;
        earliest = earliest.min(one.deadline);
        if choice.requests > 0 {
            if rows > max_rows {
                choice.end = BatchEnd::Full;
                break;
            }
            if !fits(rows, earliest) {
                choice.end = BatchEnd::Deadline;
                break;
            }
        }
        choice.requests += 1;
        choice.rows = rows;
    }
    if choice.rows >= max_rows {
        choice.end = BatchEnd::Full;
    }
    choice
}
