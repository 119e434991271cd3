//! Assigns execution turns to instances when the instances of all models share resources.
//!
//! A resource is a number of units that belong to the whole server or to one device. A limited
//! instance needs some of these units while it executes. Its scheduler requests a permit when there
//! is a batch to run, and returns the permit after the batch. No thread blocks.
//!
//! Permits go to the instance with the lowest share. The share is the number of executions times
//! the priority, so priority 2 gets half as many executions as priority 1. Among equal shares, the
//! instance that has waited longest goes first. As in Triton, the two steps of an instance's
//! startup count as executions, so with priorities 1 and 2, the first two turns go to priority 1.
//! An instance that is new or was idle starts from the share of the other users of its resources,
//! so that it doesn't run alone until it has caught up. A waiting instance reserves its resources:
//! later instances don't get them even if they need fewer units, so that the waiting instance
//! doesn't starve. Instances that need none of the reserved resources continue to run.
//!
//! # Example
//!
//! ```
//! use galatea_policy::*;
//!
//! let mut limiter = RateLimiter::default();
//! let (gpu, a, b) = (ResourceId(0), PermitHolder(0), PermitHolder(1));
//! limiter.set_capacity(gpu, 1);
//! for holder in [a, b] {
//!     limiter.register(holder, &[(gpu, 1)], 1);
//! }
//! let mut granted = Vec::new();
//! limiter.step(PermitEvent::Request(a), &mut granted);
//! limiter.step(PermitEvent::Request(b), &mut granted);
//! assert_eq!(granted, [a]);
//! limiter.step(PermitEvent::Return { holder: a, used_for: PermitUse::Executed }, &mut granted);
//! assert_eq!(granted, [a, b]);
//! ```

use std::collections::{BTreeMap, BTreeSet};

/// The number of executions that a new instance starts with. Triton initializes an instance and
/// warms it up under the rate limiter, and counts both.
const START_EXECUTIONS: u64 = 2;

/// A resource, either named on one device or global. The driver numbers resources.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ResourceId(pub u32);

/// A permit holder: an instance of some model. The driver numbers holders.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PermitHolder(pub u64);

/// An event of a [`RateLimiter`].
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum PermitEvent {
    /// The instance has a batch to run. It has neither a permit nor a permit request, with one
    /// exception: it keeps a permit that was granted before it withdrew.
    Request(PermitHolder),
    /// The instance no longer has a batch to run. It still returns a permit that was granted
    /// before.
    Withdraw(PermitHolder),
    /// The instance returns its permit.
    Return {
        /// The instance.
        holder: PermitHolder,
        /// The permit's use.
        used_for: PermitUse,
    },
}

/// The use of a permit.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum PermitUse {
    /// A batch was executed.
    Executed,
    /// No batch was left to execute, so the permit doesn't count.
    Unused,
}

/// Grants permits. A single rate limiter serves all models of a server.
#[derive(Clone, Debug, Default)]
pub struct RateLimiter {
    resources: BTreeMap<ResourceId, Resource>,
    holders: BTreeMap<PermitHolder, Holder>,
    /// Waiting holders, the next one first.
    waiting: BTreeSet<WaitingHolder>,
    requests: u64,
}

/// A waiting holder. The order of the fields is the order in which permits are granted.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct WaitingHolder {
    share: u64,
    /// The number of the holder's request.
    request: u64,
    name: PermitHolder,
}

#[derive(Copy, Clone, Debug, Default)]
struct Resource {
    capacity: u64,
    used: u64,
    /// The largest share among the holders that got a permit for this resource, excluding the
    /// executions of their startup.
    executed_share_max: u64,
}

#[derive(Clone, Debug)]
struct Holder {
    needs: Vec<(ResourceId, u64)>,
    priority: u64,
    /// The sum of the holder's priority over its executions, including those of its startup.
    share: u64,
    state: HolderState,
}

/// Idle → Waiting → Running → Idle. A withdrawal moves Waiting to Idle. Running ⇄ Withdrawn → Idle.
/// Running or Withdrawn → Unregistered, after which the holder is deleted.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum HolderState {
    Idle,
    Waiting(WaitingHolder),
    Running,
    /// The holder withdrew after its permit was granted.
    Withdrawn,
    /// The holder is deleted when its permit is returned.
    Unregistered,
}

impl RateLimiter {
    /// Sets the number of units of a resource. A change takes effect as permits are returned.
    pub fn set_capacity(&mut self, resource: ResourceId, capacity: u64) {
        self.resources.entry(resource).or_default().capacity = capacity;
    }

    /// Returns the number of units of a resource.
    pub fn capacity(&self, resource: ResourceId) -> u64 {
        self.resources.get(&resource).map_or(0, |resource| resource.capacity)
    }

    /// Adds an instance. Priority 0 counts as 1.
    ///
    /// # Panics
    ///
    /// Panics if the instance is already known, or if it needs more units of a resource than exist.
    /// The driver refuses to load such a model.
    pub fn register(&mut self, holder: PermitHolder, needs: &[(ResourceId, u64)], priority: u32) {
        for (resource, count) in needs {
            assert!(*count <= self.capacity(*resource), "{holder:?} could never run");
        }
        let mut summed: BTreeMap<ResourceId, u64> = BTreeMap::new();
        for (resource, count) in needs {
            let sum = summed.entry(*resource).or_default();
            *sum = (*sum).max(*count);
        }
        let priority = u64::from(priority.max(1));
        let holder_state = Holder {
            needs: summed.into_iter().filter(|(_, count)| *count > 0).collect(),
            priority,
            share: START_EXECUTIONS * priority,
            state: HolderState::Idle,
        };
        let previous = self.holders.insert(holder, holder_state);
        assert!(previous.is_none(), "{holder:?} is registered already");
    }

    /// Deletes an instance. If it has a permit, it is deleted when the permit is returned. Pushes
    /// the holders that get a permit because the instance no longer waits.
    ///
    /// # Panics
    ///
    /// Panics if the instance is unknown.
    pub fn unregister(&mut self, holder: PermitHolder, granted: &mut Vec<PermitHolder>) {
        self.withdraw(holder);
        let known = self.holder(holder);
        match known.state {
            HolderState::Running | HolderState::Withdrawn | HolderState::Unregistered => {
                known.state = HolderState::Unregistered;
            }
            HolderState::Idle | HolderState::Waiting(..) => drop(self.holders.remove(&holder)),
        }
        self.grant(granted);
    }

    /// Returns true if an instance is known, even if only until its permit is returned.
    pub fn knows(&self, holder: PermitHolder) -> bool {
        self.holders.contains_key(&holder)
    }

    /// Returns true if an instance has a permit that it must return.
    pub fn has_permit(&self, holder: PermitHolder) -> bool {
        let state = self.holders.get(&holder).map(|known| known.state);
        matches!(
            state,
            Some(HolderState::Running | HolderState::Withdrawn | HolderState::Unregistered)
        )
    }

    /// Processes an event and pushes the holders that get a permit.
    ///
    /// # Panics
    ///
    /// Panics if the driver breaks the rules for events, or if the holder is unknown.
    pub fn step(&mut self, event: PermitEvent, granted: &mut Vec<PermitHolder>) {
        self.step_all(&[event], granted);
    }

    /// Processes several events at once: an instance that returns its permit and requests another
    /// competes with those that are waiting.
    ///
    /// # Panics
    ///
    /// Panics under the same conditions as [`RateLimiter::step`].
    pub fn step_all(&mut self, events: &[PermitEvent], granted: &mut Vec<PermitHolder>) {
        for event in events {
            match *event {
                PermitEvent::Request(holder) => self.request(holder),
                PermitEvent::Withdraw(holder) => self.withdraw(holder),
                PermitEvent::Return { holder, used_for } => self.return_permit(holder, used_for),
            }
        }
        self.grant(granted);
    }

    /// Returns the instances that wait for a permit, the next one first.
    pub fn waiting(&self) -> impl Iterator<Item = PermitHolder> {
        self.waiting.iter().map(|waiting| waiting.name)
    }

    fn holder(&mut self, holder: PermitHolder) -> &mut Holder {
        self.holders.get_mut(&holder).unwrap_or_else(|| panic!("{holder:?} is unknown"))
    }

    fn request(&mut self, name: PermitHolder) {
        let known = self.holder(name);
        if known.state == HolderState::Withdrawn {
            known.state = HolderState::Running;
            return;
        }
        self.requests += 1;
        let request = self.requests;
        let others_share = self.share_of_others(name);
        let holder = self.holder(name);
        assert_eq!(holder.state, HolderState::Idle, "{name:?} asked before");
        holder.share = holder.share.max(others_share);
        let waiting = WaitingHolder { share: holder.share, request, name };
        holder.state = HolderState::Waiting(waiting);
        self.waiting.insert(waiting);
    }

    /// Returns the share of the other users of the instance's resources. The lowest share among
    /// these resources is used: for the other resources, the instance may run earlier than it
    /// should, but never too late.
    fn share_of_others(&mut self, name: PermitHolder) -> u64 {
        let needs = self.holder(name).needs.clone();
        let reached = needs.iter().map(|(resource, _)| {
            self.resources.get(resource).map_or(0, |known| known.executed_share_max)
        });
        reached.min().unwrap_or(0)
    }

    fn withdraw(&mut self, name: PermitHolder) {
        let holder = self.holder(name);
        match holder.state {
            HolderState::Waiting(waiting) => {
                holder.state = HolderState::Idle;
                self.waiting.remove(&waiting);
            }
            HolderState::Running => holder.state = HolderState::Withdrawn,
            HolderState::Idle | HolderState::Withdrawn | HolderState::Unregistered => {}
        }
    }

    fn return_permit(&mut self, name: PermitHolder, used_for: PermitUse) {
        let holder = self.holder(name);
        match holder.state {
            HolderState::Running | HolderState::Withdrawn => holder.state = HolderState::Idle,
            HolderState::Unregistered => {}
            HolderState::Idle | HolderState::Waiting(..) => panic!("{name:?} has no permit"),
        }
        if used_for == PermitUse::Executed {
            holder.share = holder.share.saturating_add(holder.priority);
        }
        let is_leaving = holder.state == HolderState::Unregistered;
        for (resource, count) in holder.needs.clone() {
            let resource = self.resources.get_mut(&resource).expect("it was granted");
            resource.used = resource.used.checked_sub(count).expect("it was taken");
        }
        if is_leaving {
            self.holders.remove(&name);
        }
    }

    fn grant(&mut self, granted: &mut Vec<PermitHolder>) {
        // The resources of earlier holders that can't run yet.
        let mut reserved: BTreeSet<ResourceId> = BTreeSet::new();
        let mut runnable = Vec::new();
        for waiting in &self.waiting {
            let holder =
                self.holders.get_mut(&waiting.name).expect("a waiting holder is registered");
            let resources = &self.resources;
            let is_free = |(resource, count): &(ResourceId, u64)| {
                let Resource { capacity, used, .. } =
                    resources.get(resource).copied().unwrap_or_default();
                !reserved.contains(resource) && used.saturating_add(*count) <= capacity
            };
            if holder.needs.iter().all(is_free) {
                for (resource, count) in &holder.needs {
                    let resource = self.resources.entry(*resource).or_default();
                    resource.used += count;
                    let executed_share = waiting.share - START_EXECUTIONS * holder.priority;
                    resource.executed_share_max = resource.executed_share_max.max(executed_share);
                }
                holder.state = HolderState::Running;
                runnable.push(*waiting);
            } else {
                reserved.extend(holder.needs.iter().map(|(resource, _)| *resource));
            }
        }
        for waiting in runnable {
            self.waiting.remove(&waiting);
            granted.push(waiting.name);
        }
    }
}

#[cfg(test)]
mod tests;
