//! The driver for the server's rate limiter, which decides how instances of all models share
//! resources.
//!
//! **When a scheduler asks.** A scheduler requests a permit for an instance when a batch could
//! close, and reconsiders the batch when the permit arrives. As a result, an instance that isn't
//! executing holds no permit. If the permit is delayed, the scheduler may try another instance; an
//! instance with nothing left to execute withdraws its request.
//!
//! **Order and delivery.** Dispatchers apply their schedulers' operations under their own locks, in
//! the step that decided on them, so the operations keep the order of the decisions. This driver's
//! lock ranks below theirs, and nothing is called under it. Granted permits are delivered without
//! any lock, regardless of the model.
//!
//! A broken scheduler returns no permits. They are taken back when its instances finish.

mod resources;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use galatea_backend::LogLevel;
use galatea_infer::Status;
use galatea_policy::{InstanceId, PermitEvent, PermitHolder, PermitUse, RateLimiter, ResourceId};
use galatea_stdx::Lock;

pub(crate) use self::resources::ResourceRequirements;
pub use self::resources::{RateLimiterMode, ResourceLimit};
use self::resources::{Resource, ResourceLimits, ResourceScope};
use crate::LogSink;

/// The receiver of permits: a dispatcher.
pub(crate) trait PermitReceiver: std::fmt::Debug + Send + Sync {
    /// Grants an instance a permit to execute one batch. Returns the permits that become available
    /// to others as a result. The caller delivers them, because a long chain of instances may turn
    /// a permit down.
    fn permit_granted(&self, instance: InstanceId) -> GrantedPermits;
}

/// Grants permits to the instances of all dispatchers in a server.
#[derive(Debug)]
pub(crate) struct RateLimiterDriver {
    limits: ResourceLimits,
    log: LogSink,
    state: Lock<RateLimiterState>,
}

#[derive(Debug, Default)]
struct RateLimiterState {
    limiter: RateLimiter,
    /// All resources that were ever required. The index is the resource's number.
    resources: Vec<Resource>,
    requirements: BTreeMap<PermitHolder, ResourceRequirements>,
    /// The amounts last written to the log.
    shown: BTreeMap<Resource, u64>,
    receivers: BTreeMap<u32, Weak<dyn PermitReceiver>>,
    next_receiver: u32,
}

/// A dispatcher's number at the rate limiter.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReceiverId(u32);

impl ReceiverId {
    fn holder(self, instance: InstanceId) -> PermitHolder {
        PermitHolder(u64::from(self.0) << 32 | u64::from(instance.0))
    }
}

/// A scheduler's request to the rate limiter.
#[derive(Copy, Clone, Debug)]
pub(crate) enum PermitOperation {
    Request(InstanceId),
    Return { instance: InstanceId, used: bool },
    Withdraw(InstanceId),
}

/// Permits on their way to their instances.
pub(crate) type GrantedPermits = Vec<PermitHolder>;

/// The outcome of a scheduler's operations.
#[derive(Debug)]
pub(crate) struct PermitDecision {
    /// The instances, of any model, that may execute now.
    pub(crate) granted: GrantedPermits,
    /// This model's instances whose requests must wait.
    pub(crate) delayed: Vec<InstanceId>,
}

impl RateLimiterDriver {
    /// Creates a driver; `None` if resources are not limited.
    pub(crate) fn new(limit: &RateLimiterMode, log: &LogSink) -> Option<Self> {
        match limit {
            RateLimiterMode::Off => None,
            RateLimiterMode::ExecutionCount(limits) => {
                let limits = ResourceLimits(limits.clone());
                Some(Self { limits, log: log.clone(), state: Lock::default() })
            }
        }
    }

    /// Adds a dispatcher.
    pub(crate) fn add_receiver(&self, receiver: Weak<dyn PermitReceiver>) -> ReceiverId {
        let mut state = self.state.lock("add a dispatcher");
        let number = state.next_receiver;
        state.next_receiver += 1;
        state.receivers.insert(number, receiver);
        ReceiverId(number)
    }

    /// Removes a dispatcher. Its instances must have been unregistered.
    pub(crate) fn remove_receiver(&self, receiver: ReceiverId) {
        self.state.lock("remove a dispatcher").receivers.remove(&receiver.0);
    }

    /// Adds an instance.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the instance could never execute, or if a resource would be both global
    /// and specific to a device.
    pub(crate) fn register(
        &self,
        receiver: ReceiverId,
        instance: InstanceId,
        requirements: ResourceRequirements,
    ) -> Result<(), Status> {
        let mut state = self.state.lock("add an instance");
        for (resource, count) in &requirements.resources {
            resource.check_scope(state.requirements.values().chain([&requirements]))?;
            self.limits.check(resource, *count)?;
        }
        let holder = receiver.holder(instance);
        let resources = requirements.resources.iter();
        let numbered: Vec<(ResourceId, u64)> =
            resources.map(|(resource, count)| (state.number(resource), *count)).collect();
        let priority = requirements.priority;
        state.requirements.insert(holder, requirements);
        self.set_capacities(&mut state);
        state.limiter.register(holder, &numbered, priority);
        let added: Vec<(Resource, u64)> =
            numbered.iter().filter_map(|(id, _)| state.amount(*id)).collect();
        state.shown.extend(added);
        let shown = state.shown.clone();
        drop(state);
        self.log_resources(&shown);
        Ok(())
    }

    /// Removes an instance. Returns the permits that become available to others as a result.
    pub(crate) fn unregister(&self, receiver: ReceiverId, instance: InstanceId) -> GrantedPermits {
        let holder = receiver.holder(instance);
        let mut state = self.state.lock("remove an instance");
        let mut granted = Vec::new();
        if let Some(removed) = state.requirements.remove(&holder) {
            state.limiter.unregister(holder, &mut granted);
            self.set_capacities(&mut state);
            state.hide_unused(&removed);
            let shown = state.shown.clone();
            drop(state);
            self.log_resources(&shown);
        }
        granted
    }

    /// Applies a scheduler's operations from one step. An error means that the scheduler broke the
    /// rules.
    pub(crate) fn apply(
        &self,
        receiver: ReceiverId,
        operations: &[PermitOperation],
    ) -> std::thread::Result<PermitDecision> {
        let events: Vec<PermitEvent> =
            operations.iter().map(|operation| event(receiver, *operation)).collect();
        let mut state = self.state.lock("apply what a scheduler wants");
        let mut granted = Vec::new();
        let limiter = &mut state.limiter;
        let step = AssertUnwindSafe(|| limiter.step_all(&events, &mut granted));
        catch_unwind(step)?;
        let requesting = operations.iter().filter_map(|operation| match operation {
            PermitOperation::Request(instance) => Some(*instance),
            PermitOperation::Return { .. } | PermitOperation::Withdraw(_) => None,
        });
        let limiter = &state.limiter;
        let must_wait = |instance: &InstanceId| !limiter.has_permit(receiver.holder(*instance));
        let delayed = requesting.filter(must_wait).collect();
        Ok(PermitDecision { granted, delayed })
    }

    /// Takes back an instance's permit, if any, from a broken scheduler.
    pub(crate) fn reclaim(
        &self,
        receiver: ReceiverId,
        instance: InstanceId,
        used_for: PermitUse,
    ) -> GrantedPermits {
        self.reclaim_from(receiver.holder(instance), used_for)
    }

    fn reclaim_from(&self, holder: PermitHolder, used_for: PermitUse) -> GrantedPermits {
        let mut state = self.state.lock("take a permit back");
        let mut granted = Vec::new();
        if state.limiter.has_permit(holder) {
            state.limiter.step(PermitEvent::Return { holder, used_for }, &mut granted);
        }
        granted
    }

    /// Delivers permits to their dispatchers, then the permits that become available as a result.
    /// This terminates, because each permit was requested before. No lock may be held.
    pub(crate) fn deliver(&self, granted: GrantedPermits) {
        let mut granted = VecDeque::from(granted);
        while let Some(holder) = granted.pop_front() {
            let number = u32::try_from(holder.0 >> 32).unwrap_or(u32::MAX);
            let instance = u32::try_from(holder.0 & u64::from(u32::MAX)).unwrap_or(u32::MAX);
            let receiver = self.receiver(number);
            granted.extend(match receiver {
                Some(receiver) => receiver.permit_granted(InstanceId(instance)),
                None => self.reclaim_from(holder, PermitUse::Unused),
            });
        }
    }

    fn receiver(&self, number: u32) -> Option<Arc<dyn PermitReceiver>> {
        self.state.lock("find a dispatcher").receivers.get(&number).and_then(Weak::upgrade)
    }

    /// Logs the amount of each resource, by device, in Triton's format.
    fn log_resources(&self, counts: &BTreeMap<Resource, u64>) {
        if !self.log.is_enabled(LogLevel::Verbose(1)) {
            return;
        }
        let mut text = String::from("\nMax Resource Map===>\n");
        let mut scope = None;
        for (resource, count) in counts {
            if scope.replace(resource.scope) != Some(resource.scope) {
                let _ = match resource.scope {
                    ResourceScope::Global => writeln!(text, "\tDevice: GLOBAL"),
                    ResourceScope::Device(device) => writeln!(text, "\tDevice: {device}"),
                };
            }
            let _ = writeln!(text, "\t\tResource: {}\t Count: {count}", resource.name);
        }
        self.log.write(LogLevel::Verbose(1), text);
    }

    /// Sets the amount of each resource: its limit or, without limits, the largest requirement.
    fn set_capacities(&self, state: &mut RateLimiterState) {
        for (resource, id) in state.resources.iter().zip((0..).map(ResourceId)) {
            let all = state.requirements.values().flat_map(|one| &one.resources);
            let counts = all.filter(|(required, _)| required == resource).map(|(_, count)| *count);
            let capacity =
                self.limits.limit_of(resource).unwrap_or_else(|| counts.max().unwrap_or(0));
            state.limiter.set_capacity(id, capacity);
        }
    }
}

impl RateLimiterState {
    /// Returns a resource and its amount.
    fn amount(&self, id: ResourceId) -> Option<(Resource, u64)> {
        let index = usize::try_from(id.0).ok()?;
        Some((self.resources.get(index)?.clone(), self.limiter.capacity(id)))
    }

    /// Hides all resources from the log except those that the remaining instances require. As in
    /// Triton, a resource stays in the log if the removed instance required less than its amount.
    fn hide_unused(&mut self, removed: &ResourceRequirements) {
        let is_all = |(resource, count): &(Resource, u64)| {
            self.shown.get(resource).is_some_and(|shown| shown <= count)
        };
        if !removed.resources.iter().any(is_all) {
            return;
        }
        let required: BTreeSet<&Resource> =
            self.requirements.values().flat_map(|one| &one.resources).map(|(one, _)| one).collect();
        let ids = self.resources.iter().zip((0..).map(ResourceId));
        let ids = ids.filter(|(resource, _)| required.contains(resource)).map(|(_, id)| id);
        self.shown = ids.filter_map(|id| self.amount(id)).collect();
    }

    #[expect(clippy::expect_used, reason = "two resources must not have the same number")]
    fn number(&mut self, resource: &Resource) -> ResourceId {
        let known = self.resources.iter().position(|known| known == resource);
        let index = known.unwrap_or_else(|| {
            self.resources.push(resource.clone());
            self.resources.len() - 1
        });
        ResourceId(u32::try_from(index).expect("there are fewer resources than numbers"))
    }
}

fn event(receiver: ReceiverId, operation: PermitOperation) -> PermitEvent {
    match operation {
        PermitOperation::Request(instance) => PermitEvent::Request(receiver.holder(instance)),
        PermitOperation::Withdraw(instance) => PermitEvent::Withdraw(receiver.holder(instance)),
        PermitOperation::Return { instance, used } => PermitEvent::Return {
            holder: receiver.holder(instance),
            used_for: if used { PermitUse::Executed } else { PermitUse::Unused },
        },
    }
}
