//! The plan: reserves memory for demands, in order, and starts loads and unloads.

use super::Residency;
use super::demand::{Demand, WaitPurpose};
use super::event::{LoadMeasurement, RefusalReason, ResidencyAction, ResidencyState};
use super::eviction::{Eviction, Marks};
use super::model::{DrainReason, ModelIndex};
use super::order::{DemandClass, DemandOrder};
use super::pools::MemoryByPool;
use crate::lifecycle::ModelId;
use crate::time::Time;

/// The time for which a model stays after the time that a refused client was told to come back.
const PROMISE_NS: u64 = 2_000_000_000;

/// The result of trying to find memory for a demand.
enum Acquisition {
    /// The memory is reserved.
    Reserved,
    /// The memory becomes free without another eviction.
    InSight,
    /// There is no model to evict at this time.
    Blocked,
}

impl Residency {
    pub(super) fn loaded(&mut self, now: Time, name: &ModelId, measured: &LoadMeasurement) {
        let index = self.index(name).expect("the model is known");
        let stay_factor = self.settings.stay_factor;
        self.models[index].loaded(now, measured, stay_factor);
        self.count(index, measured.bytes.clone());
        self.set_cost(index);
    }

    pub(super) fn load_failed(
        &mut self,
        now: Time,
        name: &ModelId,
        out: &mut Vec<ResidencyAction>,
    ) {
        let index = self.index(name).expect("the model is known");
        assert_eq!(self.models[index].state, ResidencyState::Loading, "{name} is being loaded");
        self.models[index].load_failed(now);
        self.count(index, MemoryByPool::default());
        let pause_ns = self.models[index].retry_at.saturating_since(now);
        let reason = RefusalReason::LoadFailed(name.clone());
        self.refuse_demands_with(index, &reason, Some(pause_ns), out);
        self.forget_if_unused(index);
    }

    pub(super) fn unloaded(&mut self, now: Time, name: &ModelId) {
        let index = self.index(name).expect("the model is known");
        let model = &mut self.models[index];
        if model.state == ResidencyState::Unloading {
            let duration_ns = now.saturating_since(model.changed_at);
            self.unload_ns = latest_or_decayed(self.unload_ns, duration_ns);
        }
        model.state = ResidencyState::Absent;
        self.count(index, MemoryByPool::default());
        self.forget_if_unused(index);
    }

    pub(super) fn measured(&mut self, name: &ModelId, bytes: MemoryByPool) {
        let Some(index) = self.index(name) else { return };
        if self.models[index].is_resident() {
            self.models[index].bytes = bytes.clone();
            self.count(index, bytes);
            self.set_cost(index);
        }
    }

    /// Brings the models in memory closer to what the demands need.
    pub(super) fn plan(&mut self, now: Time, out: &mut Vec<ResidencyAction>) {
        self.eviction_at = None;
        self.is_prediction_stale = true;
        loop {
            self.give_up_reservations();
            self.unload_unwanted(now, out);
            self.finish_demands(now, out);
            self.unload_drained(now, out);
            self.shrink_to_budget(now, out);
            let has_refused = self.serve_demands(now, out);
            if !self.stop_needless_drains() && !has_refused {
                break;
            }
        }
        self.start_loads(now, out);
    }

    /// Gives up reservations that no demand needs any more, and those that exceed the budget.
    fn give_up_reservations(&mut self) {
        let is_reserved =
            |index: &ModelIndex| self.models[*index].state == ResidencyState::Reserved;
        let reserved: Vec<ModelIndex> = (0..self.models.len()).filter(is_reserved).collect();
        for index in reserved {
            let is_needed = self.demands.values().any(|demand| demand.closure.contains(&index));
            let excess = self.settings.budget.excess(&self.used);
            if !is_needed || excess.overlaps(&self.models[index].counted) {
                self.models[index].state = ResidencyState::Absent;
                self.count(index, MemoryByPool::default());
                self.forget_if_unused(index);
            }
        }
    }

    /// Unloads models that clients have unloaded, or that left the repository.
    fn unload_unwanted(&mut self, now: Time, out: &mut Vec<ResidencyAction>) {
        for index in 0..self.models.len() {
            let model = &self.models[index];
            if model.is_resident() && (model.is_blocked || model.is_forgotten) {
                self.unload(now, index, out);
            }
        }
    }

    /// Unloads a model after the models that depend on it.
    pub(super) fn unload(&mut self, now: Time, index: ModelIndex, out: &mut Vec<ResidencyAction>) {
        for dependent in 0..self.models.len() {
            let model = &self.models[dependent];
            let depends = model.is_resident()
                && dependent != index
                && model.dependencies.contains(&self.models[index].name);
            if depends {
                self.unload(now, dependent, out);
            }
        }
        let model = &mut self.models[index];
        if !model.is_resident() {
            return;
        }
        model.state = ResidencyState::Unloading;
        model.changed_at = now;
        model.is_pinned = false;
        out.push(ResidencyAction::Unload(model.name.clone()));
    }

    /// Admits the requests of demands whose models are resident.
    fn finish_demands(&mut self, now: Time, out: &mut Vec<ResidencyAction>) {
        let is_ready = |demand: &Demand| {
            let state = |index: &ModelIndex| self.models[*index].state;
            demand.closure.iter().all(|index| state(index) == ResidencyState::Resident)
        };
        let ready: Vec<DemandOrder> = self
            .demands
            .iter()
            .filter(|(_, demand)| is_ready(demand))
            .map(|(order, _)| *order)
            .collect();
        for order in ready {
            if let Some(demand) = self.remove_demand(order) {
                self.finish_demand(now, &demand, out);
            }
        }
    }

    fn finish_demand(&mut self, now: Time, demand: &Demand, out: &mut Vec<ResidencyAction>) {
        for key in &demand.waiters {
            let waiter = self.waiters.remove(key).expect("the request waits");
            self.deadlines.remove(&(waiter.deadline, *key));
            match waiter.purpose {
                WaitPurpose::Use(_) => self.models[demand.target].uses += 1,
                WaitPurpose::ClientLoad(_) => {}
            }
            out.push(ResidencyAction::Admit(*key));
        }
        for index in &demand.closure {
            let model = &mut self.models[*index];
            model.idle_since = now;
            if let Some(promised) = demand.promised {
                let until = promised.saturating_add(PROMISE_NS);
                model.promised_until = model.promised_until.max(until);
            }
        }
    }

    fn unload_drained(&mut self, now: Time, out: &mut Vec<ResidencyAction>) {
        let is_draining =
            |index: &ModelIndex| self.models[*index].state == ResidencyState::Draining;
        let draining: Vec<ModelIndex> = (0..self.models.len()).filter(is_draining).collect();
        if draining.is_empty() {
            return;
        }
        let marks = self.marks();
        for index in draining {
            if !marks[index].is_in_use {
                let duration_ns = now.saturating_since(self.models[index].changed_at);
                self.use_ns = latest_or_decayed(self.use_ns, duration_ns);
                self.unload(now, index, out);
            }
        }
    }

    /// Unloads models until the budget isn't exceeded.
    fn shrink_to_budget(&mut self, now: Time, out: &mut Vec<ResidencyAction>) {
        if self.settings.budget.excess(&self.used).is_zero() {
            return;
        }
        loop {
            let mut later = self.used.clone();
            later.subtract(&self.pending());
            let short = self.settings.budget.excess(&later);
            if short.is_zero() {
                return;
            }
            let marks = self.marks();
            match self.choose_victim(now, &marks, &short, DemandClass::Urgent) {
                Eviction::Unload(index) => self.unload(now, index, out),
                Eviction::Drain(index) => self.drain(now, index, DrainReason::Budget),
                Eviction::At(_) | Eviction::Impossible => return,
            }
        }
    }

    fn drain(&mut self, now: Time, index: ModelIndex, reason: DrainReason) {
        let model = &mut self.models[index];
        model.state = ResidencyState::Draining;
        model.changed_at = now;
        model.drain_reason = reason;
    }

    /// Returns the memory that becomes free without another eviction.
    pub(super) fn pending(&self) -> MemoryByPool {
        let mut pending = MemoryByPool::default();
        for model in &self.models {
            match model.state {
                ResidencyState::Draining | ResidencyState::Unloading => pending.add(&model.counted),
                ResidencyState::Absent
                | ResidencyState::Reserved
                | ResidencyState::Loading
                | ResidencyState::Resident => {}
            }
        }
        pending
    }

    /// Returns the models of a demand that have no memory for it.
    pub(super) fn missing(&self, demand: &Demand) -> Vec<ModelIndex> {
        let is_missing = |index: &ModelIndex| match self.models[*index].state {
            ResidencyState::Absent | ResidencyState::Draining | ResidencyState::Unloading => true,
            ResidencyState::Reserved | ResidencyState::Loading | ResidencyState::Resident => false,
        };
        demand.closure.iter().copied().filter(is_missing).collect()
    }

    fn bytes_of(&self, indices: &[ModelIndex]) -> MemoryByPool {
        let mut bytes = MemoryByPool::default();
        indices.iter().for_each(|index| bytes.add(&self.models[*index].bytes));
        bytes
    }

    /// Finds memory for demands, in order. Returns true if a demand was refused.
    fn serve_demands(&mut self, now: Time, out: &mut Vec<ResidencyAction>) -> bool {
        let orders: Vec<DemandOrder> = self.demands.keys().copied().collect();
        // The memory that older demands wait for.
        let mut ahead = MemoryByPool::default();
        let (mut may_evict, mut has_refused) = (true, false);
        let (mut loads, mut has_slots) = (self.loads_in_progress(), true);
        for order in orders {
            let missing = self.missing(&self.demands[&order]);
            if missing.is_empty() {
                continue;
            }
            if let Some(reason) = self.over_budget(&self.demands[&order]) {
                self.refuse_demand(order, &reason, None, out);
                has_refused = true;
                continue;
            }
            has_slots &= loads == 0 || loads + missing.len() <= self.settings.concurrent_loads_max;
            if !has_slots {
                // The slots may be meant for demands that wait for models in use.
                self.refuse_nested_behind_uses(order, out);
                continue;
            }
            match self.acquire(now, order, &missing, &ahead, may_evict, out) {
                Acquisition::Reserved => loads += missing.len(),
                Acquisition::InSight => {
                    loads += missing.len();
                    ahead.add(&self.bytes_of(&missing));
                }
                Acquisition::Blocked => {
                    may_evict = false;
                    ahead.add(&self.bytes_of(&missing));
                }
            }
        }
        has_refused
    }

    /// Returns the number of loads in progress, with those that only wait for other loads.
    fn loads_in_progress(&self) -> usize {
        let mut is_counted: Vec<bool> =
            self.models.iter().map(|model| model.state == ResidencyState::Loading).collect();
        // A demand whose reservations were given up in part waits for more than loads.
        for demand in self.demands.values().filter(|demand| self.missing(demand).is_empty()) {
            for index in &demand.closure {
                is_counted[*index] |= self.models[*index].state == ResidencyState::Reserved;
            }
        }
        is_counted.into_iter().filter(|is_counted| *is_counted).count()
    }

    /// Returns the reason if a demand can't have its memory even if all other models are unloaded.
    fn over_budget(&self, demand: &Demand) -> Option<RefusalReason> {
        let needed = self.bytes_of(&demand.closure);
        let marks = self.marks();
        let is_other_pinned =
            |index: &ModelIndex| marks[*index].is_pinned && !demand.closure.contains(index);
        let others: Vec<ModelIndex> = (0..self.models.len()).filter(is_other_pinned).collect();
        let pinned = self.bytes_of(&others);
        let mut sum = needed.clone();
        sum.add(&pinned);
        let over = |(pool, over): &(_, u64)| *over > 0 && needed.of(*pool) > 0;
        let (pool, _) = self.settings.budget.excess(&sum).iter().find(over)?;
        Some(RefusalReason::OverBudget {
            pool,
            needed: needed.of(pool),
            limit: self.settings.budget.limit(pool).unwrap_or(u64::MAX),
            pinned: pinned.of(pool),
        })
    }

    /// Reserves the memory of a demand, or evicts models for it.
    fn acquire(
        &mut self,
        now: Time,
        order: DemandOrder,
        missing: &[ModelIndex],
        ahead: &MemoryByPool,
        may_evict: bool,
        out: &mut Vec<ResidencyAction>,
    ) -> Acquisition {
        let needed = self.bytes_of(missing);
        loop {
            let mut at_once = self.used.clone();
            at_once.add(&needed);
            let mut later = at_once.clone();
            later.add(ahead);
            later.subtract(&self.pending());
            let short = self.short_of(&later, &needed);
            let is_absent =
                |index: &ModelIndex| self.models[*index].state == ResidencyState::Absent;
            if short.is_zero() {
                let is_free = self.short_of(&at_once, &needed).is_zero();
                if !is_free || !missing.iter().all(is_absent) {
                    self.refuse_nested_behind_uses(order, out);
                    return Acquisition::InSight;
                }
                missing.iter().for_each(|index| self.reserve(*index));
                return Acquisition::Reserved;
            }
            if !may_evict || !self.evict_for(now, order, &short, out) {
                self.refuse_nested(order, out);
                return Acquisition::Blocked;
            }
        }
    }

    /// Returns the excess of `amounts` in those pools in which memory is needed.
    fn short_of(&self, amounts: &MemoryByPool, needed: &MemoryByPool) -> MemoryByPool {
        let mut short = MemoryByPool::default();
        for (pool, excess) in self.settings.budget.excess(amounts).iter() {
            if needed.of(pool) > 0 {
                short = short.with(pool, excess);
            }
        }
        short
    }

    fn reserve(&mut self, index: ModelIndex) {
        self.models[index].state = ResidencyState::Reserved;
        let bytes = self.models[index].bytes.clone();
        self.count(index, bytes);
    }

    /// Evicts a model for a demand. Returns false if none can be evicted at this time.
    fn evict_for(
        &mut self,
        now: Time,
        order: DemandOrder,
        short: &MemoryByPool,
        out: &mut Vec<ResidencyAction>,
    ) -> bool {
        let mut marks = self.marks();
        let demand = &self.demands[&order];
        let target = demand.target;
        demand.closure.iter().for_each(|index| marks[*index].is_needed = true);
        match self.choose_victim(now, &marks, short, order.class) {
            Eviction::Unload(index) => self.unload(now, index, out),
            Eviction::Drain(index) => self.drain(now, index, DrainReason::Demand(target)),
            Eviction::At(time) => {
                self.eviction_at = Some(self.eviction_at.map_or(time, |other| other.min(time)));
                return false;
            }
            Eviction::Impossible => return false,
        }
        true
    }

    /// Lets models serve on that no longer have to be unloaded. Returns true if there are any.
    fn stop_needless_drains(&mut self) -> bool {
        let is_over = !self.settings.budget.excess(&self.used).is_zero();
        let mut has_changed = false;
        for index in 0..self.models.len() {
            if self.models[index].state != ResidencyState::Draining {
                continue;
            }
            let is_needed = match self.models[index].drain_reason {
                DrainReason::Budget => is_over,
                DrainReason::Demand(target) => {
                    let order = self.models[target].demand;
                    let demand = order.and_then(|order| self.demands.get(&order));
                    demand.is_some_and(|demand| !self.missing(demand).is_empty())
                }
            };
            if !is_needed {
                self.models[index].state = ResidencyState::Resident;
                has_changed = true;
            }
        }
        has_changed
    }

    /// Starts the loads of reserved models whose dependencies are resident.
    fn start_loads(&mut self, now: Time, out: &mut Vec<ResidencyAction>) {
        let is_loading = |state| state == ResidencyState::Loading;
        let mut loads = self.models.iter().filter(|model| is_loading(model.state)).count();
        let in_order: Vec<ModelIndex> =
            self.demands.values().flat_map(|demand| demand.closure.iter().copied()).collect();
        for index in in_order {
            if loads >= self.settings.concurrent_loads_max.max(1) {
                return;
            }
            if self.models[index].state == ResidencyState::Reserved && self.can_load(index) {
                let model = &mut self.models[index];
                model.state = ResidencyState::Loading;
                model.changed_at = now;
                out.push(ResidencyAction::Load(model.name.clone()));
                loads += 1;
            }
        }
    }

    fn can_load(&self, index: ModelIndex) -> bool {
        let is_resident = |name: &ModelId| {
            let dependency = self.index(name).map(|dependency| self.models[dependency].state);
            dependency == Some(ResidencyState::Resident)
        };
        let excess = self.settings.budget.excess(&self.used);
        self.models[index].dependencies.iter().all(is_resident)
            && !excess.overlaps(&self.models[index].counted)
    }

    /// Returns the marks of all models.
    pub(super) fn marks(&self) -> Vec<Marks> {
        let mut marks = vec![Marks::default(); self.models.len()];
        for (index, model) in self.models.iter().enumerate() {
            let is_arriving =
                matches!(model.state, ResidencyState::Reserved | ResidencyState::Loading);
            if model.uses == 0 && !model.is_pinned && !is_arriving {
                continue;
            }
            let mut closure = self.closure(&model.name).unwrap_or_else(|_| vec![index]);
            closure.extend(model.former_dependencies.iter().filter_map(|name| self.index(name)));
            for other in closure {
                marks[other].is_in_use |= model.uses > 0;
                marks[other].is_pinned |= model.is_pinned;
                marks[other].is_needed |= is_arriving;
            }
        }
        for demand in self.demands.values() {
            if self.missing(demand).is_empty() {
                demand.closure.iter().for_each(|index| marks[*index].is_needed = true);
            }
        }
        marks
    }
}

/// Returns the latest duration if it is longer than an earlier one, which loses an eighth with each
/// further duration.
fn latest_or_decayed(earlier_ns: u64, latest_ns: u64) -> u64 {
    latest_ns.max(earlier_ns - earlier_ns / 8)
}
