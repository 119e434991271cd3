//! Waiting requests that form the next batch, and those that are passed over for it.
//!
//! A batch of n rows takes about a + b·n, so a large batch serves more rows in the same
//! time, but it must end by the earliest deadline in it. The request with the earliest
//! deadline may leave so little time that only a small batch fits. Serving it is right as
//! long as the others can still be served in time. Under overload they can't: small batches
//! let the queue grow, until each request is served when it is almost too late, alone. Then
//! the requests in front are passed over, as few as let the batch become as large as the
//! load demands.

use crate::cost::{CostCurve, RequiredRows};
use crate::time::Time;
use crate::tuned::{PATIENCE, WORTH_IT};
use crate::units::{RowRate, Rows};

/// The facts that a plan follows from.
pub(super) struct Planner<'a> {
    /// The durations of batches of these requests.
    pub(super) curve: &'a CostCurve,
    /// When each instance is free, ascending; the first is free now.
    pub(super) lanes_free: &'a [Time],
    /// The rows that arrive.
    pub(super) rate: RowRate,
    /// The rows of a batch that keeps up with them.
    pub(super) needed: RequiredRows,
    pub(super) max_rows: Rows,
}

/// A waiting request, as a plan sees it.
#[derive(Copy, Clone, Debug)]
pub(super) struct Waiting {
    pub(super) deadline: Time,
    pub(super) rows: Rows,
}

/// The next batch.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct PlannedBatch {
    /// The number of requests in front that are passed over.
    pub(super) passed_over: usize,
    /// The number of requests in the batch, at least one.
    pub(super) requests: usize,
    /// Their rows together.
    pub(super) rows: Rows,
    /// Why it has no more.
    pub(super) end: BatchEnd,
}

/// A free instance waits for more requests.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct WaitWindow {
    /// When the batch closes as it is.
    pub(super) closes: Time,
    /// Rows that it has.
    pub(super) rows: Rows,
    /// Rows with which it closes at once.
    pub(super) wanted_rows: Rows,
}

/// Why a batch has no more requests.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum BatchEnd {
    /// No other request waits.
    NoneWaits,
    /// The next request would exceed the maximum, or the maximum is reached.
    Full,
    /// With the next request it would end after the earliest deadline in it.
    Deadline,
}

impl Planner<'_> {
    /// Chooses the next batch from the requests that can still be served, in the order of
    /// service, of which there is at least one.
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

    /// While the instances keep up: the requests in front, unless others would be too late
    /// for it.
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

    /// Beyond that the time of the instances is short: the batch with the most rows in
    /// the time that it takes, with the time for which an instance waits for more of them.
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

    /// The window of a batch that waits until it has the wanted rows, if its deadlines
    /// allow it, and the rate that comes of it.
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

    /// The batch of all that fit, whatever their deadlines: as long as no cost is known.
    pub(super) fn without_costs(max_rows: Rows, waiting: &[Waiting]) -> PlannedBatch {
        extend(max_rows, waiting, 0, |_, _| true)
    }

    /// The largest batch from this request on that ends by its earliest deadline. Its first
    /// request is in it anyhow.
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

    /// Returns true if all these requests are served in time, in order, by the largest batches that
    /// fit.
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

/// Returns true if no request waits behind the batch.
fn leaves_none(choice: &PlannedBatch, waiting: &[Waiting]) -> bool {
    choice.passed_over + choice.requests == waiting.len()
}

/// Numbers of requests in front that may be passed over: none, then one by one, and then in steps
/// of an eighth.
fn candidates(waiting: &[Waiting]) -> impl Iterator<Item = usize> {
    let next = |passed_over: &usize| Some(passed_over + 1 + passed_over / 8);
    std::iter::successors(Some(0), next).take_while(|passed_over| *passed_over < waiting.len())
}

/// Adds requests to a batch while it fits, by its rows and the earliest deadline in it.
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
