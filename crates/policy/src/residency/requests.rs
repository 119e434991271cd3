//! Requests and clients: who is admitted, waits or is refused.

use super::Residency;
use super::demand::{Demand, WaitPurpose, Waiter};
use super::event::{
    ModelEstimate, RefusalReason, RequestOrigin, ResidencyAction, ResidencyRefusal,
    ResidencyRequest, ResidencyState,
};
use super::model::{ManagedModel, ModelIndex};
use super::order::{DemandClass, DemandOrder};
use crate::ids::RequestKey;
use crate::lifecycle::ModelId;
use crate::time::Time;

impl Residency {
    pub(super) fn known(
        &mut self,
        name: ModelId,
        estimate: ModelEstimate,
        out: &mut Vec<ResidencyAction>,
    ) {
        let index = self.index(&name).unwrap_or_else(|| self.new_model(name));
        let model = &mut self.models[index];
        if model.uses > 0 && model.dependencies != estimate.dependencies {
            let former = std::mem::take(&mut model.dependencies);
            model.former_dependencies.extend(former);
        }
        model.set_estimate(estimate);
        match model.state {
            ResidencyState::Reserved | ResidencyState::Loading => {
                let bytes = model.bytes.clone();
                self.count(index, bytes);
            }
            ResidencyState::Absent
            | ResidencyState::Resident
            | ResidencyState::Draining
            | ResidencyState::Unloading => {}
        }
        self.set_cost(index);
        self.experts.set_models(self.by_name.len());
        self.find_closures_again(out);
    }

    fn new_model(&mut self, name: ModelId) -> ModelIndex {
        let model = ManagedModel::new(name.clone());
        let index = if let Some(index) = self.free.pop() {
            self.models[index] = model;
            index
        } else {
            self.models.push(model);
            self.models.len() - 1
        };
        self.by_name.insert(name, index);
        index
    }

    pub(super) fn forgotten(&mut self, name: &ModelId, out: &mut Vec<ResidencyAction>) {
        let Some(index) = self.index(name) else { return };
        let model = &mut self.models[index];
        (model.is_forgotten, model.is_pinned) = (true, false);
        self.refuse_demands_with(index, &RefusalReason::UnknownModel(name.clone()), None, out);
        self.forget_if_unused(index);
    }

    /// Deletes a model that isn't in the repository, in memory or in use.
    pub(super) fn forget_if_unused(&mut self, index: ModelIndex) {
        let model = &self.models[index];
        let is_gone = model.is_forgotten && model.state == ResidencyState::Absent;
        if is_gone && model.uses == 0 && self.by_name.remove(&*model.name).is_some() {
            self.free.push(index);
            self.experts.forget(&mut self.models[index].worth);
            self.experts.set_models(self.by_name.len());
        }
    }

    /// Returns a model after its dependencies.
    ///
    /// # Errors
    ///
    /// Returns the name of a model that isn't known.
    pub(super) fn closure(&self, name: &ModelId) -> Result<Vec<ModelIndex>, ModelId> {
        let mut closure = Vec::new();
        self.add_closure(name, &mut vec![], &mut closure)?;
        Ok(closure)
    }

    fn add_closure(
        &self,
        name: &ModelId,
        path: &mut Vec<ModelIndex>,
        closure: &mut Vec<ModelIndex>,
    ) -> Result<(), ModelId> {
        let index = self.index(name).filter(|index| !self.models[*index].is_forgotten);
        let index = index.ok_or_else(|| name.clone())?;
        // A model that depends on itself is refused by the plan of loads.
        if closure.contains(&index) || path.contains(&index) {
            return Ok(());
        }
        path.push(index);
        for dependency in &self.models[index].dependencies {
            self.add_closure(dependency, path, closure)?;
        }
        path.pop();
        closure.push(index);
        Ok(())
    }

    fn find_closures_again(&mut self, out: &mut Vec<ResidencyAction>) {
        let orders: Vec<DemandOrder> = self.demands.keys().copied().collect();
        for order in orders {
            let name = self.models[self.demands[&order].target].name.clone();
            match self.closure(&name) {
                Ok(closure) => {
                    if let Some(demand) = self.demands.get_mut(&order) {
                        demand.closure = closure;
                    }
                }
                Err(missing) => {
                    self.refuse_demand(order, &RefusalReason::UnknownModel(missing), None, out);
                }
            }
        }
    }

    pub(super) fn request(
        &mut self,
        now: Time,
        request: ResidencyRequest,
        out: &mut Vec<ResidencyAction>,
    ) {
        let ResidencyRequest { key, model: name, deadline, origin } = request;
        let closure = match self.check_request(now, &name) {
            Ok(closure) => closure,
            Err(refusal) => return out.push(ResidencyAction::Refuse(key, refusal)),
        };
        self.count_use_of(&closure);
        let target = closure[closure.len() - 1];
        if self.admits(&closure, origin) {
            self.models[target].uses += 1;
            return out.push(ResidencyAction::Admit(key));
        }
        let waiting = (self.waiting_for(target), self.waiters.len());
        let purpose = WaitPurpose::Use(origin);
        let class = match origin {
            RequestOrigin::Client | RequestOrigin::Sequence => DemandClass::Normal,
            RequestOrigin::Nested => DemandClass::Urgent,
        };
        let is_changed = self.demand(target, closure, class);
        self.wait(key, Waiter { target, deadline, purpose });
        // A nested request may only wait for a demand that doesn't wait for models in use.
        if is_changed || origin == RequestOrigin::Nested {
            self.plan(now, out);
        }
        self.settle(now, key, waiting, out);
    }

    /// Returns the model of a request after its dependencies.
    fn check_request(
        &self,
        now: Time,
        name: &ModelId,
    ) -> Result<Vec<ModelIndex>, ResidencyRefusal> {
        let refuse = |reason, retry_after_ns| Err(ResidencyRefusal { reason, retry_after_ns });
        let closure = match self.closure(name) {
            Ok(closure) => closure,
            Err(missing) => return refuse(RefusalReason::UnknownModel(missing), None),
        };
        for index in &closure {
            let model = &self.models[*index];
            if model.is_blocked {
                return refuse(RefusalReason::UnloadedByClient(model.name.clone()), None);
            }
            if model.state == ResidencyState::Absent && model.retry_at > now {
                let pause_ns = model.retry_at.saturating_since(now);
                return refuse(RefusalReason::LoadFailed(model.name.clone()), Some(pause_ns));
            }
        }
        Ok(closure)
    }

    fn count_use_of(&mut self, closure: &[ModelIndex]) {
        closure.iter().for_each(|index| self.count_uses(*index, 1));
    }

    /// Returns true if a request to a model and its dependencies is admitted at once.
    fn admits(&self, closure: &[ModelIndex], origin: RequestOrigin) -> bool {
        let enters = |index: &ModelIndex| match (self.models[*index].state, origin) {
            (ResidencyState::Resident, _)
            | (ResidencyState::Draining, RequestOrigin::Sequence | RequestOrigin::Nested) => true,
            (ResidencyState::Draining, RequestOrigin::Client)
            | (
                ResidencyState::Absent
                | ResidencyState::Reserved
                | ResidencyState::Loading
                | ResidencyState::Unloading,
                _,
            ) => false,
        };
        closure.iter().all(enters)
    }

    fn waiting_for(&self, target: ModelIndex) -> usize {
        let demand = self.models[target].demand.and_then(|order| self.demands.get(&order));
        demand.map_or(0, |demand| demand.waiters.len())
    }

    /// Adds a demand for a model, or raises the class of the present one. Returns true if there was
    /// a change.
    fn demand(&mut self, target: ModelIndex, closure: Vec<ModelIndex>, class: DemandClass) -> bool {
        let present = self.models[target].demand;
        if present.is_some_and(|order| order.class <= class) {
            return false;
        }
        let demand = present.and_then(|order| self.demands.remove(&order)).unwrap_or(Demand {
            target,
            closure,
            waiters: Vec::new(),
            promised: None,
            is_client_load: false,
            ready_at: Time::default(),
        });
        let order = DemandOrder { class, number: self.next_order };
        self.next_order += 1;
        self.demands.insert(order, demand);
        self.models[target].demand = Some(order);
        true
    }

    fn wait(&mut self, key: RequestKey, waiter: Waiter) {
        let order = self.models[waiter.target].demand.expect("the model has a demand");
        self.demands.get_mut(&order).expect("the demand is in the queue").waiters.push(key);
        let earlier = self.waiters.insert(key, waiter);
        assert!(earlier.is_none(), "{key:?} waits already");
        if waiter.deadline != Time::MAX {
            self.deadlines.insert((waiter.deadline, key));
        }
    }

    /// Lets a request wait that has neither been admitted nor refused, or refuses it if it would
    /// wait too long or too many others wait.
    fn settle(
        &mut self,
        now: Time,
        key: RequestKey,
        (waiting_for_model, waiting): (usize, usize),
        out: &mut Vec<ResidencyAction>,
    ) {
        let Some(waiter) = self.waiters.get(&key).copied() else { return };
        let ready_at = self.predict(now, waiter.target);
        let reason = if waiting_for_model >= self.settings.waiting_per_model_max {
            Some(RefusalReason::TooManyWaitingForModel)
        } else if waiting >= self.settings.waiting_max {
            Some(RefusalReason::TooManyWaiting)
        } else if ready_at > waiter.deadline && self.is_load_time_known(waiter.target) {
            Some(RefusalReason::TooLate)
        } else {
            None
        };
        match reason {
            None => out.push(ResidencyAction::Wait { key, ready_at }),
            Some(reason) => self.refuse_with_promise(now, key, reason, out),
        }
    }

    /// Returns true if the loads that a demand waits for have been measured.
    fn is_load_time_known(&self, target: ModelIndex) -> bool {
        let demand = self.models[target].demand.and_then(|order| self.demands.get(&order));
        let is_known = |index: &ModelIndex| {
            let model = &self.models[*index];
            model.is_resident() || model.load.is_measured()
        };
        demand.is_none_or(|demand| demand.closure.iter().all(is_known))
    }

    /// Refuses a waiting request with the time at which it would be admitted. The model is loaded
    /// all the same, and stays until then.
    fn refuse_with_promise(
        &mut self,
        now: Time,
        key: RequestKey,
        reason: RefusalReason,
        out: &mut Vec<ResidencyAction>,
    ) {
        let Some(waiter) = self.stop_waiting(key) else { return };
        let ready_at = self.predict(now, waiter.target);
        let order = self.models[waiter.target].demand;
        if let Some(demand) = order.and_then(|order| self.demands.get_mut(&order)) {
            demand.promised = demand.promised.max(Some(ready_at));
        }
        let retry_after_ns = Some(ready_at.saturating_since(now));
        out.push(ResidencyAction::Refuse(key, ResidencyRefusal { reason, retry_after_ns }));
    }

    fn stop_waiting(&mut self, key: RequestKey) -> Option<Waiter> {
        let waiter = self.waiters.remove(&key)?;
        self.deadlines.remove(&(waiter.deadline, key));
        let order = self.models[waiter.target].demand;
        if let Some(demand) = order.and_then(|order| self.demands.get_mut(&order)) {
            demand.waiters.retain(|other| *other != key);
        }
        Some(waiter)
    }

    pub(super) fn refuse_expired(&mut self, now: Time, out: &mut Vec<ResidencyAction>) {
        while let Some((deadline, key)) = self.deadlines.first().copied() {
            if deadline > now {
                return;
            }
            self.refuse_with_promise(now, key, RefusalReason::DeadlineExceeded, out);
        }
    }

    pub(super) fn cancelled(&mut self, key: RequestKey) {
        let Some(waiter) = self.stop_waiting(key) else { return };
        let Some(order) = self.models[waiter.target].demand else { return };
        if self.demands.get(&order).is_some_and(|demand| !demand.is_wanted()) {
            self.remove_demand(order);
        }
    }

    pub(super) fn remove_demand(&mut self, order: DemandOrder) -> Option<Demand> {
        let demand = self.demands.remove(&order)?;
        self.models[demand.target].demand = None;
        Some(demand)
    }

    /// Refuses the waiting requests of a demand and removes it.
    pub(super) fn refuse_demand(
        &mut self,
        order: DemandOrder,
        reason: &RefusalReason,
        retry_after_ns: Option<u64>,
        out: &mut Vec<ResidencyAction>,
    ) {
        let Some(demand) = self.remove_demand(order) else { return };
        for key in demand.waiters {
            if let Some(waiter) = self.waiters.remove(&key) {
                self.deadlines.remove(&(waiter.deadline, key));
            }
            let refusal = ResidencyRefusal { reason: reason.clone(), retry_after_ns };
            out.push(ResidencyAction::Refuse(key, refusal));
        }
        if demand.is_client_load {
            self.models[demand.target].is_pinned = false;
        }
    }

    /// Refuses all demands that need a model.
    pub(super) fn refuse_demands_with(
        &mut self,
        index: ModelIndex,
        reason: &RefusalReason,
        retry_after_ns: Option<u64>,
        out: &mut Vec<ResidencyAction>,
    ) {
        let needs = |(_, demand): &(&DemandOrder, &Demand)| demand.closure.contains(&index);
        let orders: Vec<DemandOrder> =
            self.demands.iter().filter(needs).map(|(order, _)| *order).collect();
        for order in orders {
            self.refuse_demand(order, reason, retry_after_ns, out);
        }
    }

    pub(super) fn used_meanwhile(&mut self, now: Time, name: &ModelId, uses: u64) {
        if uses == 0 {
            return;
        }
        for index in self.closure(name).unwrap_or_default() {
            self.count_uses(index, uses);
            self.models[index].idle_since = now;
        }
    }

    pub(super) fn held(&mut self, name: &ModelId) {
        let index = self.index(name).expect("the model is known");
        self.models[index].uses += 1;
    }

    pub(super) fn released(&mut self, now: Time, name: &ModelId) {
        let index = self.index(name).expect("the model is known");
        let model = &mut self.models[index];
        model.uses = model.uses.checked_sub(1).expect("the use has begun");
        if model.uses > 0 {
            return;
        }
        model.idle_since = now;
        model.former_dependencies.clear();
        if !model.dependencies.is_empty() {
            for index in self.closure(name).unwrap_or_default() {
                self.models[index].idle_since = now;
            }
        }
        self.forget_if_unused(index);
    }

    pub(super) fn client_load(
        &mut self,
        now: Time,
        key: RequestKey,
        name: ModelId,
        origin: RequestOrigin,
        out: &mut Vec<ResidencyAction>,
    ) {
        let closure = match self.closure(&name) {
            Ok(closure) => closure,
            Err(missing) => {
                let reason = RefusalReason::UnknownModel(missing);
                let refusal = ResidencyRefusal { reason, retry_after_ns: None };
                return out.push(ResidencyAction::Refuse(key, refusal));
            }
        };
        let target = closure[closure.len() - 1];
        for index in &closure {
            let model = &mut self.models[*index];
            model.is_blocked = false;
            model.retry_at = Time::default();
            if model.state == ResidencyState::Draining {
                model.state = ResidencyState::Resident;
            }
        }
        self.models[target].is_pinned = true;
        if self.admits(&closure, RequestOrigin::Client) {
            out.push(ResidencyAction::Admit(key));
            return self.plan(now, out);
        }
        self.demand(target, closure, DemandClass::Urgent);
        let purpose = WaitPurpose::ClientLoad(origin);
        self.wait(key, Waiter { target, deadline: Time::MAX, purpose });
        if let Some(demand) = self.models[target].demand.and_then(|at| self.demands.get_mut(&at)) {
            demand.is_client_load = true;
        }
        self.plan(now, out);
        if self.waiters.contains_key(&key) {
            let ready_at = self.predict(now, target);
            out.push(ResidencyAction::Wait { key, ready_at });
        }
    }

    pub(super) fn client_unload(&mut self, name: &ModelId, out: &mut Vec<ResidencyAction>) {
        let Some(index) = self.index(name) else { return };
        let model = &mut self.models[index];
        (model.is_blocked, model.is_pinned) = (true, false);
        self.refuse_demands_with(index, &RefusalReason::UnloadedByClient(name.clone()), None, out);
    }
}
