//! The rules that each decision of the residency keeps.

use galatea_policy::{
    RefusalReason, RequestKey, RequestOrigin, Residency, ResidencyAction, ResidencyRefusal,
    ResidencyState, ResidencyStatus, Time,
};

use super::ledger::{Ledger, LedgerWaiter, ModelPlace, POOLS};
use crate::check::{Check, ensure};

impl Ledger {
    /// Checks an action and applies it.
    pub(crate) fn judge(
        &mut self,
        now: Time,
        action: &ResidencyAction,
        residency: &Residency,
    ) -> Check {
        match action {
            ResidencyAction::Load(name) => {
                let model = self.index(name).ok_or("an unknown model is loaded")?;
                self.judge_load(now, model)?;
                self.models[model].place = ModelPlace::Loading;
            }
            ResidencyAction::Unload(name) => {
                let model = self.index(name).ok_or("an unknown model is unloaded")?;
                self.judge_unload(now, model, residency)?;
                self.models[model].place = ModelPlace::Unloading;
                self.models[model].is_pinned = false;
            }
            ResidencyAction::Admit(key) => self.judge_admission(now, *key)?,
            ResidencyAction::Wait { key, ready_at } => {
                ensure!(self.waiters.contains_key(key), "{key:?} waits though it is not there");
                ensure!(*ready_at > now, "{key:?} waits until a time that has passed");
            }
            ResidencyAction::Refuse(key, refusal) => self.judge_refusal(now, *key, refusal)?,
        }
        Ok(())
    }

    fn judge_load(&self, now: Time, index: usize) -> Check {
        let model = &self.models[index];
        ensure!(model.place == ModelPlace::Absent, "{} is loaded twice", model.name);
        ensure!(model.is_known && !model.is_blocked, "{} must not be loaded", model.name);
        ensure!(model.retry_at <= now, "{} is loaded again at once", model.name);
        let is_resident = |model: &usize| self.models[*model].place == ModelPlace::Resident;
        ensure!(model.dependencies.iter().all(is_resident), "a dependency isn't resident");
        let loading = self.at(&[ModelPlace::Loading]).len();
        ensure!(loading < self.settings.concurrent_loads_max, "too many loads at once");
        let mut after = self.in_memory();
        after.push(index);
        ensure!(!self.exceeds(&after, index), "the load of {} exceeds the budget", model.name);
        // A model is loaded with all that its target needs, or not at all.
        let fits = |target: &usize| {
            let mut whole = self.in_memory();
            for member in self.closure(*target) {
                if !whole.contains(&member) {
                    whole.push(member);
                }
            }
            self.closure(*target).contains(&index) && !self.exceeds(&whole, index)
        };
        // The end of a demand for which no request waits any more isn't always visible.
        let is_wanted = model.was_promised || self.wanted().iter().any(fits);
        ensure!(is_wanted, "{} is loaded for no request", model.name);
        Ok(())
    }

    fn judge_unload(&self, now: Time, index: usize, residency: &Residency) -> Check {
        let model = &self.models[index];
        ensure!(model.place == ModelPlace::Resident, "{} is unloaded while absent", model.name);
        for other in self.at(&[ModelPlace::Resident, ModelPlace::Loading]) {
            let depends = self.models[other].dependencies.contains(&index);
            let is_loading = self.models[other].place == ModelPlace::Loading;
            ensure!(!depends || is_loading, "{} loses its dependency", self.models[other].name);
        }
        let is_unwanted =
            |model: &usize| self.models[*model].is_blocked || !self.models[*model].is_known;
        if self.closure(index).iter().any(is_unwanted) {
            return Ok(());
        }
        ensure!(!self.is_in_use(index), "{} is unloaded in use", model.name);
        ensure!(!self.is_pinned(index), "{} is pinned and unloaded", model.name);
        let is_over = POOLS.iter().any(|pool| residency.used().of(*pool) > self.limit(*pool));
        let is_missing = |model: &usize| self.models[*model].place != ModelPlace::Resident;
        let wanted = self.wanted();
        let misses = |target: &&usize| self.closure(**target).iter().any(is_missing);
        let targets: Vec<&usize> = wanted.iter().filter(misses).collect();
        ensure!(is_over || !targets.is_empty(), "{} is unloaded for nothing", model.name);
        let is_urgent = is_over || !self.urgent.is_empty();
        self.judge_victim(now, index, is_urgent, residency)
    }

    /// Checks that a model that has just come stays, and that idle models leave by worth.
    fn judge_victim(
        &self,
        now: Time,
        index: usize,
        is_urgent: bool,
        residency: &Residency,
    ) -> Check {
        let statuses: Vec<ResidencyStatus> = residency.status().collect();
        let worth = |index: usize| {
            let name = &self.models[index].name;
            statuses.iter().find(|status| status.model == *name).map(|status| status.worth)
        };
        let victim = &self.models[index];
        let load_ns = |index: usize| {
            let name = &self.models[index].name;
            let status = statuses.iter().find(|status| status.model == *name);
            status.map_or(0, |status| status.load_ns)
        };
        let stays = |index: usize| now < self.leaves_at(index, load_ns(index));
        ensure!(
            !victim.dependencies.is_empty()
                || is_urgent
                || !stays(index)
                || self.depends_on_drained(index),
            "{} has just come and leaves",
            victim.name
        );
        let is_wanted = |index: usize| {
            self.wanted().iter().any(|target| self.closure(*target).contains(&index))
        };
        for other in self.at(&[ModelPlace::Resident]) {
            let model = &self.models[other];
            let is_alike = model.dependencies.is_empty()
                && victim.dependencies.is_empty()
                && residency.state(&model.name) == Some(ResidencyState::Resident)
                && POOLS
                    .iter()
                    .all(|pool| (model.bytes.of(*pool) > 0) == (victim.bytes.of(*pool) > 0));
            let may_leave = !self.is_in_use(other) && !self.is_pinned(other) && !stays(other);
            let is_promised = model.was_promised || victim.was_promised;
            if other == index || !is_alike || !may_leave || is_wanted(other) || is_promised {
                continue;
            }
            ensure!(!stays(index) || is_urgent || self.was_drained(index), "{} stays", victim.name);
            let is_better = self.was_drained(index) || worth(index) <= worth(other);
            ensure!(is_better, "{} is worth less than {}", model.name, victim.name);
        }
        Ok(())
    }

    fn leaves_at(&self, index: usize, load_ns: u64) -> Time {
        let model = &self.models[index];
        let has_waited = model.idle_since.saturating_add(load_ns / 2);
        self.stay_until(index).min(has_waited)
    }

    /// Returns true if the model drained, which was decided while it was in use.
    fn was_drained(&self, index: usize) -> bool {
        self.draining.contains(&index)
    }

    fn depends_on_drained(&self, index: usize) -> bool {
        self.closure(index).iter().any(|member| self.draining.contains(member))
    }

    fn judge_admission(&mut self, now: Time, key: RequestKey) -> Check {
        let waiter = self.waiters.remove(&key).ok_or_else(|| format!("{key:?} is not there"))?;
        let closure = self.closure(waiter.model);
        let is_resident = |model: &usize| self.models[*model].place == ModelPlace::Resident;
        ensure!(closure.iter().all(is_resident), "{key:?} is admitted to an absent model");
        ensure!(waiter.deadline > now, "{key:?} is admitted after its deadline");
        self.promised.remove(&waiter.model);
        let is_last = !self.waiters.values().any(|other| other.model == waiter.model);
        if is_last {
            self.urgent.remove(&waiter.model);
        }
        for member in closure {
            self.models[member].idle_since = now;
        }
        if waiter.origin.is_some() {
            self.models[waiter.model].uses += 1;
        }
        Ok(())
    }

    fn judge_refusal(&mut self, now: Time, key: RequestKey, refusal: &ResidencyRefusal) -> Check {
        let waiter = self.waiters.remove(&key).ok_or_else(|| format!("{key:?} is not there"))?;
        let closure = self.closure(waiter.model);
        let ResidencyRefusal { reason, retry_after_ns } = refusal;
        self.judge_reason(now, &waiter, reason, *retry_after_ns)?;
        match reason {
            RefusalReason::TooManyWaiting
            | RefusalReason::TooManyWaitingForModel
            | RefusalReason::TooLate
            | RefusalReason::DeadlineExceeded => {
                let after = retry_after_ns.ok_or("nothing is promised")?;
                let time = now.saturating_add(after);
                let promised = self.promised.entry(waiter.model).or_insert(time);
                *promised = time.max(*promised);
                for member in closure {
                    self.models[member].was_promised = true;
                }
            }
            RefusalReason::UnknownModel(_)
            | RefusalReason::UnloadedByClient(_)
            | RefusalReason::OverBudget { .. }
            | RefusalReason::LoadFailed(_) => {
                self.promised.remove(&waiter.model);
                self.urgent.remove(&waiter.model);
                if waiter.origin.is_none() {
                    self.models[waiter.model].is_pinned = false;
                }
            }
            RefusalReason::WouldDeadlock => {}
        }
        Ok(())
    }

    fn judge_reason(
        &self,
        now: Time,
        waiter: &LedgerWaiter,
        reason: &RefusalReason,
        retry_after_ns: Option<u64>,
    ) -> Check {
        let closure = self.closure(waiter.model);
        let member = |name: &str| self.index(name).filter(|index| closure.contains(index));
        let all = self.waiters_before.len() - 1;
        let is_same = |other: &&LedgerWaiter| other.model == waiter.model;
        let same = self.waiters_before.values().filter(is_same).count() - 1;
        let holds = match reason {
            RefusalReason::UnknownModel(name) => {
                member(name).is_some_and(|index| !self.models[index].is_known)
            }
            RefusalReason::UnloadedByClient(name) => {
                member(name).is_some_and(|index| self.models[index].is_blocked)
            }
            RefusalReason::OverBudget { pool, needed, limit, pinned } => {
                let other = |index: &usize| self.is_pinned(*index) && !closure.contains(index);
                let others: Vec<usize> = (0..self.models.len()).filter(other).collect();
                *needed == self.bytes(&closure, *pool)
                    && *pinned == self.bytes(&others, *pool)
                    && *limit == self.limit(*pool)
                    && *needed > 0
                    && needed + pinned > *limit
            }
            RefusalReason::TooManyWaitingForModel => same >= self.settings.waiting_per_model_max,
            RefusalReason::TooManyWaiting => all >= self.settings.waiting_max,
            RefusalReason::TooLate => {
                retry_after_ns.is_some_and(|after| now.saturating_add(after) > waiter.deadline)
            }
            RefusalReason::DeadlineExceeded => waiter.deadline <= now,
            RefusalReason::LoadFailed(name) => member(name).is_some_and(|index| {
                let pause_ns = self.models[index].retry_at.saturating_since(now);
                pause_ns > 0 && retry_after_ns == Some(pause_ns)
            }),
            RefusalReason::WouldDeadlock => waiter.origin == Some(RequestOrigin::Nested),
        };
        ensure!(holds, "refused without a reason: {reason:?} {waiter:?}");
        Ok(())
    }

    /// Applies the ends of demands for which no request waits.
    pub(crate) fn settle_promises(&mut self, residency: &Residency) {
        let has_demand = |index: usize| {
            residency
                .status()
                .any(|status| status.model == self.models[index].name && status.ready_at.is_some())
        };
        let over: Vec<usize> =
            self.promised.keys().copied().filter(|target| !has_demand(*target)).collect();
        for target in over {
            self.promised.remove(&target);
            self.urgent.remove(&target);
        }
    }

    /// Checks the state after a step.
    pub(crate) fn check_state(&self, now: Time, residency: &Residency) -> Check {
        let state = |index: usize| residency.state(&self.models[index].name);
        for (key, waiter) in &self.waiters {
            let is_resident = |member: &usize| state(*member) == Some(ResidencyState::Resident);
            let all = self.closure(waiter.model).iter().all(is_resident);
            ensure!(!all, "{key:?} waits for a resident model");
            let is_nested = waiter.origin == Some(RequestOrigin::Nested);
            ensure!(!is_nested || !self.waits_for_uses(residency), "{key:?} may wait for itself");
        }
        let wakeup = residency.next_wakeup();
        ensure!(wakeup.is_none_or(|time| time > now), "a wake-up is in the past");
        ensure!(residency.waiting() == self.waiters.len(), "a request is forgotten");
        for status in residency.status() {
            let index = self.index(&status.model).ok_or("a model without a name")?;
            self.check_status(index, &status)?;
        }
        for pool in POOLS {
            let reserved = |index: &usize| state(*index) == Some(ResidencyState::Reserved);
            let reserved: Vec<usize> = (0..self.models.len()).filter(reserved).collect();
            let used = self.bytes(&self.in_memory(), pool) + self.bytes(&reserved, pool);
            ensure!(residency.used().of(pool) == used, "{pool:?} is counted wrongly");
            self.check_excess(pool, residency)?;
        }
        Ok(())
    }

    /// Returns true if a model drains, which may be the one that waits for a nested request.
    fn waits_for_uses(&self, residency: &Residency) -> bool {
        let has_arrivals = !self.at(&[ModelPlace::Loading, ModelPlace::Unloading]).is_empty();
        let drains = residency.status().any(|status| status.state == ResidencyState::Draining);
        drains && !has_arrivals
    }

    fn check_status(&self, index: usize, status: &ResidencyStatus) -> Check {
        let model = &self.models[index];
        let place = match status.state {
            ResidencyState::Absent | ResidencyState::Reserved => ModelPlace::Absent,
            ResidencyState::Loading => ModelPlace::Loading,
            ResidencyState::Resident | ResidencyState::Draining => ModelPlace::Resident,
            ResidencyState::Unloading => ModelPlace::Unloading,
        };
        ensure!(place == model.place, "{} is {place:?}, not {:?}", model.name, model.place);
        ensure!(status.uses == model.uses, "{} has {} uses", model.name, status.uses);
        let pins = (status.is_pinned, status.is_unloaded_by_client);
        ensure!(pins == (model.is_pinned, model.is_blocked), "{} is {pins:?}", model.name);
        let waiting = self.waiters.values().filter(|waiter| waiter.model == index).count();
        ensure!(status.waiting == waiting, "{} wait for {}", status.waiting, model.name);
        let drains = status.state == ResidencyState::Draining;
        let is_over =
            POOLS.iter().any(|pool| self.bytes(&self.in_memory(), *pool) > self.limit(*pool));
        ensure!(
            !drains || is_over || !self.wanted().is_empty(),
            "{} drains for nothing",
            model.name
        );
        Ok(())
    }

    /// Checks that no idle model remains in memory while the budget is exceeded.
    fn check_excess(&self, pool: galatea_policy::MemoryPoolId, residency: &Residency) -> Check {
        let state = |index: usize| residency.state(&self.models[index].name);
        let leaves = |index: &usize| {
            self.models[*index].place == ModelPlace::Unloading
                || state(*index) == Some(ResidencyState::Draining)
        };
        let stays: Vec<usize> = self.in_memory().into_iter().filter(|one| !leaves(one)).collect();
        if self.bytes(&stays, pool) <= self.limit(pool) {
            return Ok(());
        }
        let wanted = self.wanted();
        for index in stays {
            let is_needed = wanted.iter().any(|target| self.closure(*target).contains(&index));
            let is_base = self
                .at(&[ModelPlace::Loading])
                .iter()
                .any(|one| self.closure(*one).contains(&index));
            let is_idle = self.models[index].place == ModelPlace::Resident
                && !self.is_in_use(index)
                && !self.is_pinned(index)
                && !is_needed
                && !is_base
                && self.models[index].bytes.of(pool) > 0;
            ensure!(!is_idle, "{} is idle beyond the budget", self.models[index].name);
        }
        Ok(())
    }
}
