//! The dispatcher as a client of the rate limiter.

use std::sync::{Arc, Weak};

use galatea_infer::Status;
use galatea_policy::{InstanceId, PermitUse, SchedulerEvent};

use super::Dispatcher;
use super::effect::{Effect, Effects};
use super::state::DispatcherState;
use crate::lane::Lane;
use crate::rate_limiter::{
    GrantedPermits, PermitDecision, PermitReceiver, RateLimiterDriver, ReceiverId,
};

/// A dispatcher's access to the rate limiter.
#[derive(Debug)]
pub(super) struct RateLimiterClient {
    driver: Arc<RateLimiterDriver>,
    id: ReceiverId,
}

impl RateLimiterClient {
    pub(super) fn new(driver: Arc<RateLimiterDriver>, dispatcher: Weak<Dispatcher>) -> Self {
        let id = driver.add_receiver(dispatcher);
        Self { driver, id }
    }
}

impl Drop for RateLimiterClient {
    fn drop(&mut self) {
        self.driver.remove_receiver(self.id);
    }
}

impl PermitReceiver for Dispatcher {
    fn permit_granted(&self, instance: InstanceId) -> GrantedPermits {
        let event = SchedulerEvent::PermitGranted(instance);
        let mut effects = self.step(&mut self.lock("step the scheduler"), event);
        let mut granted = GrantedPermits::new();
        effects.retain(|effect| match effect {
            Effect::DeliverPermits(others) => {
                granted.append(others);
                false
            }
            Effect::Execute { .. }
            | Effect::Fail { .. }
            | Effect::DropRequests(_)
            | Effect::DropStates(_)
            | Effect::StopLane(_)
            | Effect::Log(_)
            | Effect::NotifyDrained => true,
        });
        self.perform(effects);
        granted
    }
}

impl Dispatcher {
    /// Registers either all of these instances with the rate limiter or none.
    pub(super) fn register(&self, lanes: &[(InstanceId, Arc<Lane>)]) -> Result<(), Status> {
        let Some(RateLimiterClient { driver, id }) = &self.rate_limiter else { return Ok(()) };
        for (index, (instance, lane)) in lanes.iter().enumerate() {
            if let Err(status) = driver.register(*id, *instance, lane.requirements().clone()) {
                lanes.iter().take(index).for_each(|(instance, _)| self.unregister(*instance));
                return Err(status);
            }
        }
        Ok(())
    }

    /// Removes an instance from the rate limiter.
    pub(super) fn unregister(&self, instance: InstanceId) {
        if let Some(RateLimiterClient { driver, id }) = &self.rate_limiter {
            driver.deliver(driver.unregister(*id, instance));
        }
    }

    /// Applies the scheduler's permit operations. They are applied in the same step that decided on
    /// them, so a permit request and its withdrawal stay in order. Returns the instances whose
    /// permits are delayed.
    pub(super) fn apply_permit_operations(
        &self,
        state: &mut DispatcherState,
        effects: &mut Effects,
    ) -> Vec<InstanceId> {
        if state.permit_operations.is_empty() {
            return Vec::new();
        }
        let client = self.rate_limiter.as_ref();
        let decision = client
            .map(|RateLimiterClient { driver, id }| driver.apply(*id, &state.permit_operations));
        state.permit_operations.clear();
        match decision {
            Some(Ok(PermitDecision { granted, delayed })) => {
                if !granted.is_empty() {
                    effects.push(Effect::DeliverPermits(granted));
                }
                delayed
            }
            Some(Err(_)) | None => {
                state.is_broken = true;
                Vec::new()
            }
        }
    }

    /// Takes a permit back on behalf of a broken scheduler, which returns no permits itself.
    pub(super) fn reclaim_permit(&self, event: SchedulerEvent, effects: &mut Effects) {
        let Some(RateLimiterClient { driver, id }) = &self.rate_limiter else { return };
        let (instance, used_for) = match event {
            SchedulerEvent::LaneFree(instance) => (instance, PermitUse::Executed),
            SchedulerEvent::PermitGranted(instance) => (instance, PermitUse::Unused),
            SchedulerEvent::Enqueue(_)
            | SchedulerEvent::Cancel(_)
            | SchedulerEvent::Released { .. }
            | SchedulerEvent::AddInstance(_)
            | SchedulerEvent::RemoveInstance(_)
            | SchedulerEvent::PermitDelayed(_)
            | SchedulerEvent::Drain
            | SchedulerEvent::Tick => return,
        };
        effects.push(Effect::DeliverPermits(driver.reclaim(*id, instance, used_for)));
    }

    pub(super) fn deliver_permits(&self, granted: GrantedPermits) {
        if let Some(RateLimiterClient { driver, .. }) = &self.rate_limiter {
            driver.deliver(granted);
        }
    }
}
