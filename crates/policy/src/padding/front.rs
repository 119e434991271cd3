//! The requests at the front of a queue, from which the next padded batch is chosen.

use super::choice::{BatchBounds, Candidate, PaddedChoice, choose};
use crate::cost::PaddedCosts;
use crate::ids::ShapeClassId;
use crate::queue::SlabIndex;
use crate::time::Time;
use crate::tuned::{LOOK_AHEAD_PADDED, PASSED_OVER_MAX};
use crate::units::{Elements, Length, Rows};

/// A waiting request, as seen by the choice of a batch.
#[derive(Copy, Clone, Debug)]
pub(crate) struct FrontRequest {
    pub(crate) index: SlabIndex,
    pub(crate) class: ShapeClassId,
    pub(crate) rows: Rows,
    pub(crate) length: Length,
    pub(crate) deadline: Time,
    /// The number of batches that have passed over the request.
    pub(crate) passed_over: u32,
}

impl FrontRequest {
    /// Returns the request's rows times its length.
    pub(crate) fn elements(&self) -> Elements {
        self.rows.of_length(self.length)
    }
}

/// The requests at the front, in service order and sorted by length. The buffers are reused between
/// plans.
#[derive(Clone, Debug, Default)]
pub(crate) struct Front {
    requests: Vec<FrontRequest>,
    sorted: Vec<SortedPlace>,
    candidates: Vec<Candidate>,
    is_chosen: Vec<bool>,
}

/// The place of a request at the front, sorted by length.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct SortedPlace {
    length: Length,
    /// The tie-breaker for equal lengths: the older request is nearer to the first request.
    tie: i32,
    place: u32,
}

impl Front {
    pub(crate) fn clear(&mut self) {
        self.requests.clear();
    }

    /// Adds the request that is served next, unless the batch can't include any more.
    pub(crate) fn push(&mut self, request: FrontRequest) -> bool {
        let last = self.requests.last();
        // A request that was passed over too often blocks all requests behind it.
        let is_blocked = last.is_some_and(|last| last.passed_over >= PASSED_OVER_MAX);
        if is_blocked || self.requests.len() == LOOK_AHEAD_PADDED {
            return false;
        }
        self.requests.push(request);
        true
    }

    /// Returns all requests at the front, in service order.
    pub(crate) fn requests(&self) -> &[FrontRequest] {
        &self.requests
    }

    /// Makes the requests of the first request's shape class the candidates.
    pub(crate) fn sort(&mut self) {
        let first = self.requests[0];
        self.sorted.clear();
        for (place, one) in (0..).zip(&self.requests) {
            if one.class != first.class {
                continue;
            }
            let tie = i32::try_from(place).unwrap_or(i32::MAX);
            let tie = if one.length < first.length { -tie } else { tie };
            self.sorted.push(SortedPlace { length: one.length, tie, place });
        }
        self.sorted.sort_unstable();
        self.candidates.clear();
        for sorted in &self.sorted {
            let one = &self.requests[sorted.place as usize];
            let FrontRequest { rows, length, deadline, .. } = *one;
            self.candidates.push(Candidate { rows, length, deadline });
        }
    }

    /// Returns the candidate index of the request at this place; `None` if it belongs to a
    /// different class.
    pub(crate) fn candidate_at(&self, place: usize) -> Option<usize> {
        self.sorted.iter().position(|one| one.place as usize == place)
    }

    /// Returns the batch that includes this candidate.
    pub(crate) fn choose(
        &self,
        costs: &PaddedCosts,
        bounds: &BatchBounds,
        chosen: usize,
    ) -> PaddedChoice {
        choose(costs, bounds, &self.candidates, chosen)
    }

    /// Returns true if all candidates are in the batch.
    pub(crate) fn has_all(&self, choice: &PaddedChoice) -> bool {
        choice.request_count() == self.candidates.len()
    }

    /// Returns the requests of the batch, by length.
    pub(crate) fn chosen(&self, choice: &PaddedChoice) -> impl Iterator<Item = &FrontRequest> {
        self.sorted[choice.first..=choice.last].iter().map(|one| &self.requests[one.place as usize])
    }

    /// Returns the requests that aren't in the batch.
    pub(crate) fn left_out(&self, choice: &PaddedChoice) -> impl Iterator<Item = &FrontRequest> {
        let (before, behind) = (&self.sorted[..choice.first], &self.sorted[choice.last + 1..]);
        let alike = before.iter().chain(behind).map(|one| &self.requests[one.place as usize]);
        let class = self.requests[0].class;
        alike.chain(self.requests.iter().filter(move |one| one.class != class))
    }

    /// Returns all requests at the front, in service order, each with true if the batch includes
    /// it.
    pub(super) fn with_choice(
        &mut self,
        choice: &PaddedChoice,
    ) -> impl Iterator<Item = (&FrontRequest, bool)> {
        self.mark(choice);
        self.requests.iter().zip(self.is_chosen.iter().copied())
    }

    fn mark(&mut self, choice: &PaddedChoice) {
        self.is_chosen.clear();
        self.is_chosen.resize(self.requests.len(), false);
        for one in &self.sorted[choice.first..=choice.last] {
            self.is_chosen[one.place as usize] = true;
        }
    }

    /// Returns the chosen requests, in service order. Calls `passed_over` for each request that a
    /// younger one overtakes.
    pub(crate) fn take_batch(
        &mut self,
        choice: &PaddedChoice,
        mut passed_over: impl FnMut(SlabIndex),
    ) -> Vec<SlabIndex> {
        self.mark(choice);
        let youngest = self.is_chosen.iter().rposition(|is_chosen| *is_chosen).unwrap_or(0);
        let mut chosen = Vec::with_capacity(choice.last + 1 - choice.first);
        for (one, is_chosen) in self.requests[..=youngest].iter().zip(&self.is_chosen) {
            if *is_chosen {
                chosen.push(one.index);
            } else {
                passed_over(one.index);
            }
        }
        chosen
    }
}
