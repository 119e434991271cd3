//! Which instances may run, where instances of all models share resources.
//!
//! A resource is a number of units, of the whole server or of one device. An
//! instance that is limited needs some of them while it executes. Its scheduler
//! asks for a permit when there is a batch to run, and gives the permit back
//! behind the batch; nobody ever blocks.
//!
//! Permits go to the instance whose count of executions, times its priority, is
//! lowest: an instance of priority 2 gets half as many as one of priority 1. An
//! instance that comes late, or had nothing to run for a while, counts from where
//! the others are: it catches up with nobody, and nobody waits while it would. An
//! instance that must wait keeps later ones off what it waits for, so that it is
//! not starved by others that need less; those that need nothing of it go on.
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

/// A resource, named by the driver: one name on one device, or a global one.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ResourceId(pub u32);

/// Who holds permits: an instance of some model, named by the driver.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PermitHolder(pub u64);

/// What happens to a [`RateLimiter`].
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum PermitEvent {
    /// The instance has something to run. It has neither a permit nor asked for
    /// one, unless its permit crossed its withdrawal: then that one is meant.
    Request(PermitHolder),
    /// The instance has nothing to run any more. A permit that is on its way to it
    /// already is to be returned nevertheless.
    Withdraw(PermitHolder),
    /// The instance gives its permit back.
    Return {
        /// Which instance.
        holder: PermitHolder,
        /// Whether it ran anything with it.
        used_for: PermitUse,
    },
}

/// What became of a permit.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum PermitUse {
    /// A batch was executed.
    Executed,
    /// There was nothing to run any more: it does not count.
    Unused,
}

/// Hands out permits. One serves all models of a server.
#[derive(Clone, Debug, Default)]
pub struct RateLimiter {
    resources: BTreeMap<ResourceId, Resource>,
    holders: BTreeMap<PermitHolder, Holder>,
    /// Holders that wait, the next first.
    waiting: BTreeSet<(u64, u64, PermitHolder)>,
    requests: u64,
}

#[derive(Copy, Clone, Debug, Default)]
struct Resource {
    capacity: u64,
    used: u64,
    /// The largest share that anybody had who was let in here.
    reached: u64,
}

#[derive(Clone, Debug)]
struct Holder {
    needs: Vec<(ResourceId, u64)>,
    priority: u64,
    /// What it had so far: its priority for each execution.
    share: u64,
    state: HolderState,
}

/// Idle → Waiting → Running → Idle; Waiting → Idle when withdrawn. Running ⇄
/// Unwanted → Idle. Running or Unwanted → Leaving, and then it is gone.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum HolderState {
    Idle,
    /// Its place among those that wait.
    Waiting(u64, u64),
    Running,
    /// It withdrew while its permit was on its way.
    Unwanted,
    /// It is forgotten when its permit comes back.
    Leaving,
}

impl RateLimiter {
    /// Says how many units of a resource there are. A change takes effect as
    /// permits come back.
    pub fn set_capacity(&mut self, resource: ResourceId, capacity: u64) {
        self.resources.entry(resource).or_default().capacity = capacity;
    }

    /// How many units of a resource there are.
    pub fn capacity(&self, resource: ResourceId) -> u64 {
        self.resources.get(&resource).map_or(0, |resource| resource.capacity)
    }

    /// Makes an instance known. Priority 0 counts as 1.
    ///
    /// # Panics
    ///
    /// If the instance is known, or needs more of a resource than there is: the
    /// driver refuses to load such a model.
    pub fn register(&mut self, holder: PermitHolder, needs: &[(ResourceId, u64)], priority: u32) {
        for (resource, count) in needs {
            assert!(*count <= self.capacity(*resource), "{holder:?} could never run");
        }
        let mut summed: BTreeMap<ResourceId, u64> = BTreeMap::new();
        for (resource, count) in needs {
            let sum = summed.entry(*resource).or_default();
            *sum = (*sum).max(*count);
        }
        let holder_state = Holder {
            needs: summed.into_iter().filter(|(_, count)| *count > 0).collect(),
            priority: u64::from(priority.max(1)),
            share: 0,
            state: HolderState::Idle,
        };
        let previous = self.holders.insert(holder, holder_state);
        assert!(previous.is_none(), "{holder:?} is registered already");
    }

    /// Forgets an instance, or, if it has its permit, lets it be forgotten when
    /// that comes back. Says who got a permit because it waits no more.
    ///
    /// # Panics
    ///
    /// If the instance is unknown.
    pub fn unregister(&mut self, holder: PermitHolder, granted: &mut Vec<PermitHolder>) {
        self.withdraw(holder);
        let known = self.holder(holder);
        match known.state {
            HolderState::Running | HolderState::Unwanted | HolderState::Leaving => {
                known.state = HolderState::Leaving;
            }
            HolderState::Idle | HolderState::Waiting(..) => drop(self.holders.remove(&holder)),
        }
        self.grant(granted);
    }

    /// Whether an instance is known, be it only until its permit comes back.
    pub fn knows(&self, holder: PermitHolder) -> bool {
        self.holders.contains_key(&holder)
    }

    /// Whether an instance has a permit that it must return.
    pub fn has_permit(&self, holder: PermitHolder) -> bool {
        let state = self.holders.get(&holder).map(|known| known.state);
        matches!(state, Some(HolderState::Running | HolderState::Unwanted | HolderState::Leaving))
    }

    /// Takes an event in and says who got a permit.
    ///
    /// # Panics
    ///
    /// If the driver breaks the rules of the events, or the holder is unknown.
    pub fn step(&mut self, event: PermitEvent, granted: &mut Vec<PermitHolder>) {
        self.step_all(&[event], granted);
    }

    /// The same for events of one moment: an instance that returns its permit and
    /// asks again is one of those that wait.
    ///
    /// # Panics
    ///
    /// As [`RateLimiter::step`].
    pub fn step_all(&mut self, events: &[PermitEvent], granted: &mut Vec<PermitHolder>) {
        for event in events {
            match *event {
                PermitEvent::Request(holder) => self.request(holder),
                PermitEvent::Withdraw(holder) => self.withdraw(holder),
                PermitEvent::Return { holder, used_for } => self.take_back(holder, used_for),
            }
        }
        self.grant(granted);
    }

    /// Instances that wait for a permit, the next first.
    pub fn waiting(&self) -> impl Iterator<Item = PermitHolder> {
        self.waiting.iter().map(|(_, _, holder)| *holder)
    }

    fn holder(&mut self, holder: PermitHolder) -> &mut Holder {
        self.holders.get_mut(&holder).unwrap_or_else(|| panic!("{holder:?} is unknown"))
    }

    fn request(&mut self, name: PermitHolder) {
        let known = self.holder(name);
        if known.state == HolderState::Unwanted {
            known.state = HolderState::Running;
            return;
        }
        self.requests += 1;
        let request = self.requests;
        let others_are_at = self.reached_where_it_runs(name);
        let holder = self.holder(name);
        assert_eq!(holder.state, HolderState::Idle, "{name:?} asked before");
        holder.share = holder.share.max(others_are_at);
        let share = holder.share;
        holder.state = HolderState::Waiting(share, request);
        self.waiting.insert((share, request, name));
    }

    /// Where those are that it shares with. The least of its resources counts: on
    /// the others it may come earlier than it had to, but never too late.
    fn reached_where_it_runs(&mut self, name: PermitHolder) -> u64 {
        let needs = self.holder(name).needs.clone();
        let reached = needs
            .iter()
            .map(|(resource, _)| self.resources.get(resource).map_or(0, |known| known.reached));
        reached.min().unwrap_or(0)
    }

    fn withdraw(&mut self, name: PermitHolder) {
        let holder = self.holder(name);
        match holder.state {
            HolderState::Waiting(share, request) => {
                holder.state = HolderState::Idle;
                self.waiting.remove(&(share, request, name));
            }
            HolderState::Running => holder.state = HolderState::Unwanted,
            HolderState::Idle | HolderState::Unwanted | HolderState::Leaving => {}
        }
    }

    fn take_back(&mut self, name: PermitHolder, used_for: PermitUse) {
        let holder = self.holder(name);
        match holder.state {
            HolderState::Running | HolderState::Unwanted => holder.state = HolderState::Idle,
            HolderState::Leaving => {}
            HolderState::Idle | HolderState::Waiting(..) => panic!("{name:?} has no permit"),
        }
        if used_for == PermitUse::Executed {
            holder.share = holder.share.saturating_add(holder.priority);
        }
        let is_leaving = holder.state == HolderState::Leaving;
        for (resource, count) in holder.needs.clone() {
            let resource = self.resources.get_mut(&resource).expect("it was granted");
            resource.used = resource.used.checked_sub(count).expect("it was taken");
        }
        if is_leaving {
            self.holders.remove(&name);
        }
    }

    fn grant(&mut self, granted: &mut Vec<PermitHolder>) {
        // What those need who wait longer and can't run yet.
        let mut reserved: BTreeSet<ResourceId> = BTreeSet::new();
        let mut lucky = Vec::new();
        for (share, request, name) in &self.waiting {
            let holder = self.holders.get_mut(name).expect("who waits is known");
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
                    resource.reached = resource.reached.max(*share);
                }
                holder.state = HolderState::Running;
                lucky.push((*share, *request, *name));
            } else {
                reserved.extend(holder.needs.iter().map(|(resource, _)| *resource));
            }
        }
        for place in lucky {
            self.waiting.remove(&place);
            granted.push(place.2);
        }
    }
}

#[cfg(test)]
mod tests;
