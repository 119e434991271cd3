//! Instances that have requested a permit of the rate limiter, and those that may run now.
//!
//! A permit covers one batch. An instance requests one when a batch could close, and uses or
//! returns it in the same step that grants it, so no instance holds a permit while waiting for
//! something else.
//!
//! The number of instances with a request is that of the waiting inference requests.
//! An instance whose permit is delayed may wait for resources that other instances
//! don't need, so another free instance requests one in its place, until one is
//! granted or all have requested. Once no batch could close, all withdraw; a permit
//! that was granted before the withdrawal still arrives.

use std::collections::BTreeSet;

use crate::event::{Action, Actions};
use crate::ids::InstanceId;

#[derive(Clone, Debug, Default)]
pub(crate) struct PermitRequests {
    /// Free instances with a request whose permit was not delayed.
    requested: BTreeSet<InstanceId>,
    /// Free instances with a request whose permit was delayed.
    delayed: BTreeSet<InstanceId>,
    /// Instances that withdrew, whose permits may still arrive.
    withdrawn: BTreeSet<InstanceId>,
    /// The instance that got a permit in this step and has not used it.
    granted: Option<InstanceId>,
}

impl PermitRequests {
    /// The permit was granted; returns whether it had been requested.
    pub(crate) fn mark_granted(&mut self, id: InstanceId) -> bool {
        self.granted = Some(id);
        self.requested.remove(&id) || self.delayed.remove(&id) || self.withdrawn.remove(&id)
    }

    pub(crate) fn is_granted(&self, id: InstanceId) -> bool {
        self.granted == Some(id)
    }

    /// Removes the granted permit, to be used or returned.
    pub(crate) fn take_granted(&mut self) -> Option<InstanceId> {
        self.granted.take()
    }

    pub(crate) fn has_requested(&self, id: InstanceId) -> bool {
        self.requested.contains(&id) || self.delayed.contains(&id)
    }

    /// Requests a permit, unless one is requested.
    pub(crate) fn request(&mut self, id: InstanceId, out: &mut Actions) {
        if !self.has_requested(id) {
            self.withdrawn.remove(&id);
            self.requested.insert(id);
            out.push(Action::RequestPermit(id));
        }
    }

    /// Requests permits for free instances, the last to become free first, until
    /// there are as many undelayed requests as inference requests wait.
    pub(crate) fn request_for_some(
        &mut self,
        free: &[InstanceId],
        waiting: usize,
        out: &mut Actions,
    ) {
        for id in free.iter().rev() {
            if self.requested.len() >= waiting {
                return;
            }
            self.request(*id, out);
        }
    }

    /// The rate limiter has no permit for the instance now.
    pub(crate) fn delay(&mut self, id: InstanceId) {
        if self.requested.remove(&id) {
            self.delayed.insert(id);
        }
    }

    /// The instance has no batch to run any more.
    pub(crate) fn withdraw(&mut self, id: InstanceId, out: &mut Actions) {
        if self.requested.remove(&id) || self.delayed.remove(&id) {
            self.withdrawn.insert(id);
            out.push(Action::WithdrawPermit(id));
        }
    }

    /// No instance has a batch to run any more.
    pub(crate) fn withdraw_all(&mut self, out: &mut Actions) {
        for id in self.requested.union(&self.delayed).copied().collect::<Vec<_>>() {
            self.withdraw(id, out);
        }
    }

    /// The instance was removed.
    pub(crate) fn forget(&mut self, id: InstanceId, out: &mut Actions) {
        self.withdraw(id, out);
        self.withdrawn.remove(&id);
    }
}
