//! The choice of the model that is evicted next.

use super::Residency;
use super::demand::WaitPurpose;
use super::event::{
    RefusalReason, RequestOrigin, ResidencyAction, ResidencyRefusal, ResidencyState,
};
use super::model::ModelIndex;
use super::order::{DemandClass, DemandOrder};
use super::pools::MemoryByPool;
use super::worth::EXPERTS;
use crate::ids::RequestKey;
use crate::time::Time;

/// The ways in which a model, or one that depends on it, is needed.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Marks {
    /// A request or a sequence uses the model.
    pub(crate) is_in_use: bool,
    /// A client has loaded the model explicitly.
    pub(crate) is_pinned: bool,
    /// A demand that has its memory needs the model.
    pub(crate) is_needed: bool,
}

/// The next eviction.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Eviction {
    /// The model is idle.
    Unload(ModelIndex),
    /// The model is in use, and is unloaded when it is idle.
    Drain(ModelIndex),
    /// Models have to stay until this time.
    At(Time),
    /// All models are pinned or needed.
    Impossible,
}

impl Residency {
    /// Counts uses of a model, and lets the shadows of the experts follow.
    pub(super) fn count_uses(&mut self, index: ModelIndex, uses: u64) {
        let is_too_large = !self.settings.budget.excess(&self.models[index].bytes).is_zero();
        if is_too_large || !self.experts.count_uses(&mut self.models[index].worth, uses) {
            return;
        }
        for expert in 0..EXPERTS {
            if !self.models[index].worth.is_in_shadow(expert) {
                self.add_to_shadow(expert, index);
            }
        }
        self.experts.choose();
    }

    fn add_to_shadow(&mut self, expert: usize, added: ModelIndex) {
        let budget = &self.settings.budget;
        let worth = &mut self.models[added].worth;
        let mut short = self.experts.add_to_shadow(expert, worth, budget);
        while !short.is_zero() {
            let is_candidate = |index: &ModelIndex| {
                *index != added && self.models[*index].worth.frees(expert, &short)
            };
            let worth =
                |index: &ModelIndex| self.experts.worth_by(expert, &self.models[*index].worth);
            let candidates = (0..self.models.len()).filter(is_candidate);
            let least = candidates.min_by(|one, two| worth(one).total_cmp(&worth(two)));
            let Some(least) = least else { return };
            let worth = &mut self.models[least].worth;
            short = self.experts.remove_from_shadow(expert, worth, budget);
        }
    }

    /// Chooses a model that has memory in the pools that are short of it.
    ///
    /// Idle models that needn't stay are first, by worth. Otherwise, the model of the least worth
    /// is chosen, if it needn't stay. An urgent demand doesn't respect stays.
    pub(super) fn choose_victim(
        &self,
        now: Time,
        marks: &[Marks],
        short: &MemoryByPool,
        class: DemandClass,
    ) -> Eviction {
        let is_candidate = |index: &ModelIndex| {
            let (model, mark) = (&self.models[*index], marks[*index]);
            model.state == ResidencyState::Resident
                && !mark.is_pinned
                && !mark.is_needed
                && model.counted.overlaps(short)
        };
        let candidates = || (0..self.models.len()).filter(is_candidate);
        let by_worth = |one: &ModelIndex, two: &ModelIndex| {
            let worth = |index: &ModelIndex| self.experts.worth(&self.models[*index].worth);
            worth(one).total_cmp(&worth(two))
        };
        let is_idle = |index: &ModelIndex| !marks[*index].is_in_use;
        let may_leave = |index: &ModelIndex| self.models[*index].leaves_at() <= now;
        let idle = candidates().filter(|index| is_idle(index) && may_leave(index));
        if let Some(index) = idle.min_by(by_worth) {
            return Eviction::Unload(index);
        }
        let others = candidates();
        let least = match class {
            DemandClass::Urgent => {
                let least_idle = candidates().filter(is_idle).min_by(by_worth);
                least_idle.or_else(|| others.min_by(by_worth))
            }
            DemandClass::Normal => others.min_by(by_worth),
        };
        let Some(least) = least else { return Eviction::Impossible };
        if class == DemandClass::Normal && !may_leave(&least) {
            let times = candidates().map(|index| self.models[index].leaves_at());
            return times
                .filter(|time| *time > now)
                .min()
                .map_or(Eviction::Impossible, Eviction::At);
        }
        if is_idle(&least) { Eviction::Unload(least) } else { Eviction::Drain(least) }
    }

    /// Refuses nested requests of a demand if it needs memory of models that drain.
    pub(super) fn refuse_nested_behind_uses(
        &mut self,
        order: DemandOrder,
        out: &mut Vec<ResidencyAction>,
    ) {
        if self.models.iter().any(|model| model.state == ResidencyState::Draining) {
            self.refuse_nested(order, out);
        }
    }

    /// Refuses the nested requests of a demand, which would otherwise wait for models in use.
    pub(super) fn refuse_nested(&mut self, order: DemandOrder, out: &mut Vec<ResidencyAction>) {
        let Some(demand) = self.demands.get_mut(&order) else { return };
        let purpose = |key: &RequestKey| self.waiters.get(key).map(|waiter| waiter.purpose);
        let is_nested = |key: &RequestKey| match purpose(key) {
            Some(WaitPurpose::Use(origin) | WaitPurpose::ClientLoad(origin)) => {
                origin == RequestOrigin::Nested
            }
            None => false,
        };
        let (nested, others): (Vec<RequestKey>, Vec<RequestKey>) =
            demand.waiters.iter().copied().partition(is_nested);
        let is_load = |key: &RequestKey| matches!(purpose(key), Some(WaitPurpose::ClientLoad(_)));
        if demand.is_client_load && !others.iter().any(is_load) {
            demand.is_client_load = false;
            self.models[demand.target].is_pinned = false;
        }
        demand.waiters = others;
        if !demand.is_wanted() {
            self.remove_demand(order);
        }
        for key in nested {
            if let Some(waiter) = self.waiters.remove(&key) {
                self.deadlines.remove(&(waiter.deadline, key));
            }
            let reason = RefusalReason::WouldDeadlock;
            let refusal = ResidencyRefusal { reason, retry_after_ns: None };
            out.push(ResidencyAction::Refuse(key, refusal));
        }
    }
}
