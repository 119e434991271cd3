//! Chooses the requests that share a padded batch with the request that must be in it.
//!
//! The companions are the requests with the nearest lengths, so the batch is a contiguous range of
//! the requests sorted by length. It starts with the required request and grows by its shorter or
//! longer neighbour, whichever makes the batch faster relative to executing its requests one by
//! one. Among all intermediate batches, the fastest is chosen, which may consist of only the
//! required request.

use crate::cost::PaddedCosts;
use crate::time::Time;
use crate::tuned::{GAIN_MIN, PADDED_MAX, WORTH_IT};
use crate::units::{Elements, Length, Rows, Speed, Work};

/// The bounds of a batch, apart from its costs.
#[derive(Copy, Clone, Debug)]
pub(crate) struct BatchBounds {
    max_rows: Rows,
    /// The maximum number of elements, including padding.
    budget: Elements,
    /// The time at which the batch begins, if deadlines matter.
    begins: Time,
    /// The time by which the batch must probably have ended to leave other requests enough time.
    ends_by: Time,
}

impl BatchBounds {
    /// Creates the bounds of batches without deadlines.
    pub(crate) fn new(max_rows: Rows, budget: Elements) -> Self {
        BatchBounds { max_rows, budget, begins: Time(0), ends_by: Time::MAX }
    }

    /// Returns the bounds of a batch that begins now.
    pub(crate) fn beginning(self, now: Time) -> Self {
        BatchBounds { begins: now, ..self }
    }

    /// Returns the bounds of a batch that must have ended by this time if it has several requests.
    pub(crate) fn ending_by(self, time: Time) -> Self {
        BatchBounds { ends_by: time, ..self }
    }

    /// Returns the maximum number of rows in batches of this length.
    pub(crate) fn rows_max(&self, length: Length) -> Rows {
        self.max_rows.min(self.budget.rows_of(length)).max(Rows(1))
    }

    /// Returns true if a batch with this typical duration meets its deadlines.
    fn leave_time(&self, costs: &PaddedCosts, takes_ns: f64, earliest: Time) -> bool {
        let ends = |takes_ns: f64| self.begins.saturating_add(takes_ns as u64);
        (earliest == Time::MAX || ends(costs.cautious(takes_ns)) <= earliest)
            && (self.ends_by == Time::MAX || ends(takes_ns) <= self.ends_by)
    }
}

/// A candidate for the batch.
#[derive(Copy, Clone, Debug)]
pub(super) struct Candidate {
    pub(super) rows: Rows,
    pub(super) length: Length,
    pub(super) deadline: Time,
}

impl Candidate {
    fn elements(&self) -> Elements {
        self.rows.of_length(self.length)
    }
}

/// The next batch, as a range of the candidates.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(crate) struct PaddedChoice {
    pub(super) first: usize,
    /// The index of the last candidate, inclusive.
    pub(super) last: usize,
    pub(crate) rows: Rows,
    /// The length of the longest request.
    pub(crate) length: Length,
    /// The earliest deadline in the batch.
    pub(crate) earliest: Time,
    /// The time that the batch's requests would take one by one.
    pub(crate) work: Work,
    /// The speedup over executing the requests one by one.
    pub(crate) speed: Speed,
    pub(crate) end: ChoiceEnd,
}

impl PaddedChoice {
    /// Returns the typical duration of the batch.
    pub(crate) fn takes_ns(&self) -> u64 {
        self.work.ns_at(self.speed) as u64
    }

    /// Returns the number of requests in the batch.
    pub(crate) fn request_count(&self) -> usize {
        self.last + 1 - self.first
    }
}

/// The reason why a batch has no more requests.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum ChoiceEnd {
    /// All candidates are in the batch. Another one would make it faster.
    All,
    /// The next request would exceed the maximum number of rows.
    Rows,
    /// The next request would exceed the budget.
    Budget,
    /// More requests would make the batch slower, or their effect isn't known yet.
    Cost,
    /// The batch would end after a deadline if it included the next request.
    Deadline,
}

/// An intermediate batch of the search.
#[derive(Copy, Clone, Debug)]
struct GrowingBatch {
    first: usize,
    last: usize,
    rows: Rows,
    length: Length,
    earliest: Time,
    /// The number of elements of the requests without padding.
    own_elements: Elements,
    /// The time that the batch's requests would take one by one.
    work: Work,
    /// The speedup over executing the requests one by one.
    speed: Speed,
}

/// Chooses the batch with this request from the candidates, which are sorted by length.
pub(super) fn choose(
    costs: &PaddedCosts,
    bounds: &BatchBounds,
    candidates: &[Candidate],
    chosen: usize,
) -> PaddedChoice {
    let one = &candidates[chosen];
    let mut growing = GrowingBatch {
        first: chosen,
        last: chosen,
        rows: one.rows,
        length: one.length,
        earliest: one.deadline,
        own_elements: one.elements(),
        work: Work::alone(costs.estimate(one.rows, one.length).unwrap_or(0.0)),
        speed: Speed::ONE,
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

impl GrowingBatch {
    /// Returns the batch with one more request, or the reason why that isn't possible.
    fn with(
        &self,
        costs: &PaddedCosts,
        bounds: &BatchBounds,
        one: &Candidate,
        (first, last): (usize, usize),
    ) -> Result<GrowingBatch, ChoiceEnd> {
        let rows = self.rows + one.rows;
        if rows > bounds.max_rows {
            return Err(ChoiceEnd::Rows);
        }
        let length = self.length.max(one.length);
        let elements = rows.of_length(length);
        if elements > bounds.budget {
            return Err(ChoiceEnd::Budget);
        }
        let own_elements = self.own_elements + one.elements();
        if !costs.can_judge(elements) || elements.ratio_to(own_elements) > PADDED_MAX {
            return Err(ChoiceEnd::Cost);
        }
        let (Some(takes_ns), Some(alone_ns)) =
            (costs.estimate(rows, length), costs.estimate(one.rows, one.length))
        else {
            return Err(ChoiceEnd::Cost);
        };
        let earliest = self.earliest.min(one.deadline);
        if !bounds.leave_time(costs, takes_ns, earliest) {
            return Err(ChoiceEnd::Deadline);
        }
        let work = self.work + Work::alone(alone_ns);
        let speed = work.over(takes_ns);
        Ok(GrowingBatch { first, last, rows, length, earliest, own_elements, work, speed })
    }

    /// Returns the reason why one more request, even of the best length, wouldn't make the batch
    /// faster.
    fn check_growth(&self, costs: &PaddedCosts, bounds: &BatchBounds) -> Result<(), ChoiceEnd> {
        let one = Candidate { rows: Rows(1), length: self.length, deadline: Time::MAX };
        let larger = self.with(costs, bounds, &one, (self.first, self.last))?;
        if larger.speed > self.speed { Ok(()) } else { Err(ChoiceEnd::Cost) }
    }

    fn is(&self, other: &GrowingBatch) -> bool {
        (self.first, self.last) == (other.first, other.last)
    }

    fn choice(&self, end: ChoiceEnd) -> PaddedChoice {
        let GrowingBatch { first, last, rows, length, earliest, work, speed, .. } = *self;
        PaddedChoice { first, last, rows, length, earliest, work, speed, end }
    }
}
