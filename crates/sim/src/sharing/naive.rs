//! A naive rate limiter: every decision is calculated anew from what happened.

use std::collections::{BTreeMap, BTreeSet};

use galatea_policy::{PermitHolder, PermitUse, ResourceId};

use crate::check::{Check, ensure};

#[derive(Clone, Debug, Default)]
pub(super) struct NaiveLimiter {
    pub(super) capacities: BTreeMap<ResourceId, u64>,
    holders: BTreeMap<PermitHolder, Known>,
    /// The largest share that was let in, for each resource.
    reached: BTreeMap<ResourceId, u64>,
    requests: u64,
}

#[derive(Clone, Debug)]
struct Known {
    needs: BTreeMap<ResourceId, u64>,
    priority: u64,
    share: u64,
    /// The number of its request, if it waits.
    waits: Option<u64>,
    runs: bool,
    leaves: bool,
}

impl NaiveLimiter {
    pub(super) fn register(
        &mut self,
        holder: PermitHolder,
        needs: &[(ResourceId, u64)],
        priority: u32,
    ) {
        let known = Known {
            needs: needs.iter().copied().filter(|(_, count)| *count > 0).collect(),
            priority: u64::from(priority.max(1)),
            share: 0,
            waits: None,
            runs: false,
            leaves: false,
        };
        self.holders.insert(holder, known);
    }

    pub(super) fn request(&mut self, holder: PermitHolder) {
        // It withdrew while its permit was on its way: that one is meant.
        if self.holders[&holder].runs {
            return;
        }
        self.requests += 1;
        let requests = self.requests;
        let reached = &self.reached;
        let known = self.holders.get_mut(&holder).expect("it is known");
        let at = |resource| reached.get(resource).copied().unwrap_or(0);
        let others = known.needs.keys().map(at).min().unwrap_or(0);
        known.share = known.share.max(others);
        known.waits = Some(requests);
    }

    pub(super) fn withdraw(&mut self, holder: PermitHolder) {
        self.holders.get_mut(&holder).expect("it is known").waits = None;
    }

    pub(super) fn give_back(&mut self, holder: PermitHolder, used_for: PermitUse) {
        let known = self.holders.get_mut(&holder).expect("it is known");
        known.runs = false;
        if used_for == PermitUse::Executed {
            known.share += known.priority;
        }
        if known.leaves {
            self.holders.remove(&holder);
        }
    }

    pub(super) fn unregister(&mut self, holder: PermitHolder) {
        let known = self.holders.get_mut(&holder).expect("it is known");
        known.waits = None;
        known.leaves = true;
        if !known.runs {
            self.holders.remove(&holder);
        }
    }

    fn used(&self, resource: ResourceId) -> u64 {
        let running = self.holders.values().filter(|known| known.runs);
        running.filter_map(|known| known.needs.get(&resource)).sum()
    }

    /// Who must be granted a permit now, in this order.
    pub(super) fn expected(&mut self) -> Vec<PermitHolder> {
        let mut order: Vec<(u64, u64, PermitHolder)> = Vec::new();
        for (name, known) in &self.holders {
            order.extend(known.waits.map(|request| (known.share, request, *name)));
        }
        order.sort_unstable();
        let (mut granted, mut kept_off) = (Vec::new(), BTreeSet::new());
        for (share, _, name) in order {
            let needs = self.holders[&name].needs.clone();
            let fits = needs.iter().all(|(resource, count)| {
                !kept_off.contains(resource)
                    && self.used(*resource) + count <= self.capacities[resource]
            });
            if !fits {
                kept_off.extend(needs.into_keys());
                continue;
            }
            for resource in needs.keys() {
                let reached = self.reached.entry(*resource).or_default();
                *reached = share.max(*reached);
            }
            let known = self.holders.get_mut(&name).expect("it waits");
            (known.waits, known.runs) = (None, true);
            granted.push(name);
        }
        granted
    }

    /// Whether the instance waits for its permit.
    pub(super) fn waits(&self, holder: PermitHolder) -> bool {
        self.holders.get(&holder).is_some_and(|known| known.waits.is_some())
    }

    /// What was granted fits into what there is.
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
