//! Plans the next batch of a model with deadlines and takes it out of the queue.

use super::order::QueuePlace;
use super::padded::ArrivalLoad;
use super::plan::{BatchEnd, PlannedBatch, Planner, WaitWindow, Waiting};
use super::{Costs, DeadlineChooser, Entry, Running};
use crate::batch::CloseReason;
use crate::ids::InstanceId;
use crate::lane_pool::LanePool;
use crate::padding::{self, ChoiceEnd, FrontRequest};
use crate::queue::{DenseIndex, SlabIndex};
use crate::time::Time;
use crate::tuned::{CATCH_UP, LOOK_AHEAD};
use crate::units::{RowRate, Rows, Speed};

/// The next batch.
#[derive(Clone, Debug)]
pub(super) enum NextBatch {
    /// Requests of one class, in service order.
    Alike(PlannedBatch),
    /// Requests of different lengths, and the reason why the batch has no more requests.
    Padded(padding::PaddedChoice, CloseReason),
}

impl NextBatch {
    /// Returns the number of requests in the batch, their rows, and the reason why it has no more
    /// requests.
    pub(super) fn summary(&self) -> (usize, Rows, CloseReason) {
        match self {
            NextBatch::Alike(choice) => {
                let reason = match choice.end {
                    BatchEnd::Full => CloseReason::MaxSize,
                    BatchEnd::Deadline => CloseReason::Deadline,
                    BatchEnd::NoneWaits => CloseReason::InstanceIdle,
                };
                (choice.requests, choice.rows, reason)
            }
            NextBatch::Padded(choice, reason) => (choice.request_count(), choice.rows, *reason),
        }
    }
}

impl DeadlineChooser {
    /// Plans the next batch for the shape class of the first request. If the plan has a window,
    /// waiting for more requests is better; a request whose turn has come doesn't wait.
    pub(super) fn choose(
        &mut self,
        now: Time,
        lanes: &LanePool,
    ) -> Option<(NextBatch, Option<WaitWindow>)> {
        self.look_at_lanes(now, lanes);
        match &self.costs {
            Costs::Alike(_) => self.choose_alike(now),
            Costs::Padded(_) => self.choose_padded(now),
        }
    }

    fn choose_alike(&mut self, now: Time) -> Option<(NextBatch, Option<WaitWindow>)> {
        let Entry { place: first, class, length, .. } = *self.first()?;
        self.waiting.clear();
        for (place, index) in self.order.range(first..).take(LOOK_AHEAD) {
            let queued = self.entries[index.index()].expect("a waiting request has an entry");
            if queued.class == class {
                self.waiting.push(Waiting { deadline: place.deadline, rows: queued.rows });
            }
        }
        let Costs::Alike(costs) = &self.costs else { return None };
        let rate = self.row_rate(now);
        let planned = costs.curve(length).and_then(|curve| {
            let needed = curve.rows_for_rate(rate, self.lanes_free.len())?;
            let lanes_free = &self.lanes_free;
            let planner = Planner { curve, lanes_free, needed, rate, max_rows: self.max_rows };
            if self.order.has_turn(first) {
                return Some((planner.batch_from(now, &self.waiting, 0), None));
            }
            Some(planner.choose(now, &self.waiting))
        });
        let (choice, window) =
            planned.unwrap_or_else(|| (Planner::without_costs(self.max_rows, &self.waiting), None));
        Some((NextBatch::Alike(choice), window))
    }

    fn choose_padded(&mut self, now: Time) -> Option<(NextBatch, Option<WaitWindow>)> {
        let demand = self.demand(now);
        let Costs::Padded(padded) = &mut self.costs else { return None };
        let (first, _) = self.order.first()?;
        let level = first.level;
        padded.front.clear();
        let mut has_more = false;
        for (place, index) in
            self.order.range(first..).take_while(|(place, _)| place.level == level)
        {
            let queued = self.entries[index.index()].expect("a waiting request has an entry");
            if !padded.front.push(FrontRequest {
                index,
                class: queued.class,
                rows: queued.rows,
                length: queued.length,
                deadline: place.deadline,
                passed_over: padded.passed_over(index),
            }) {
                has_more = true;
                break;
            }
        }
        let (choice, window) =
            padded.choose(now, &self.lanes_free, &demand, self.order.has_turn(first));
        let reason = match choice.end {
            ChoiceEnd::Rows => CloseReason::MaxSize,
            ChoiceEnd::Budget => CloseReason::Budget,
            ChoiceEnd::Cost => CloseReason::Cost,
            ChoiceEnd::Deadline => CloseReason::Deadline,
            ChoiceEnd::All if has_more => CloseReason::Cost,
            ChoiceEnd::All if padded.has_other_classes() => CloseReason::Shape,
            ChoiceEnd::All => CloseReason::InstanceIdle,
        };
        Some((NextBatch::Padded(choice, reason), window))
    }

    /// Returns the row rate that batches have to keep up with.
    pub(super) fn row_rate(&self, now: Time) -> RowRate {
        RowRate::per_second(self.rate.per_second(now)) * CATCH_UP
    }

    /// Returns the arriving work and rows, and the batch speed that keeps up with them.
    pub(super) fn demand(&self, now: Time) -> ArrivalLoad {
        let work = Speed(self.work_rate.per_second(now) * CATCH_UP / 1e9);
        let speed = work.on_each_of(self.lanes_free.len());
        ArrivalLoad { speed, work, rows: self.row_rate(now) }
    }

    /// Returns the request that is served first.
    fn first(&self) -> Option<&Entry> {
        let (_, index) = self.order.first()?;
        Some(self.entry(index))
    }

    /// Returns the requests of the most recently decided batch, in service order. They aren't
    /// removed yet.
    pub(crate) fn close_batch(&mut self, now: Time, instance: InstanceId) -> Vec<SlabIndex> {
        let (chosen, running) = match self.next.take().expect("a batch was decided on") {
            NextBatch::Alike(choice) => self.close_alike(&choice, now),
            NextBatch::Padded(choice, _) => {
                let Costs::Padded(padded) = &mut self.costs else {
                    unreachable!("a padded batch was chosen by their costs")
                };
                let padding::PaddedChoice { rows, length, .. } = choice;
                let until = padded.costs.estimate(rows, length);
                let until = until.map(|takes_ns| now.saturating_add(takes_ns as u64));
                (padded.take_batch(&choice), Running { since: now, until, length, rows })
            }
        };
        let placed = |index: &SlabIndex| (self.entry(*index).place, *index);
        let batch: Vec<(QueuePlace, SlabIndex)> = chosen.iter().map(placed).collect();
        self.order.count_batch(&batch);
        let is_probe = |arrival| batch.iter().any(|(place, _)| place.arrival == arrival);
        if let Some(probe) = self.probing.as_mut().filter(|probe| is_probe(probe.arrival)) {
            probe.instance = Some(instance);
        }
        self.running.insert(instance, running);
        chosen
    }

    fn close_alike(&self, choice: &PlannedBatch, now: Time) -> (Vec<SlabIndex>, Running) {
        let Entry { place: first, class, length, .. } =
            *self.first().expect("the batch was chosen from the queue");
        let Costs::Alike(costs) = &self.costs else {
            unreachable!("a batch of equal lengths was chosen by their costs")
        };
        let alike = |(_, index): &(QueuePlace, SlabIndex)| self.entry(*index).class == class;
        let chosen = self.order.range(first..).filter(alike).skip(choice.passed_over);
        let chosen = chosen.take(choice.requests).map(|(_, index)| index).collect();
        let estimate = costs.curve(length).and_then(|curve| curve.estimate(choice.rows));
        let until = estimate.map(|estimate| now.saturating_add(estimate.typical_ns));
        let running = Running { since: now, until, length, rows: choice.rows };
        (chosen, running)
    }
}
