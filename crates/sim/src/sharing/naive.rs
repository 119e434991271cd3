//! A naive rate limiter that recalculates every decision from the holders.

use std::collections::{BTreeMap, BTreeSet};

use galatea_policy::{PermitHolder, PermitUse, ResourceId};

use crate::check::{Check, ensure};

#[derive(Clone, Debug, Default)]
pub(super) struct NaiveLimiter {
    pub(super) capacities: BTreeMap<ResourceId, u64>,
    holders: BTreeMap<PermitHolder, KnownHolder>,
    /// The largest share among the holders that got a permit for each resource, excluding the two
    /// executions that count from the start.
    executed_share_max: BTreeMap<ResourceId, u64>,
    requests: u64,
}

#[derive(Clone, Debug)]
struct KnownHolder {
    needs: BTreeMap<ResourceId, u64>,
    priority: u64,
    share: u64,
    /// The number of the holder's request, if it is waiting.
    request: Option<u64>,
    is_running: bool,
    is_unregistered: bool,
}

impl NaiveLimiter {
    pub(super) fn register(
        &mut self,
        holder: PermitHolder,
        needs: &[(ResourceId, u64)],
        priority: u32,
    ) {
        let priority = u64::from(priority.max(1));
        let known = KnownHolder {
            needs: needs.iter().copied().filter(|(_, count)| *count > 0).collect(),
            priority,
            share: 2 * priority,
            request: None,
            is_running: false,
            is_unregistered: false,
        };
        self.holders.insert(holder, known);
    }

    pub(super) fn request(&mut self, holder: PermitHolder) {
        // The holder withdrew after its permit was granted, and keeps that permit.
        if self.holders[&holder].is_running {
            return;
        }
        self.requests += 1;
        let requests = self.requests;
        let reached = &self.executed_share_max;
        let known = self.holders.get_mut(&holder).expect("it is known");
        let at = |resource| reached.get(resource).copied().unwrap_or(0);
        let others = known.needs.keys().map(at).min().unwrap_or(0);
        known.share = known.share.max(others);
        known.request = Some(requests);
    }

    pub(super) fn withdraw(&mut self, holder: PermitHolder) {
        self.holders.get_mut(&holder).expect("it is known").request = None;
    }

    pub(super) fn return_permit(&mut self, holder: PermitHolder, used_for: PermitUse) {
        let known = self.holders.get_mut(&holder).expect("it is known");
        known.is_running = false;
        if used_for == PermitUse::Executed {
            known.share += known.priority;
        }
        if known.is_unregistered {
            self.holders.remove(&holder);
        }
    }

    pub(super) fn unregister(&mut self, holder: PermitHolder) {
        let known = self.holders.get_mut(&holder).expect("it is known");
        known.request = None;
        known.is_unregistered = true;
        if !known.is_running {
            self.holders.remove(&holder);
        }
    }

    fn used(&self, resource: ResourceId) -> u64 {
        let running = self.holders.values().filter(|known| known.is_running);
        running.filter_map(|known| known.needs.get(&resource)).sum()
    }

    /// Returns the holders that must get a permit now, in order.
    pub(super) fn expected(&mut self) -> Vec<PermitHolder> {
        let mut order: Vec<(u64, u64, PermitHolder)> = Vec::new();
        for (name, known) in &self.holders {
            order.extend(known.request.map(|request| (known.share, request, *name)));
        }
        order.sort_unstable();
        let (mut granted, mut reserved) = (Vec::new(), BTreeSet::new());
        for (share, _, name) in order {
            let needs = self.holders[&name].needs.clone();
            let fits = needs.iter().all(|(resource, count)| {
                !reserved.contains(resource)
                    && self.used(*resource) + count <= self.capacities[resource]
            });
            if !fits {
                reserved.extend(needs.into_keys());
                continue;
            }
            let executed_share = share - 2 * self.holders[&name].priority;
            for resource in needs.keys() {
                let reached = self.executed_share_max.entry(*resource).or_default();
                *reached = executed_share.max(*reached);
            }
            let known = self.holders.get_mut(&name).expect("it waits");
            (known.request, known.is_running) = (None, true);
            granted.push(name);
        }
        granted
    }

    /// Returns true if the instance waits for its permit.
    pub(super) fn waits(&self, holder: PermitHolder) -> bool {
        self.holders.get(&holder).is_some_and(|known| known.request.is_some())
    }

    /// Checks that the granted permits don't exceed the capacities.
    pub(super) fn check_capacities(&self) -> Check {
        for (resource, capacity) in &self.capacities {
            let used = self.used(*resource);
            ensure!(used <= *capacity, "{used} of {resource:?} are used, {capacity} there are");
        }
        Ok(())
    }

    pub(super) fn is_idle(&self) -> bool {
        self.holders.is_empty()
    }
}
