//! Which instances have asked the rate limiter, and which may run now.
//!
//! A permit is held for one batch. It is asked for when a batch could close, and
//! used or given back in the step in which it comes: nobody sits on one while it
//! waits for something else.

use std::collections::BTreeSet;

use crate::event::{Action, Actions};
use crate::ids::InstanceId;

#[derive(Clone, Debug, Default)]
pub(crate) struct Permits {
    /// Free instances that asked and have no answer.
    asked: BTreeSet<InstanceId>,
    /// Who got a permit in this step and has not used it.
    granted: Option<InstanceId>,
}

impl Permits {
    /// The permit came; says whether it had been asked for.
    pub(crate) fn grant(&mut self, id: InstanceId) -> bool {
        self.granted = Some(id);
        self.asked.remove(&id)
    }

    pub(crate) fn is_granted(&self, id: InstanceId) -> bool {
        self.granted == Some(id)
    }

    /// Uses the permit up, whatever for.
    pub(crate) fn take_granted(&mut self) -> Option<InstanceId> {
        self.granted.take()
    }

    pub(crate) fn has_asked(&self, id: InstanceId) -> bool {
        self.asked.contains(&id)
    }

    /// Asks, unless that was done.
    pub(crate) fn ask(&mut self, id: InstanceId, out: &mut Actions) {
        if self.asked.insert(id) {
            out.push(Action::RequestPermit(id));
        }
    }

    /// Asks for free instances, the last to become free first, until as many have
    /// asked as there are requests.
    pub(crate) fn ask_for_some(&mut self, free: &[InstanceId], waiting: usize, out: &mut Actions) {
        for id in free.iter().rev() {
            if self.asked.len() >= waiting {
                return;
            }
            self.ask(*id, out);
        }
    }

    /// The instance is gone; says whether it had asked.
    pub(crate) fn forget(&mut self, id: InstanceId) -> bool {
        self.asked.remove(&id)
    }
}
