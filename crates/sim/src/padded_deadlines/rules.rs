//! The rules of each decision.

use galatea_policy::{Batch, CloseReason, Event, FailReason, InstanceId, RequestKey, Time};

use super::{
    ESTIMATE_ERROR, FORGOTTEN_AFTER, KNOWN_AFTER, LEARNED_AFTER, LOOK_AHEAD, PADDED_MAX,
    PASSED_OVER_MAX, PROBED_AFTER, TOLERANCE, Waiting, World,
};
use crate::check::{Check, ensure};

impl World {
    /// The rules of a batch.
    pub(super) fn execute(&mut self, instance: InstanceId, batch: &Batch) -> Check {
        ensure!(self.lanes.get(&instance) == Some(&None), "{instance:?} is not free");
        let mut order: Vec<Waiting> = self.waiting.values().copied().collect();
        order.sort_unstable_by_key(|waiting| waiting.place);
        let is_alone = order.len() == 1 && self.lanes.values().all(Option::is_none);
        let level = order.first().map(|first| first.place.0);
        let is_patient = |one: &Waiting| Some(one.place.0) == level && one.place.1 == Time::MAX;
        if self.passed_over >= PASSED_OVER_MAX
            && let Some(turn) = order.iter().position(is_patient)
        {
            order.drain(..turn);
            let first = order[0].info.key;
            let has_it = batch.entries().iter().any(|row| row.request() == Some(first));
            ensure!(has_it, "{first:?} has its turn, and is passed over");
        }
        let front: Vec<RequestKey> = (order.iter())
            .take_while(|one| Some(one.place.0) == level)
            .map(|one| one.info.key)
            .collect();
        let keys: Vec<RequestKey> =
            batch.entries().iter().filter_map(|row| row.request()).collect();
        let place = |key: &RequestKey| front.iter().position(|one| one == key);
        let Some(places) = keys.iter().map(place).collect::<Option<Vec<usize>>>() else {
            return Err(format!("{keys:?} are of several levels"));
        };
        ensure!(places.is_sorted_by(|one, next| one < next), "{keys:?} are not in order");
        let youngest = places.last().copied().unwrap_or(0);
        ensure!(youngest < LOOK_AHEAD, "{keys:?} are too far apart");
        for key in front[..youngest].iter().filter(|key| !keys.contains(key)) {
            let passed = self.waiting.get_mut(key).expect("it waits");
            passed.passed_over += 1;
            ensure!(passed.passed_over <= PASSED_OVER_MAX, "{key:?} is passed over too often");
        }
        let chosen: Vec<Waiting> = keys.iter().filter_map(|key| self.waiting.remove(key)).collect();
        let class = order[0].info.shape_class;
        let is_of_class = |one: &Waiting| one.info.shape_class == class;
        ensure!(chosen.iter().all(is_of_class), "{keys:?} are of several shape classes");
        let rest = front.iter().filter_map(|key| self.waiting.get(key)).collect::<Vec<_>>();
        let (rest, alike) = (rest.len(), rest.iter().filter(|one| is_of_class(one)).count());
        let is_right = match batch.close_reason() {
            CloseReason::MaxSize => batch.batch_size() + 2 > self.max_rows,
            CloseReason::Budget => self.budget < u64::MAX,
            CloseReason::Cost | CloseReason::Deadline => true,
            CloseReason::Shape => alike == 0 && rest > 0,
            CloseReason::InstanceIdle => rest == 0,
            _ => false,
        };
        ensure!(is_right, "{:?} is no reason to close {keys:?}", batch.close_reason());
        let has_patient = self.waiting.values().any(is_patient);
        self.passed_over = match chosen.iter().any(is_patient) {
            true => 0,
            false => self.passed_over + u32::from(has_patient),
        };
        let (ends, is_known) = self.check_size(batch, &chosen, is_alone)?;
        if !is_known {
            self.unpredicted.insert(instance);
        }
        self.refused = 0;
        self.lanes.insert(instance, Some(ends));
        Ok(())
    }

    /// Checks bounds and deadlines. Returns when the batch ends, and whether that is known.
    fn check_size(
        &mut self,
        batch: &Batch,
        chosen: &[Waiting],
        is_alone: bool,
    ) -> Result<(Time, bool), String> {
        let rows: u32 = chosen.iter().map(|one| one.info.batch_size).sum();
        ensure!(rows == batch.batch_size(), "{rows} rows count as {}", batch.batch_size());
        let length = chosen.iter().map(|one| one.info.length).max().unwrap_or(0);
        let elements = u64::from(rows) * u64::from(length);
        if chosen.len() > 1 {
            ensure!(rows <= self.max_rows, "{rows} rows exceed the maximum");
            ensure!(elements <= self.budget, "{elements} elements exceed the budget");
            let own = |one: &Waiting| (rows_of(one) * u64::from(one.info.length)).max(1);
            let own: u64 = chosen.iter().map(own).sum();
            ensure!(elements <= PADDED_MAX * own, "{elements} elements are padding, but for {own}");
            ensure!(
                elements <= 4 * self.elements_max.max(1),
                "{elements} elements, and what more than {} cost is not known",
                self.elements_max
            );
        }
        let is_known = self.is_known(rows, length);
        self.elements_max = self.elements_max.max(elements);
        let known = self.executed.entry(class_of(rows, length)).or_default();
        *known = (known.0 + 1, self.executions);
        let takes = self.costs.of(rows, length);
        let ends = self.now.saturating_add(takes);
        let is_probe = is_alone && self.refused >= PROBED_AFTER;
        let late = chosen.iter().filter(|one| one.place.1 < ends).count() as u64;
        self.late += late;
        if is_known && !is_probe {
            let alone = |one: &Waiting| self.costs.of(one.info.batch_size, one.info.length);
            self.took.0 += takes;
            self.took.1 += chosen.iter().map(alone).sum::<u64>();
            self.promises.executed += chosen.len() as u64;
            self.promises.late += late;
            let is_close = |one: &Waiting| {
                let left = one.place.1.saturating_since(self.now) as f64;
                chosen.len() == 1 && left * ESTIMATE_ERROR >= takes as f64
            };
            let broken = |one: &&Waiting| one.place.1 < ends && !is_close(one);
            self.broken_promises += chosen.iter().filter(broken).count() as u64;
            let in_vain = |one: &Waiting| {
                let least = (alone(one) as f64 / TOLERANCE) as u64;
                self.now.saturating_add(least) > one.place.1
            };
            ensure!(!chosen.iter().any(in_vain), "{chosen:?} runs in vain");
        }
        Ok((ends, is_known))
    }

    pub(super) fn fail(&mut self, event: &Event, key: RequestKey, reason: FailReason) -> Check {
        let Some(waiting) = self.waiting.remove(&key) else {
            return Err(format!("{key:?} fails with {reason:?} after its end"));
        };
        let is_arriving = matches!(event, Event::Enqueue(info) if info.key == key);
        let is_right = match reason {
            FailReason::Cancelled => *event == Event::Cancel(key),
            FailReason::TimeoutExpired => waiting.expires <= self.now,
            FailReason::Draining => is_arriving && self.is_draining,
            FailReason::QueueFull => is_arriving && self.level_is_full(waiting.place.0),
            FailReason::TooLate { retry_after_ns } => {
                ensure!(waiting.place.1 < Time::MAX, "{key:?} has no deadline to miss");
                ensure!(retry_after_ns > 0, "{key:?} could have been answered in time");
                self.refused += u64::from(is_arriving);
                self.refused_late += u64::from(!is_arriving);
                self.is_refused_rightly(&waiting, is_arriving)
            }
            _ => false,
        };
        ensure!(is_right, "{key:?} fails with {reason:?} without cause");
        Ok(())
    }

    /// Returns true if the scheduler knows the duration of executions of about this size.
    fn is_known(&self, rows: u32, length: u32) -> bool {
        let known = self.executed.get(&class_of(rows, length));
        // What has no elements counts as if it had one.
        length > 0
            && self.executions > LEARNED_AFTER
            && known.is_some_and(|(times, latest)| {
                *times > KNOWN_AFTER && self.executions - latest < FORGOTTEN_AFTER
            })
    }

    fn level_is_full(&self, level: u64) -> bool {
        let there = self.waiting.values().filter(|waiting| waiting.place.0 == level).count();
        let limit = u64::from(self.spec.queue.default_queue_policy.max_queue_size);
        limit != 0 && there as u64 >= limit
    }

    /// Returns true if a request that is refused as too late would have been, as far as the
    /// scheduler can know. On arrival others may be served before it.
    fn is_refused_rightly(&self, waiting: &Waiting, is_arriving: bool) -> bool {
        let is_known = self.is_known(waiting.info.batch_size, waiting.info.length);
        let has_company = is_arriving && !self.waiting.is_empty();
        if !is_known || has_company || !self.unpredicted.is_empty() {
            return true;
        }
        let free = self.lanes.values().map(|end| end.unwrap_or(self.now)).min();
        let takes = self.costs.of(waiting.info.batch_size, waiting.info.length);
        let busy = free.unwrap_or(self.now).saturating_since(self.now);
        let predicted = ((busy + takes) as f64 * TOLERANCE) as u64;
        self.now.saturating_add(predicted) > waiting.place.1
    }

    /// Checks that hold after each step.
    pub(super) fn check_rest(&self, event: &Event) -> Check {
        let (reported, waiting) = (self.scheduler.queued(), self.waiting.len());
        ensure!(reported == waiting, "{reported} queued, {waiting} wait after {event:?}");
        let idle = self.lanes.values().any(Option::is_none);
        let wakeup = self.scheduler.next_wakeup();
        let has_window = !self.is_draining && wakeup.is_some();
        ensure!(waiting == 0 || !idle || has_window, "requests wait and an instance is free");
        let first = self.waiting.values().map(|waiting| waiting.place.1).min();
        if let Some(first) = first.filter(|first| *first < Time::MAX) {
            let last = first.saturating_add(1);
            ensure!(wakeup.is_some_and(|time| time <= last), "it sleeps through a deadline");
        }
        Ok(())
    }
}

/// Octaves of rows and length, and half octaves of elements.
fn class_of(rows: u32, length: u32) -> (u32, u32, u32) {
    let elements = f64::from(rows.max(1)) * f64::from(length.max(1));
    (rows.max(1).ilog2(), length.max(1).ilog2(), (elements.log2() * 2.0) as u32)
}

fn rows_of(one: &Waiting) -> u64 {
    u64::from(one.info.batch_size)
}
