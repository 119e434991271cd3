//! Instances that have requested a permit from the rate limiter, and those that may run now.
//!
//! A permit covers one batch. An instance requests a permit when a batch could close, and uses or
//! returns it in the same step that grants it. No instance therefore holds a permit while waiting
//! for something else.
//!
//! The number of permit requests matches the number of waiting inference requests. An instance
//! whose permit is delayed may be waiting for resources that other instances don't need. Another
//! free instance therefore requests a permit in its place, until one is granted or all have
//! requested one. Once no batch could close, all of them withdraw; a permit that was granted before
//! the withdrawal still arrives.

use std::collections::BTreeSet;

use crate::event::{SchedulerAction, SchedulerActions};
use crate::ids::InstanceId;

#[derive(Clone, Debug, Default)]
pub(crate) struct PermitRequests {
    /// Free instances with a permit request that wasn't delayed.
    requested: BTreeSet<InstanceId>,
    /// Free instances with a delayed permit request.
    delayed: BTreeSet<InstanceId>,
    /// Instances that have withdrawn their requests but may still receive a permit.
    withdrawn: BTreeSet<InstanceId>,
    /// The instance that got a permit in this step and hasn't used it yet.
    granted: Option<InstanceId>,
}

impl PermitRequests {
    /// Records that the permit was granted. Returns true if it had been requested.
    pub(crate) fn mark_granted(&mut self, id: InstanceId) -> bool {
        self.granted = Some(id);
        self.requested.remove(&id) || self.delayed.remove(&id) || self.withdrawn.remove(&id)
    }

    pub(crate) fn is_granted(&self, id: InstanceId) -> bool {
        self.granted == Some(id)
    }

    /// Removes the granted permit so that it can be used or returned.
    pub(crate) fn take_granted(&mut self) -> Option<InstanceId> {
        self.granted.take()
    }

    pub(crate) fn has_requested(&self, id: InstanceId) -> bool {
        self.requested.contains(&id) || self.delayed.contains(&id)
    }

    /// Requests a permit, unless one has already been requested.
    pub(crate) fn request(&mut self, id: InstanceId, out: &mut SchedulerActions) {
        if !self.has_requested(id) {
            self.withdrawn.remove(&id);
            self.requested.insert(id);
            out.push(SchedulerAction::RequestPermit(id));
        }
    }

    /// Requests permits for free instances, starting with the one that became free last, until
    /// there are as many undelayed permit requests as waiting inference requests.
    pub(crate) fn request_for_some(
        &mut self,
        free: &[InstanceId],
        waiting: usize,
        out: &mut SchedulerActions,
    ) {
        for id in free.iter().rev() {
            if self.requested.len() >= waiting {
                return;
            }
            self.request(*id, out);
        }
    }

    /// Records that the rate limiter has no permit for the instance now.
    pub(crate) fn delay(&mut self, id: InstanceId) {
        if self.requested.remove(&id) {
            self.delayed.insert(id);
        }
    }

    /// Withdraws the request of an instance that has no batch to run any more.
    pub(crate) fn withdraw(&mut self, id: InstanceId, out: &mut SchedulerActions) {
        if self.requested.remove(&id) || self.delayed.remove(&id) {
            self.withdrawn.insert(id);
            out.push(SchedulerAction::WithdrawPermit(id));
        }
    }

    /// Withdraws all requests, because no instance has a batch to run any more.
    pub(crate) fn withdraw_all(&mut self, out: &mut SchedulerActions) {
        for id in self.requested.union(&self.delayed).copied().collect::<Vec<_>>() {
            self.withdraw(id, out);
        }
    }

    /// Removes an instance.
    pub(crate) fn forget(&mut self, id: InstanceId, out: &mut SchedulerActions) {
        self.withdraw(id, out);
        self.withdrawn.remove(&id);
    }
}
