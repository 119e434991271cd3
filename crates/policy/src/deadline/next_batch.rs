//! The next batch of a model with deadlines: planned, and taken out of the queue.

use super::order::QueuePlace;
use super::padded::Demand;
use super::plan::{BatchEnd, Choice, Planner, Waiting, Window};
use super::{CATCH_UP, Costs, DeadlineQueue, LOOK_AHEAD, Running};
use crate::batch::{Batch, BatchEntry, CloseReason};
use crate::event::Actions;
use crate::ids::{InstanceId, ShapeClassId};
use crate::lane_pool::LanePool;
use crate::padding::{self, ChoiceEnd, FrontRequest};
use crate::queue::{DenseIndex, SlabIndex};
use crate::time::Time;

/// The next batch.
pub(super) enum NextBatch {
    /// Of requests of one class, in the order of service.
    Alike(Choice),
    /// Of requests of unequal lengths, with the reason why it has no more.
    Padded(padding::Choice, CloseReason),
}

impl DeadlineQueue {
    /// Plans the next batch, of the first request's shape class. With a window, it is better to
    /// wait for more; a request whose turn has come does not.
    pub(super) fn choose(
        &mut self,
        now: Time,
        lanes: &LanePool,
        out: &mut Actions,
    ) -> Option<(NextBatch, Option<Window>)> {
        self.refuse_late_in_front(now, out);
        self.look_at_lanes(now, lanes);
        match &self.costs {
            Costs::Alike(_) => self.choose_alike(now),
            Costs::Padded(_) => self.choose_padded(now),
        }
    }

    fn choose_alike(&mut self, now: Time) -> Option<(NextBatch, Option<Window>)> {
        let (first, class, length) = self.first()?;
        self.waiting.clear();
        for (place, index) in self.order.range(first..).take(LOOK_AHEAD) {
            let queued = self.queue.get(index);
            if queued.shape_class == class {
                self.waiting.push(Waiting { deadline: place.deadline, rows: queued.rows });
            }
        }
        let Costs::Alike(costs) = &self.costs else { return None };
        let rate = self.rate.per_second(now) * CATCH_UP;
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

    fn choose_padded(&mut self, now: Time) -> Option<(NextBatch, Option<Window>)> {
        let demand = self.demand(now);
        let Costs::Padded(padded) = &mut self.costs else { return None };
        let (first, _) = self.order.first()?;
        let level = first.level;
        padded.front.clear();
        let mut has_more = false;
        for (place, index) in
            self.order.range(first..).take_while(|(place, _)| place.level == level)
        {
            let (_, length) = self.places[index.index()].expect("a waiting request has a place");
            let queued = self.queue.get(index);
            if !padded.front.push(FrontRequest {
                index,
                class: queued.shape_class,
                rows: queued.rows,
                length,
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

    /// The work and the rows that arrive, and the speed of batches that keeps up with them.
    pub(super) fn demand(&self, now: Time) -> Demand {
        let work = self.work_rate.per_second(now) * CATCH_UP / 1e9;
        let rows = self.rate.per_second(now) * CATCH_UP / 1e9;
        Demand { speed: work / self.lanes_free.len().max(1) as f64, work, rows }
    }

    /// The place, the shape class and the length of the request that is served first.
    fn first(&self) -> Option<(QueuePlace, ShapeClassId, u32)> {
        let (first, index) = self.order.first()?;
        let (_, length) = self.places[index.index()].expect("a waiting request has a place");
        Some((first, self.queue.get(index).shape_class, length))
    }

    /// Takes the chosen requests out of the queue.
    pub(super) fn close(&mut self, next: NextBatch, now: Time, instance: InstanceId) -> Batch {
        let (chosen, running, reason) = match next {
            NextBatch::Alike(choice) => self.close_alike(&choice, now),
            NextBatch::Padded(choice, reason) => {
                let Costs::Padded(padded) = &mut self.costs else {
                    unreachable!("a padded batch was chosen by their costs")
                };
                let padding::Choice { rows, length, .. } = choice;
                let until = padded.costs.estimate(rows, length);
                let until = until.map(|takes_ns| now.saturating_add(takes_ns as u64));
                let running = Running { since: now, until, length, rows };
                (padded.take(&choice), running, reason)
            }
        };
        let places = &self.places;
        let placed = |index: &SlabIndex| Some((places[index.index()]?.0, *index));
        let batch: Vec<(QueuePlace, SlabIndex)> = chosen.iter().filter_map(placed).collect();
        self.order.count_batch(&batch);
        let entries = chosen.into_iter().map(|index| BatchEntry::Request(self.take(index)));
        let entries: Vec<BatchEntry> = entries.collect();
        self.running.insert(instance, running);
        Batch::new(entries, running.rows, reason)
    }

    fn close_alike(&self, choice: &Choice, now: Time) -> (Vec<SlabIndex>, Running, CloseReason) {
        let (first, class, length) = self.first().expect("the batch was chosen from the queue");
        let Costs::Alike(costs) = &self.costs else {
            unreachable!("a batch of equal lengths was chosen by their costs")
        };
        let alike =
            |(_, index): &(QueuePlace, SlabIndex)| self.queue.get(*index).shape_class == class;
        let chosen = self.order.range(first..).filter(alike).skip(choice.passed_over);
        let chosen = chosen.take(choice.requests).map(|(_, index)| index).collect();
        let estimate = costs.curve(length).and_then(|curve| curve.estimate(choice.rows));
        let until = estimate.map(|estimate| now.saturating_add(estimate.typical_ns));
        let running = Running { since: now, until, length, rows: choice.rows };
        let reason = match choice.end {
            BatchEnd::Full => CloseReason::MaxSize,
            BatchEnd::Deadline => CloseReason::Deadline,
            BatchEnd::NoneWaits => CloseReason::InstanceIdle,
        };
        (chosen, running, reason)
    }
}
