//! Requests that share a padded batch with the request that has to be in it.
//!
//! The companions are those of the nearest lengths, so the batch is a part of the requests in
//! the order of their lengths. It grows from the one request, by the shorter or the longer
//! neighbour, whichever leaves the batch faster beside an execution of its requests one by
//! one. Of all the batches on the way, the fastest is chosen, which may be the one request.

use crate::cost::PaddedCosts;
use crate::time::Time;
use crate::tuned::{GAIN_MIN, PADDED_MAX, WORTH_IT};

/// The bounds of a batch, beside its costs.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Bounds {
    max_rows: u32,
    /// The most rows times length.
    budget: u64,
    /// When it begins, if deadlines matter.
    begins: Time,
    /// When it must probably have ended, for the sake of others.
    ends_by: Time,
}

impl Bounds {
    /// The bounds of batches without deadlines.
    pub(crate) fn new(max_rows: u32, budget: u64) -> Self {
        Bounds { max_rows, budget, begins: Time(0), ends_by: Time::MAX }
    }

    /// The bounds of a batch that begins now.
    pub(crate) fn beginning(self, now: Time) -> Self {
        Bounds { begins: now, ..self }
    }

    /// The bounds of a batch that must have ended by then if it has several requests.
    pub(crate) fn ending_by(self, time: Time) -> Self {
        Bounds { ends_by: time, ..self }
    }

    /// The most rows of batches of this length.
    pub(crate) fn rows_max(&self, length: u32) -> u32 {
        let by_budget = self.budget / u64::from(length.max(1));
        self.max_rows.min(u32::try_from(by_budget).unwrap_or(u32::MAX)).max(1)
    }

    /// Returns true if a batch that typically takes this long meets its deadlines.
    fn leave_time(&self, costs: &PaddedCosts, takes_ns: f64, earliest: Time) -> bool {
        let ends = |takes_ns: f64| self.begins.saturating_add(takes_ns as u64);
        (earliest == Time::MAX || ends(costs.cautious(takes_ns)) <= earliest)
            && (self.ends_by == Time::MAX || ends(takes_ns) <= self.ends_by)
    }
}

/// A request that may be in the batch.
#[derive(Copy, Clone, Debug)]
pub(super) struct Candidate {
    pub(super) rows: u32,
    pub(super) length: u32,
    pub(super) deadline: Time,
}

/// The next batch: this part of the candidates.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(crate) struct Choice {
    pub(super) first: usize,
    /// The last one, inclusively.
    pub(super) last: usize,
    pub(crate) rows: u32,
    /// The length of the longest.
    pub(crate) length: u32,
    /// The earliest deadline in it.
    pub(crate) earliest: Time,
    /// The time that its requests would take one by one.
    pub(crate) one_by_one_ns: f64,
    /// The factor by which it is faster than that.
    pub(crate) speed: f64,
    pub(crate) end: ChoiceEnd,
}

impl Choice {
    /// Its typical duration.
    pub(crate) fn takes_ns(&self) -> u64 {
        (self.one_by_one_ns / self.speed) as u64
    }

    /// Number of its requests.
    pub(crate) fn request_count(&self) -> usize {
        self.last + 1 - self.first
    }
}

/// Why a batch has no more requests.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum ChoiceEnd {
    /// All candidates are in it. A further one would make it faster.
    All,
    /// With the next request it would exceed the maximum of rows.
    Rows,
    /// With the next request it would exceed the budget.
    Budget,
    /// More requests would make it slower, or that is not known yet.
    Cost,
    /// With the next request it would end after a deadline.
    Deadline,
}

/// A batch on the way to the choice.
#[derive(Copy, Clone, Debug)]
struct Growing {
    first: usize,
    last: usize,
    rows: u64,
    length: u32,
    earliest: Time,
    /// The elements that its requests have by themselves.
    own_elements: f64,
    /// The time that its requests would take one by one.
    one_by_one_ns: f64,
    /// The factor by which it is faster than that.
    speed: f64,
}

/// Chooses among the candidates, which are sorted by length, the batch with this one.
pub(super) fn choose(
    costs: &PaddedCosts,
    bounds: &Bounds,
    candidates: &[Candidate],
    chosen: usize,
) -> Choice {
    let one = &candidates[chosen];
    let mut growing = Growing {
        first: chosen,
        last: chosen,
        rows: u64::from(one.rows),
        length: one.length,
        earliest: one.deadline,
        own_elements: own_elements(one),
        one_by_one_ns: costs.estimate(one.rows, one.length).unwrap_or(0.0),
        speed: 1.0,
    };
    if !costs.knows(one.rows, one.length) {
        return growing.choice(ChoiceEnd::Cost);
    }
    let (mut best, mut end) = (growing, ChoiceEnd::Cost);
    loop {
        let below = growing.first.checked_sub(1);
        let below = below
            .map(|index| growing.with(costs, bounds, &candidates[index], (index, growing.last)));
        let above = candidates.get(growing.last + 1);
        let above =
            above.map(|one| growing.with(costs, bounds, one, (growing.first, growing.last + 1)));
        let next = match (below, above) {
            (Some(Ok(below)), Some(Ok(above))) if above.speed > below.speed => Ok(above),
            (Some(Ok(below)), _) => Ok(below),
            (_, Some(Ok(above))) => Ok(above),
            (Some(Err(why)), _) | (None, Some(Err(why))) => Err(why),
            (None, None) => Err(ChoiceEnd::All),
        };
        match next {
            Ok(next) => growing = next,
            Err(why) if best.is(&growing) => {
                end = why;
                break;
            }
            Err(_) => break,
        }
        if growing.speed > GAIN_MIN && growing.speed > best.speed * WORTH_IT {
            best = growing;
        }
    }
    if end == ChoiceEnd::All
        && let Err(why) = best.check_growth(costs, bounds)
    {
        end = why;
    }
    best.choice(end)
}

fn own_elements(one: &Candidate) -> f64 {
    (f64::from(one.rows) * f64::from(one.length)).max(1.0)
}

impl Growing {
    /// The batch with one more request, or why that is not possible.
    fn with(
        &self,
        costs: &PaddedCosts,
        bounds: &Bounds,
        one: &Candidate,
        (first, last): (usize, usize),
    ) -> Result<Growing, ChoiceEnd> {
        let rows = self.rows + u64::from(one.rows);
        let Some(rows_32) = u32::try_from(rows).ok().filter(|rows| *rows <= bounds.max_rows) else {
            return Err(ChoiceEnd::Rows);
        };
        let length = self.length.max(one.length);
        if rows.saturating_mul(u64::from(length)) > bounds.budget {
            return Err(ChoiceEnd::Budget);
        }
        let elements = rows as f64 * f64::from(length);
        let own_elements = self.own_elements + own_elements(one);
        if elements > costs.elements_max() || elements > PADDED_MAX * own_elements {
            return Err(ChoiceEnd::Cost);
        }
        let (Some(takes_ns), Some(alone_ns)) =
            (costs.estimate(rows_32, length), costs.estimate(one.rows, one.length))
        else {
            return Err(ChoiceEnd::Cost);
        };
        let earliest = self.earliest.min(one.deadline);
        if !bounds.leave_time(costs, takes_ns, earliest) {
            return Err(ChoiceEnd::Deadline);
        }
        let one_by_one_ns = self.one_by_one_ns + alone_ns;
        let speed = one_by_one_ns / takes_ns.max(1.0);
        Ok(Growing { first, last, rows, length, earliest, own_elements, one_by_one_ns, speed })
    }

    /// Why one more request, even of the best length, would not make the batch faster.
    fn check_growth(&self, costs: &PaddedCosts, bounds: &Bounds) -> Result<(), ChoiceEnd> {
        let one = Candidate { rows: 1, length: self.length, deadline: Time::MAX };
        let larger = self.with(costs, bounds, &one, (self.first, self.last))?;
        if larger.speed > self.speed { Ok(()) } else { Err(ChoiceEnd::Cost) }
    }

    fn is(&self, other: &Growing) -> bool {
        (self.first, self.last) == (other.first, other.last)
    }

    fn choice(&self, end: ChoiceEnd) -> Choice {
        let Growing { first, last, length, earliest, one_by_one_ns, speed, .. } = *self;
        // A request that exceeds the maximum is a batch of its own.
        let rows = u32::try_from(self.rows).unwrap_or(u32::MAX);
        Choice { first, last, rows, length, earliest, one_by_one_ns, speed, end }
    }
}
