//! Which instances have asked the rate limiter, and which may run now.
//!
//! A permit is held for one batch. It is asked for when a batch could close, and
//! used or given back in the step in which it comes: nobody sits on one while it
//! waits for something else.
//!
//! As many instances ask as there are requests. One that is told to wait may wait
//! for what others don't need, so a further free one asks in its place, until one
//! can run or all have asked. Once no batch could close any more, all withdraw; a
//! permit that is on its way by then comes nevertheless.

use std::collections::BTreeSet;

use crate::event::{Action, Actions};
use crate::ids::InstanceId;

#[derive(Clone, Debug, Default)]
pub(crate) struct Permits {
    /// Free instances that asked and were not told to wait.
    asked: BTreeSet<InstanceId>,
    /// Free instances that were.
    delayed: BTreeSet<InstanceId>,
    /// Instances that withdrew, whose permits may come nevertheless.
    withdrawn: BTreeSet<InstanceId>,
    /// Who got a permit in this step and has not used it.
    granted: Option<InstanceId>,
}

impl Permits {
    /// The permit came; says whether it had been asked for.
    pub(crate) fn grant(&mut self, id: InstanceId) -> bool {
        self.granted = Some(id);
        self.asked.remove(&id) || self.delayed.remove(&id) || self.withdrawn.remove(&id)
    }

    pub(crate) fn is_granted(&self, id: InstanceId) -> bool {
        self.granted == Some(id)
    }

    /// Uses the permit up, whatever for.
    pub(crate) fn take_granted(&mut self) -> Option<InstanceId> {
        self.granted.take()
    }

    pub(crate) fn has_asked(&self, id: InstanceId) -> bool {
        self.asked.contains(&id) || self.delayed.contains(&id)
    }

    /// Asks, unless that was done.
    pub(crate) fn ask(&mut self, id: InstanceId, out: &mut Actions) {
        if !self.has_asked(id) {
            self.withdrawn.remove(&id);
            self.asked.insert(id);
            out.push(Action::RequestPermit(id));
        }
    }

    /// Asks for free instances, the last to become free first, until as many have
    /// asked as there are requests, without those that were told to wait.
    pub(crate) fn ask_for_some(&mut self, free: &[InstanceId], waiting: usize, out: &mut Actions) {
        for id in free.iter().rev() {
            if self.asked.len() >= waiting {
                return;
            }
            self.ask(*id, out);
        }
    }

    /// There is no permit for the instance now.
    pub(crate) fn delay(&mut self, id: InstanceId) {
        if self.asked.remove(&id) {
            self.delayed.insert(id);
        }
    }

    /// The instance has nothing to run any more.
    pub(crate) fn withdraw(&mut self, id: InstanceId, out: &mut Actions) {
        if self.asked.remove(&id) || self.delayed.remove(&id) {
            self.withdrawn.insert(id);
            out.push(Action::WithdrawPermit(id));
        }
    }

    /// No instance has anything to run any more.
    pub(crate) fn withdraw_all(&mut self, out: &mut Actions) {
        for id in self.asked.union(&self.delayed).copied().collect::<Vec<_>>() {
            self.withdraw(id, out);
        }
    }

    /// The instance is gone.
    pub(crate) fn forget(&mut self, id: InstanceId, out: &mut Actions) {
        self.withdraw(id, out);
        self.withdrawn.remove(&id);
    }
}
