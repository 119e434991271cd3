//! The permits of one scheduler's instances, as visible from outside.

use std::collections::{BTreeMap, BTreeSet};

use galatea_policy::{InstanceId, SchedulerAction, SchedulerEvent};

use crate::check::{Check, ensure};

/// The permits of a scheduler's instances.
#[derive(Clone, Debug, Default)]
pub(crate) struct PermitLedger {
    permits: BTreeMap<InstanceId, Permit>,
    /// Instances that have withdrawn but may still be granted a permit.
    withdrawn: BTreeSet<InstanceId>,
}

/// Requested → Granted → Running → deleted. Requested → Delayed → Granted.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Permit {
    Requested,
    Delayed,
    Granted,
    Running,
}

pub(crate) fn is_permit_action(action: &SchedulerAction) -> bool {
    match action {
        SchedulerAction::RequestPermit(_)
        | SchedulerAction::ReturnPermit { .. }
        | SchedulerAction::WithdrawPermit(_) => true,
        SchedulerAction::Dispatch { .. }
        | SchedulerAction::Fail { .. }
        | SchedulerAction::SequenceClosed(_)
        | SchedulerAction::SequenceEnded(_)
        | SchedulerAction::InstanceRemoved(_)
        | SchedulerAction::Drained => false,
    }
}

impl PermitLedger {
    /// Records that the rate limiter grants a permit.
    pub(crate) fn grant(&mut self, instance: InstanceId) -> Check {
        let before = self.permits.insert(instance, Permit::Granted);
        let is_due = matches!(before, Some(Permit::Requested | Permit::Delayed));
        let may_come = is_due || self.withdrawn.remove(&instance);
        ensure!(may_come, "{instance:?} is granted a permit that it did not request");
        Ok(())
    }

    /// Records that the rate limiter delays the instance's permit.
    pub(crate) fn delay(&mut self, instance: InstanceId) -> Check {
        let before = self.permits.insert(instance, Permit::Delayed);
        ensure!(
            before == Some(Permit::Requested),
            "{instance:?} is delayed while it is {before:?}"
        );
        Ok(())
    }

    /// Returns true if the instance has requested a permit and doesn't have it.
    pub(crate) fn has_requested(&self, instance: InstanceId) -> bool {
        matches!(self.permits.get(&instance), Some(Permit::Requested | Permit::Delayed))
    }

    /// Returns the instances that have requested a permit and don't have it.
    pub(crate) fn requested(&self) -> impl Iterator<Item = InstanceId> {
        self.permits.keys().copied().filter(|instance| self.has_requested(*instance))
    }

    /// Returns the number of requests that aren't delayed.
    pub(crate) fn undelayed_requests(&self) -> usize {
        self.permits.values().filter(|permit| **permit == Permit::Requested).count()
    }

    /// Records an action caused by the event. Returns the instance that requests a permit through
    /// the action.
    pub(crate) fn record(
        &mut self,
        event: &SchedulerEvent,
        action: &SchedulerAction,
    ) -> Result<Option<InstanceId>, String> {
        match *action {
            SchedulerAction::RequestPermit(instance) => {
                let before = self.permits.insert(instance, Permit::Requested);
                ensure!(before.is_none(), "{instance:?} requests while it is {before:?}");
                self.withdrawn.remove(&instance);
                return Ok(Some(instance));
            }
            SchedulerAction::ReturnPermit { instance, used } => {
                self.record_return(event, instance, used)?
            }
            SchedulerAction::WithdrawPermit(instance) => {
                let before = self.permits.remove(&instance);
                let has_requested = matches!(before, Some(Permit::Requested | Permit::Delayed));
                ensure!(has_requested, "{instance:?} withdraws while it is {before:?}");
                self.withdrawn.insert(instance);
            }
            SchedulerAction::Dispatch { instance, .. } => {
                let before = self.permits.insert(instance, Permit::Running);
                let may_run = before == Some(Permit::Granted);
                ensure!(may_run, "{instance:?} runs while its permit is {before:?}");
            }
            SchedulerAction::InstanceRemoved(instance) => {
                let left = self.permits.get(&instance);
                ensure!(left.is_none(), "{instance:?} is removed while its permit is {left:?}");
            }
            SchedulerAction::Fail { .. }
            | SchedulerAction::SequenceClosed(_)
            | SchedulerAction::SequenceEnded(_)
            | SchedulerAction::Drained => {}
        }
        Ok(None)
    }

    fn record_return(&mut self, event: &SchedulerEvent, instance: InstanceId, used: bool) -> Check {
        let before = self.permits.remove(&instance);
        let (due, cause) = if used {
            (Permit::Running, SchedulerEvent::LaneFree(instance))
        } else {
            (Permit::Granted, SchedulerEvent::PermitGranted(instance))
        };
        let is_due = before == Some(due) && *event == cause;
        ensure!(is_due, "{instance:?} returns a permit that is {before:?}, used: {used}");
        Ok(())
    }

    /// Checks after each step that no instance has a permit without a batch.
    pub(crate) fn check_no_permit_is_held(&self) -> Check {
        let idle = self.permits.iter().find(|(_, permit)| **permit == Permit::Granted);
        ensure!(idle.is_none(), "{idle:?} has a permit and no batch");
        Ok(())
    }

    /// Returns the number of permits that have been neither returned nor withdrawn.
    pub(crate) fn open(&self) -> usize {
        self.permits.len()
    }
}
