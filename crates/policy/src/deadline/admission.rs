//! Predicts when an arriving request would complete.

use std::ops::RangeBounds;

use super::order::QueuePlace;
use super::padded::QueuedAhead;
use super::{Costs, DeadlineChooser};
use crate::cost::{CostCurve, RequiredRows};
use crate::ids::RequestInfo;
use crate::lane_pool::LanePool;
use crate::time::Time;
use crate::tuned::LOOK_AHEAD;
use crate::units::Rows;

/// The load that an arriving request encounters.
struct QueueLoad<'a> {
    /// The durations of batches of such requests.
    curve: &'a CostCurve,
    /// The time at which each instance becomes free, ascending. There is at least one.
    lanes_free: &'a [Time],
    /// The number of rows served before the request.
    rows_ahead: Rows,
    /// The size of the largest batch that ends within the objective.
    full_rows: Rows,
}

impl QueueLoad<'_> {
    /// Returns the time at which a request with this many rows typically completes if the rows
    /// ahead of it execute in full batches. Returns `None` as long as no cost is known.
    fn answered_at(&self, rows: Rows) -> Option<Time> {
        let lanes = self.lanes_free.len() as u64;
        let (batches, rest) = self.rows_ahead.in_batches_of(self.full_rows.max(Rows(1)));
        let (rounds, lane) = (batches / lanes, (batches % lanes) as usize);
        let full_ns = self.curve.estimate(self.full_rows)?.typical_ns;
        let own_ns = self.curve.estimate(rest + rows)?.typical_ns;
        let starts = self.lanes_free[lane].saturating_add(rounds.saturating_mul(full_ns));
        Some(starts.saturating_add(own_ns))
    }
}

impl DeadlineChooser {
    /// Returns the time at which the request would typically complete. Returns `None` until
    /// something has executed, or if there is no instance.
    pub(super) fn answered_at(
        &mut self,
        place: QueuePlace,
        request: &RequestInfo,
        now: Time,
        lanes: &LanePool,
    ) -> Option<Time> {
        self.look_at_lanes(now, lanes);
        let first_free = *self.lanes_free.first()?;
        match &self.costs {
            Costs::Alike(_) => self.answered_alike(place, request, now, first_free),
            Costs::Padded(_) => self.answered_padded(place, request, now, first_free),
        }
    }

    fn answered_alike(
        &self,
        place: QueuePlace,
        request: &RequestInfo,
        now: Time,
        first_free: Time,
    ) -> Option<Time> {
        let Costs::Alike(costs) = &self.costs else { return None };
        let curve = costs.curve(request.row_length())?;
        let passed_over = match curve.rows_for_rate(self.row_rate(now), self.lanes_free.len())? {
            RequiredRows::KeepsUp(_) => Rows(0),
            // Requests that are too late for a full batch will be passed over.
            RequiredRows::FallsBehind(rows) => {
                let full_ns = curve.estimate(rows)?.typical_ns;
                self.rows_within(due_before(first_free.saturating_add(full_ns), place))
            }
        };
        let rows_ahead = self.rows_ahead(place).saturating_sub(passed_over);
        let full_rows = curve.rows_within(self.objective_ns)?;
        let load = QueueLoad { curve, lanes_free: &self.lanes_free, rows_ahead, full_rows };
        load.answered_at(request.rows())
    }

    fn answered_padded(
        &self,
        place: QueuePlace,
        request: &RequestInfo,
        now: Time,
        first_free: Time,
    ) -> Option<Time> {
        let Costs::Padded(padded) = &self.costs else { return None };
        let mut ahead = self.ahead(place);
        if let Some(full_ns) = padded.falls_behind(ahead, &self.demand(now)) {
            let due = due_before(first_free.saturating_add(full_ns), place);
            ahead.remove(self.waiting_within(due));
        }
        padded.answered_at(&self.lanes_free, ahead, request.rows(), request.row_length())
    }

    /// Returns the number of rows served before this place.
    fn rows_ahead(&self, place: QueuePlace) -> Rows {
        if self.counts_from_the_front(place) {
            return self.rows_within(..place);
        }
        self.rows.saturating_sub(self.rows_within(place..))
    }

    /// Returns the rows served before this place, with their elements.
    fn ahead(&self, place: QueuePlace) -> QueuedAhead {
        if self.counts_from_the_front(place) {
            return self.waiting_within(..place);
        }
        let mut ahead = QueuedAhead { rows: self.rows, elements: self.elements };
        ahead.remove(self.waiting_within(place..));
        ahead
    }

    fn counts_from_the_front(&self, place: QueuePlace) -> bool {
        self.order.has_without_deadline() && self.order.range(..place).nth(LOOK_AHEAD).is_none()
    }

    /// Returns the number of rows of the requests in this part of the order, counting only the
    /// first `LOOK_AHEAD`.
    fn rows_within(&self, part: impl RangeBounds<QueuePlace>) -> Rows {
        let part = self.order.range(part).take(LOOK_AHEAD);
        part.map(|(_, index)| self.entry(index).rows).sum()
    }

    /// Returns the rows in this part of the order, with their elements.
    fn waiting_within(&self, part: impl RangeBounds<QueuePlace>) -> QueuedAhead {
        let mut within = QueuedAhead::default();
        for (_, index) in self.order.range(part).take(LOOK_AHEAD) {
            let waiting = self.entry(index);
            within.add(waiting.rows, waiting.length);
        }
        within
    }
}

/// Returns the part of a level's order whose deadlines precede this time and whose places precede
/// this place.
fn due_before(time: Time, place: QueuePlace) -> std::ops::Range<QueuePlace> {
    let level = QueuePlace { deadline: Time(0), arrival: 0, ..place };
    level..QueuePlace { deadline: time.min(place.deadline), ..level }
}
