//! Where the permits of one scheduler are, as seen from outside.

use std::collections::{BTreeMap, BTreeSet};

use galatea_policy::{Action, Event, InstanceId};

use crate::check::{Check, ensure};

/// The permits of a scheduler's instances.
#[derive(Clone, Debug, Default)]
pub(crate) struct PermitBook {
    permits: BTreeMap<InstanceId, Permit>,
    /// Instances that withdrew, and whose permits may come nevertheless.
    withdrawn: BTreeSet<InstanceId>,
}

/// Asked → Granted → Running, and gone; Asked → Delayed → Granted.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Permit {
    Asked,
    Delayed,
    Granted,
    Running,
}

pub(crate) fn is_about_permits(action: &Action) -> bool {
    match action {
        Action::RequestPermit(_) | Action::ReturnPermit { .. } | Action::WithdrawPermit(_) => true,
        Action::Dispatch { .. }
        | Action::Fail { .. }
        | Action::SequenceClosed(_)
        | Action::SequenceEnded(_)
        | Action::InstanceRemoved(_)
        | Action::Drained => false,
    }
}

impl PermitBook {
    /// The rate limiter grants a permit.
    pub(crate) fn grant(&mut self, instance: InstanceId) -> Check {
        let before = self.permits.insert(instance, Permit::Granted);
        let is_due = matches!(before, Some(Permit::Asked | Permit::Delayed));
        let may_come = is_due || self.withdrawn.remove(&instance);
        ensure!(may_come, "{instance:?} is granted what it did not ask for");
        Ok(())
    }

    /// The rate limiter lets the instance wait.
    pub(crate) fn delay(&mut self, instance: InstanceId) -> Check {
        let before = self.permits.insert(instance, Permit::Delayed);
        ensure!(before == Some(Permit::Asked), "{instance:?} waits while it is {before:?}");
        Ok(())
    }

    /// Whether the instance asked and has no permit.
    pub(crate) fn has_asked(&self, instance: InstanceId) -> bool {
        matches!(self.permits.get(&instance), Some(Permit::Asked | Permit::Delayed))
    }

    /// Instances that asked and have no permit.
    pub(crate) fn asked(&self) -> impl Iterator<Item = InstanceId> {
        self.permits.keys().copied().filter(|instance| self.has_asked(*instance))
    }

    /// How many asked and were not told to wait.
    pub(crate) fn hopeful(&self) -> usize {
        self.permits.values().filter(|permit| **permit == Permit::Asked).count()
    }

    /// Enters an action that follows from the event; says who asks for a permit.
    pub(crate) fn enter(
        &mut self,
        event: &Event,
        action: &Action,
    ) -> Result<Option<InstanceId>, String> {
        match *action {
            Action::RequestPermit(instance) => {
                let before = self.permits.insert(instance, Permit::Asked);
                ensure!(before.is_none(), "{instance:?} asks while it is {before:?}");
                self.withdrawn.remove(&instance);
                return Ok(Some(instance));
            }
            Action::ReturnPermit { instance, used } => self.enter_return(event, instance, used)?,
            Action::WithdrawPermit(instance) => {
                let before = self.permits.remove(&instance);
                let has_asked = matches!(before, Some(Permit::Asked | Permit::Delayed));
                ensure!(has_asked, "{instance:?} withdraws while it is {before:?}");
                self.withdrawn.insert(instance);
            }
            Action::Dispatch { instance, .. } => {
                let before = self.permits.insert(instance, Permit::Running);
                let may_run = before == Some(Permit::Granted);
                ensure!(may_run, "{instance:?} runs while its permit is {before:?}");
            }
            Action::InstanceRemoved(instance) => {
                let left = self.permits.get(&instance);
                ensure!(left.is_none(), "{instance:?} goes while its permit is {left:?}");
            }
            Action::Fail { .. }
            | Action::SequenceClosed(_)
            | Action::SequenceEnded(_)
            | Action::Drained => {}
        }
        Ok(None)
    }

    fn enter_return(&mut self, event: &Event, instance: InstanceId, used: bool) -> Check {
        let before = self.permits.remove(&instance);
        let (due, cause) = if used {
            (Permit::Running, Event::LaneFree(instance))
        } else {
            (Permit::Granted, Event::PermitGranted(instance))
        };
        let is_due = before == Some(due) && *event == cause;
        ensure!(is_due, "{instance:?} returns a permit that is {before:?}, used: {used}");
        Ok(())
    }

    /// After each step: whoever has a permit runs, and whoever is done has none.
    pub(crate) fn check_nobody_sits_on_one(&self) -> Check {
        let idle = self.permits.iter().find(|(_, permit)| **permit == Permit::Granted);
        ensure!(idle.is_none(), "{idle:?} has a permit and does nothing");
        Ok(())
    }

    /// Permits that were neither returned nor withdrawn.
    pub(crate) fn open(&self) -> usize {
        self.permits.len()
    }
}
