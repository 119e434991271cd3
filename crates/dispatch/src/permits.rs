//! The driver of the server's rate limiter: which instances may execute, where
//! instances of all models share resources.
//!
//! Its one lock is a leaf: dispatchers tell what their schedulers want under their
//! own locks, so that nothing is told in another order than it was decided, and
//! nothing is called under this one. What is granted is delivered when no lock is
//! held.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use galatea_backend::Device;
use galatea_config::InstanceGroup;
use galatea_infer::Status;
use galatea_policy::{InstanceId, PermitEvent, PermitHolder, PermitUse, RateLimiter, ResourceId};

use crate::Dispatcher;

/// How instances of all models share resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RateLimit {
    /// They don't: what configurations say about it is ignored.
    #[default]
    Off,
    /// An instance executes when the resources that it needs are free; the one
    /// that executed least goes first. Without a list there is as much of a
    /// resource as the instance needs that needs most.
    ExecutionCount(Vec<ResourceLimit>),
}

/// How much there is of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceLimit {
    /// Its name.
    pub name: String,
    /// How many units.
    pub count: u32,
    /// The one device that this is about; otherwise each.
    pub device: Option<u32>,
}

/// What an instance needs while it executes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    resources: Vec<(Resource, u64)>,
    priority: u32,
}

/// A resource by its name and where it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Resource {
    name: String,
    place: Place,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// There is one for the whole server.
    Global,
    Device(u32),
}

impl Needs {
    /// What the group says, for an instance on that device. As in the original,
    /// what has no GPU runs on device 0, and of a resource that is named twice the
    /// last count holds.
    pub(crate) fn new(group: &InstanceGroup, device: Device) -> Self {
        let device = match device {
            Device::Gpu(gpu) => gpu,
            Device::Cpu | Device::Model => 0,
        };
        let resources = group.rate_limiter.resources.iter().map(|one| {
            let place = if one.global { Place::Global } else { Place::Device(device) };
            (Resource { name: one.name.clone(), place }, u64::from(one.count))
        });
        let resources: BTreeMap<Resource, u64> = resources.collect();
        Self { resources: resources.into_iter().collect(), priority: group.rate_limiter.priority }
    }

    /// Whether the instance may execute whenever it likes.
    pub(crate) fn is_empty(&self) -> bool {
        self.resources.is_empty()
    }
}

/// Hands out permits to all dispatchers of a server.
#[derive(Debug)]
pub(crate) struct Permits {
    limits: Vec<ResourceLimit>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    limiter: RateLimiter,
    /// Resources that were ever needed, by their place in the list.
    resources: Vec<Resource>,
    needs: BTreeMap<PermitHolder, Needs>,
    /// Dispatchers by their number.
    dispatchers: BTreeMap<u32, Weak<Dispatcher>>,
    next: u32,
}

/// A dispatcher's number at the rate limiter.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member(u32);

impl Member {
    fn holder(self, instance: InstanceId) -> PermitHolder {
        PermitHolder(u64::from(self.0) << 32 | u64::from(instance.0))
    }
}

/// What a scheduler wants of the rate limiter.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Order {
    Request(InstanceId),
    Return { instance: InstanceId, used: bool },
    Withdraw(InstanceId),
}

/// Permits on their way to their instances.
pub(crate) type Granted = Vec<PermitHolder>;

/// What becomes of a scheduler's orders.
#[derive(Debug)]
pub(crate) struct Told {
    /// Who may execute now, of whatever model.
    pub(crate) granted: Granted,
    /// Which instances of this model asked, and have to wait.
    pub(crate) delayed: Vec<InstanceId>,
}

impl Permits {
    /// There if resources are limited.
    pub(crate) fn new(limit: &RateLimit) -> Option<Self> {
        match limit {
            RateLimit::Off => None,
            RateLimit::ExecutionCount(limits) => {
                Some(Self { limits: limits.clone(), state: Mutex::default() })
            }
        }
    }

    /// A dispatcher that asks for permits from now on.
    pub(crate) fn join(&self, dispatcher: Weak<Dispatcher>) -> Member {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.dispatchers.insert(number, dispatcher);
        Member(number)
    }

    /// The dispatcher is gone, and its instances with it.
    pub(crate) fn leave(&self, member: Member) {
        self.lock().dispatchers.remove(&member.0);
    }

    /// Makes an instance known.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if it could never execute, or if a resource would be both
    /// of the server and of a device.
    pub(crate) fn register(
        &self,
        member: Member,
        instance: InstanceId,
        needs: Needs,
    ) -> Result<(), Status> {
        let mut state = self.lock();
        for (resource, count) in &needs.resources {
            state.check_place(resource, &needs)?;
            self.check_count(resource, *count)?;
        }
        let holder = member.holder(instance);
        let named = needs.resources.iter();
        let numbered: Vec<(ResourceId, u64)> =
            named.map(|(resource, count)| (state.number(resource), *count)).collect();
        let priority = needs.priority;
        state.needs.insert(holder, needs);
        self.settle_capacities(&mut state);
        state.limiter.register(holder, &numbered, priority);
        Ok(())
    }

    /// The instance gets no further batch. Returns what others get thereby.
    pub(crate) fn unregister(&self, member: Member, instance: InstanceId) -> Granted {
        let holder = member.holder(instance);
        let mut state = self.lock();
        let mut granted = Vec::new();
        if state.needs.remove(&holder).is_some() {
            state.limiter.unregister(holder, &mut granted);
            self.settle_capacities(&mut state);
        }
        granted
    }

    /// Does what a scheduler wants in one step. An error means that it broke the
    /// rules.
    pub(crate) fn tell(&self, member: Member, orders: &[Order]) -> std::thread::Result<Told> {
        let events: Vec<PermitEvent> = orders.iter().map(|order| event(member, *order)).collect();
        let mut state = self.lock();
        let mut granted = Vec::new();
        let limiter = &mut state.limiter;
        let step = AssertUnwindSafe(|| limiter.step_all(&events, &mut granted));
        catch_unwind(step)?;
        let asked = orders.iter().filter_map(|order| match order {
            Order::Request(instance) => Some(*instance),
            Order::Return { .. } | Order::Withdraw(_) => None,
        });
        let limiter = &state.limiter;
        let must_wait = |instance: &InstanceId| !limiter.has_permit(member.holder(*instance));
        let delayed = asked.filter(must_wait).collect();
        Ok(Told { granted, delayed })
    }

    /// Takes a permit back, if the instance has one, from a scheduler that says
    /// nothing any more.
    pub(crate) fn take_back(&self, holder: PermitHolder, used_for: PermitUse) -> Granted {
        let mut state = self.lock();
        let mut granted = Vec::new();
        if state.limiter.has_permit(holder) {
            state.limiter.step(PermitEvent::Return { holder, used_for }, &mut granted);
        }
        granted
    }

    /// As [`Permits::take_back`].
    pub(crate) fn take_back_from(
        &self,
        member: Member,
        instance: InstanceId,
        used_for: PermitUse,
    ) -> Granted {
        self.take_back(member.holder(instance), used_for)
    }

    /// Brings permits to their dispatchers, and what those return for others to
    /// the next. Ends, because each was asked for before. No lock may be held.
    pub(crate) fn deliver(&self, granted: Granted) {
        let mut granted = VecDeque::from(granted);
        while let Some(holder) = granted.pop_front() {
            let number = u32::try_from(holder.0 >> 32).unwrap_or(u32::MAX);
            let instance = u32::try_from(holder.0 & u64::from(u32::MAX)).unwrap_or(u32::MAX);
            let dispatcher = self.lock().dispatchers.get(&number).and_then(Weak::upgrade);
            granted.extend(match dispatcher {
                Some(dispatcher) => dispatcher.permit_granted(InstanceId(instance)),
                None => self.take_back(holder, PermitUse::Unused),
            });
        }
    }

    /// A list that was given says of every resource how much there is.
    fn check_count(&self, resource: &Resource, needed: u64) -> Result<(), Status> {
        let Some(limit) = self.limit(resource).filter(|limit| *limit < needed) else {
            return Ok(());
        };
        Err(Status::invalid_argument(format!(
            "Resource count for \"{}\" is limited to {limit} which will prevent scheduling of one \
             or more model instances, the minimum required count is {needed}",
            resource.name
        )))
    }

    /// How much there is by the list, if there is one.
    fn limit(&self, resource: &Resource) -> Option<u64> {
        if self.limits.is_empty() {
            return None;
        }
        let applies = |limit: &&ResourceLimit| {
            let is_here = match resource.place {
                Place::Global => true,
                Place::Device(device) => limit.device.is_none_or(|other| other == device),
            };
            limit.name == resource.name && is_here
        };
        // Of several for the same device the least counts, then the most.
        let mut least: BTreeMap<Option<u32>, u32> = BTreeMap::new();
        for limit in self.limits.iter().filter(applies) {
            let count = least.entry(limit.device).or_insert(limit.count);
            *count = limit.count.min(*count);
        }
        Some(least.into_values().max().map_or(0, u64::from))
    }

    fn settle_capacities(&self, state: &mut State) {
        for (resource, id) in state.resources.iter().zip((0..).map(ResourceId)) {
            let all = state.needs.values().flat_map(|needs| &needs.resources);
            let here = all.filter(|(needed, _)| needed == resource).map(|(_, count)| *count);
            let capacity = self.limit(resource).unwrap_or_else(|| here.max().unwrap_or(0));
            state.limiter.set_capacity(id, capacity);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    #[expect(clippy::expect_used, reason = "two resources must not have one number")]
    fn number(&mut self, resource: &Resource) -> ResourceId {
        let known = self.resources.iter().position(|known| known == resource);
        let place = known.unwrap_or_else(|| {
            self.resources.push(resource.clone());
            self.resources.len() - 1
        });
        ResourceId(u32::try_from(place).expect("nobody has so many resources"))
    }

    fn check_place(&self, resource: &Resource, own: &Needs) -> Result<(), Status> {
        let is_global = |resource: &Resource| resource.place == Place::Global;
        let mut others = self.needs.values().chain([own]).flat_map(|needs| &needs.resources);
        let differs = |(other, _): &(Resource, u64)| {
            other.name == resource.name && is_global(other) != is_global(resource)
        };
        if others.any(differs) {
            return Err(Status::invalid_argument(format!(
                "Resource \"{}\" is present as both global and device-specific resource in the \
                 model configuration.",
                resource.name
            )));
        }
        Ok(())
    }
}

fn event(member: Member, order: Order) -> PermitEvent {
    match order {
        Order::Request(instance) => PermitEvent::Request(member.holder(instance)),
        Order::Withdraw(instance) => PermitEvent::Withdraw(member.holder(instance)),
        Order::Return { instance, used } => PermitEvent::Return {
            holder: member.holder(instance),
            used_for: if used { PermitUse::Executed } else { PermitUse::Unused },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits(limits: &[(&str, u32, Option<u32>)]) -> Permits {
        let limits = limits.iter().map(|&(name, count, device)| ResourceLimit {
            name: String::from(name),
            count,
            device,
        });
        Permits::new(&RateLimit::ExecutionCount(limits.collect())).unwrap()
    }

    fn needs(name: &str, place: Place, count: u64) -> Needs {
        let resource = Resource { name: String::from(name), place };
        Needs { resources: vec![(resource, count)], priority: 0 }
    }

    #[track_caller]
    fn check(permits: &Permits, needed: &[(&str, Place, u64)], expected: &str) {
        let member = permits.join(Weak::new());
        let outcomes =
            (0..).map(InstanceId).zip(needed).map(|(instance, &(name, place, count))| {
                permits.register(member, instance, needs(name, place, count))
            });
        let outcome: Result<Vec<()>, Status> = outcomes.collect();
        let said = outcome.err().map_or(String::new(), |status| status.message().to_owned());
        assert!(said.contains(expected) && said.is_empty() == expected.is_empty(), "{said}");
    }

    #[test]
    fn without_a_list_there_is_as_much_as_anybody_needs() {
        let permits = permits(&[]);
        let member = permits.join(Weak::new());
        for (instance, count) in (0..).map(InstanceId).zip([2, 5, 3]) {
            permits.register(member, instance, needs("R", Place::Global, count)).unwrap();
        }
        let capacity = || permits.lock().limiter.capacity(ResourceId(0));
        assert_eq!(capacity(), 5);
        permits.unregister(member, InstanceId(1));
        assert_eq!(capacity(), 3);
    }

    #[test]
    fn a_list_says_how_much_there_is_of_everything() {
        let list = [("R", 4, None), ("R", 8, Some(1)), ("S", 2, Some(0)), ("S", 1, Some(0))];
        let on = Place::Device;
        check(&permits(&list), &[("R", on(0), 4), ("R", on(1), 8), ("S", on(0), 1)], "");
        check(&permits(&list), &[("R", Place::Global, 8)], "");
        let limited = "Resource count for \"R\" is limited to 4 which";
        check(&permits(&list), &[("R", on(0), 5)], limited);
        check(&permits(&list), &[("S", on(0), 2)], "limited to 1 which");
        check(&permits(&list), &[("S", on(1), 1)], "limited to 0 which");
        check(&permits(&list), &[("T", Place::Global, 1)], "\"T\" is limited to 0 which");
    }

    #[test]
    fn a_resource_is_global_or_not() {
        let both = [("R", Place::Global, 1), ("R", Place::Device(0), 1)];
        check(&permits(&[]), &both, "\"R\" is present as both global and device-specific");
        check(&permits(&[]), &[both[1], both[0]], "\"R\" is present as both");
    }

    #[test]
    fn a_permit_for_a_dispatcher_that_is_gone_goes_to_the_next() {
        let permits = permits(&[]);
        let member = permits.join(Weak::new());
        for instance in [0, 1].map(InstanceId) {
            permits.register(member, instance, needs("R", Place::Global, 1)).unwrap();
        }
        let orders = [0, 1].map(|instance| Order::Request(InstanceId(instance)));
        let Told { granted, delayed } = permits.tell(member, &orders).unwrap();
        assert_eq!(granted, [member.holder(InstanceId(0))]);
        assert_eq!(delayed, [InstanceId(1)]);
        permits.deliver(granted);
        assert_eq!(permits.lock().limiter.waiting().count(), 0);
    }
}
