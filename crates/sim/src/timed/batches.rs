//! The rules for batches.

use galatea_policy::{Batch, CloseReason, InstanceId, RequestKey, Time};

use super::{TimedRequest, World};
use crate::check::{Check, ensure};

/// The maximum number of batches that pass over a request, either in padded batching or because it
/// has no deadline.
const PASSED_OVER_MAX: u32 = 16;

/// The number of requests at the front from which a batch is formed.
const LOOK_AHEAD: usize = 128;

/// The number of requests at the front from which a padded batch is formed.
const LOOK_AHEAD_PADDED: usize = 64;

/// The maximum ratio of a padded batch's elements to those of its requests.
const PADDED_MAX: u64 = 8;

/// The number of refusals after which a request is executed although it looks hopeless.
const PROBED_AFTER: u64 = 32;

impl World {
    /// Checks the rules for a batch. Returns its duration.
    pub(super) fn check_batch(
        &mut self,
        instance: InstanceId,
        batch: &Batch,
    ) -> Result<u64, String> {
        ensure!(self.timed.lanes.get(&instance) == Some(&None), "{instance:?} is not free");
        let mut order = self.in_order();
        let is_alone = order.len() == 1 && self.timed.busy_count() == 0;
        let is_probe = is_alone && (self.refused >= PROBED_AFTER || self.recovered_at.is_some());
        let turn = self.turn(&order);
        order.drain(..turn.unwrap_or(0));
        if is_probe {
            self.probing = Some((instance, order[0].deadline));
        }
        let keys: Vec<RequestKey> =
            batch.entries().iter().filter_map(|row| row.request()).collect();
        let rest = match self.kind.is_padded() {
            true => self.check_places(&order, &keys, turn.is_some())?,
            false => check_neighbours(&order, &keys, turn.is_some())?,
        };
        let chosen: Vec<TimedRequest> =
            keys.iter().filter_map(|key| self.waiting.remove(key)).collect();
        self.count_passed_over(&chosen);
        // A request that was predicted to be in time ends the recovery.
        self.recovered_at.take_if(|at| is_probe || chosen.iter().any(|one| one.arrived > *at));
        let (rows, length) = self.check_size(batch, &chosen)?;
        match self.kind.is_padded() {
            true => self.check_padded_reason(batch, &chosen, &rest)?,
            false => self.check_reason(batch, &chosen, &rest)?,
        }
        let takes = self.duration(chosen.len(), rows, length);
        let ends = self.after(takes);
        self.late += chosen.iter().filter(|one| one.deadline < ends).count() as u64;
        let is_known = self.is_known(rows, length);
        if !self.kind.has_deadlines() {
            self.count_learned_batch(&chosen, takes);
        } else if is_known && !is_probe {
            self.check_known_batch(&chosen, takes)?;
        }
        self.knowledge.begin(instance, (rows, length), is_known);
        Ok(takes)
    }

    fn duration(&mut self, requests: usize, rows: u32, length: u32) -> u64 {
        let usual = self.costs.of(rows, length);
        match &mut self.batches_take {
            Some(tenths) if requests > 1 => {
                tenths.rotate_left(1);
                usual * tenths[0] / 10
            }
            _ => usual,
        }
    }

    /// Returns the index of the request without a deadline that the next batch must serve, once
    /// [`PASSED_OVER_MAX`] batches of others at its level have passed over it.
    fn turn(&self, order: &[TimedRequest]) -> Option<usize> {
        let level = order.first()?.place.0;
        let is_patient = |one: &TimedRequest| one.place.0 == level && one.deadline == Time::MAX;
        let has_turn = self.kind.has_deadlines() && self.passed_over >= PASSED_OVER_MAX;
        order.iter().position(is_patient).filter(|_| has_turn)
    }

    fn count_passed_over(&mut self, batch: &[TimedRequest]) {
        let is_patient = |one: &TimedRequest| one.deadline == Time::MAX;
        let level = batch[0].place.0;
        if batch.iter().any(is_patient) {
            self.passed_over = 0;
        } else if self.waiting.values().any(|one| one.place.0 == level && is_patient(one)) {
            self.passed_over += 1;
        }
    }

    /// Checks that a padded batch contains requests at the front that have one level and class, in
    /// their order, and that it includes the required request. Returns the remaining requests of
    /// the level, in order.
    fn check_places(
        &mut self,
        order: &[TimedRequest],
        keys: &[RequestKey],
        has_turn: bool,
    ) -> Result<Vec<TimedRequest>, String> {
        let first = &order[0];
        let (list, class) = (self.list_of(first), first.info.shape_class);
        let has_first = keys.contains(&first.info.key);
        let may_pass_over = self.kind.has_deadlines() && !has_turn;
        ensure!(has_first || may_pass_over, "{:?} is passed over by {keys:?}", first.info.key);
        let others = order.iter().position(|one| self.list_of(one) != list);
        let front = &order[..others.unwrap_or(order.len())];
        let place = |key: &RequestKey| front.iter().position(|one| one.info.key == *key);
        let Some(places) = keys.iter().map(place).collect::<Option<Vec<usize>>>() else {
            return Err(format!("{keys:?} are of several levels"));
        };
        ensure!(places.is_sorted_by(|one, next| one < next), "{keys:?} are not in order");
        let youngest = places.last().copied().unwrap_or(0);
        ensure!(youngest < LOOK_AHEAD_PADDED, "{keys:?} are too far apart");
        let is_of_class = |place: &usize| front[*place].info.shape_class == class;
        ensure!(places.iter().all(is_of_class), "{keys:?} are of several shape classes");
        let (mut rest, is_left) =
            (front.to_vec(), |one: &TimedRequest| !keys.contains(&one.info.key));
        for one in front[..youngest].iter().filter(|one| is_left(one)) {
            let passed = self.waiting.get_mut(&one.info.key).expect("it waits");
            passed.passed_over += 1;
            let times = passed.passed_over;
            ensure!(times <= PASSED_OVER_MAX, "{:?} is passed over too often", one.info.key);
        }
        rest.retain(is_left);
        Ok(rest)
    }

    /// Checks that the batch's rows and length are within bounds, and returns them.
    fn check_size(&self, batch: &Batch, chosen: &[TimedRequest]) -> Result<(u32, u32), String> {
        let rows: u32 = chosen.iter().map(|one| one.info.batch_size).sum();
        ensure!(rows == batch.batch_size(), "{rows} rows count as {}", batch.batch_size());
        let length = chosen.iter().map(|one| one.info.length).max().unwrap_or(0);
        if chosen.len() == 1 {
            return Ok((rows, length));
        }
        ensure!(rows <= self.max_rows, "{rows} rows exceed the maximum");
        if self.kind.is_padded() {
            let elements = u64::from(rows) * u64::from(length);
            ensure!(elements <= self.budget, "{elements} elements exceed the budget");
            let own: u64 = chosen.iter().map(TimedRequest::elements).sum();
            ensure!(elements <= PADDED_MAX * own, "{elements} elements are padding, but for {own}");
            let most = self.knowledge.elements_max.max(1);
            ensure!(
                elements <= 4 * most,
                "{elements} elements, and what more than {most} cost is not known"
            );
        }
        Ok((rows, length))
    }

    /// Checks the reason why a batch of neighbours has no more requests. `rest` are the requests
    /// behind it.
    fn check_reason(&self, batch: &Batch, chosen: &[TimedRequest], rest: &[TimedRequest]) -> Check {
        let (next, rows) = (rest.first().map(|next| next.deadline), batch.batch_size());
        let earliest = chosen.iter().map(|one| one.deadline).min().unwrap_or(Time::MAX);
        let is_right = match batch.close_reason() {
            CloseReason::MaxSize => rows + self.max_rows.min(2) > self.max_rows,
            CloseReason::Deadline => next.is_some_and(|next| next.min(earliest) < Time::MAX),
            CloseReason::InstanceIdle => next.is_none(),
            _ => false,
        };
        ensure!(is_right, "{:?} is no reason to close {chosen:?}", batch.close_reason());
        Ok(())
    }

    /// Checks the reason why a padded batch has no more requests. `rest` are the requests of its
    /// level that aren't in it.
    fn check_padded_reason(
        &self,
        batch: &Batch,
        chosen: &[TimedRequest],
        rest: &[TimedRequest],
    ) -> Check {
        let (rows, class) = (batch.batch_size(), chosen[0].info.shape_class);
        let mut alike = rest.iter().filter(|one| one.info.shape_class == class).peekable();
        let nothing_fits = alike.peek().is_none();
        let (delay_ns, now) = (self.queue.max_queue_delay_ns, self.timed.now);
        let is_right = match batch.close_reason() {
            CloseReason::MaxSize => {
                rows >= self.max_rows || alike.any(|one| rows + one.info.batch_size > self.max_rows)
            }
            CloseReason::Budget => self.budget < u64::MAX,
            CloseReason::Cost => true,
            CloseReason::Deadline => self.kind.has_deadlines(),
            CloseReason::Shape => nothing_fits && !rest.is_empty(),
            CloseReason::InstanceIdle => rest.is_empty() && delay_ns == 0,
            CloseReason::Unloading => nothing_fits && self.is_draining && delay_ns > 0,
            CloseReason::Delay => {
                let in_front = chosen.iter().chain(rest).take(LOOK_AHEAD_PADDED);
                let oldest = in_front.map(|one| one.arrived).min().unwrap_or(now);
                nothing_fits && delay_ns > 0 && now.saturating_since(oldest) >= delay_ns
            }
            _ => false,
        };
        ensure!(is_right, "{:?} is no reason to close {chosen:?}", batch.close_reason());
        Ok(())
    }
}

/// Checks that an unpadded batch consists of neighbours in the order of the first request's class.
/// A request whose turn has come must be the first. Returns the requests behind the batch.
fn check_neighbours(
    order: &[TimedRequest],
    keys: &[RequestKey],
    has_turn: bool,
) -> Result<Vec<TimedRequest>, String> {
    let class = order[0].info.shape_class;
    let is_alike = |one: &&TimedRequest| one.info.shape_class == class;
    let alike: Vec<TimedRequest> =
        order.iter().take(LOOK_AHEAD).filter(is_alike).copied().collect();
    let are_next = |window: &[TimedRequest]| window.iter().map(|one| &one.info.key).eq(keys);
    let Some(start) = alike.windows(keys.len()).position(are_next) else {
        return Err(format!("{keys:?} are not neighbours in the order {alike:?}"));
    };
    ensure!(!has_turn || start == 0, "{keys:?} have no turn before {alike:?}");
    Ok(alike[start + keys.len()..].to_vec())
}
