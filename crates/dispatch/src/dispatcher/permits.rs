//! A dispatcher and the rate limiter.

use std::sync::{Arc, Weak};

use galatea_infer::Status;
use galatea_policy::{Event, InstanceId, PermitUse};

use super::Dispatcher;
use super::state::{Effect, Effects, State};
use crate::lane::Lane;
use crate::permits::{Granted, Member, Permits, Told};

/// What a dispatcher has to do with the rate limiter.
#[derive(Debug)]
pub(super) struct Limited {
    permits: Arc<Permits>,
    member: Member,
}

impl Limited {
    pub(super) fn new(permits: Arc<Permits>, dispatcher: Weak<Dispatcher>) -> Self {
        let member = permits.join(dispatcher);
        Self { permits, member }
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        self.permits.leave(self.member);
    }
}

impl Dispatcher {
    /// An instance may execute one batch. Returns what others get thereby: many in a
    /// row may have no use for a permit, so it isn't delivered from in here.
    pub(crate) fn permit_granted(&self, instance: InstanceId) -> Granted {
        let mut effects = self.step(&mut self.lock(), Event::PermitGranted(instance));
        let mut granted = Granted::new();
        effects.retain(|effect| match effect {
            Effect::Deliver(others) => {
                granted.append(others);
                false
            }
            Effect::Execute { .. }
            | Effect::Fail { .. }
            | Effect::Abandon(_)
            | Effect::Forget(_)
            | Effect::StopLane(_)
            | Effect::Note(_)
            | Effect::NotifyDrained => true,
        });
        self.perform(effects);
        granted
    }

    /// Makes instances known to the rate limiter: all of them, or none.
    pub(super) fn register(&self, lanes: &[(InstanceId, Arc<Lane>)]) -> Result<(), Status> {
        let Some(Limited { permits, member }) = &self.limited else { return Ok(()) };
        for (place, (instance, lane)) in lanes.iter().enumerate() {
            if let Err(status) = permits.register(*member, *instance, lane.needs().clone()) {
                lanes.iter().take(place).for_each(|(instance, _)| self.unregister(*instance));
                return Err(status);
            }
        }
        Ok(())
    }

    /// The instance gets nothing any more.
    pub(super) fn unregister(&self, instance: InstanceId) {
        if let Some(Limited { permits, member }) = &self.limited {
            permits.deliver(permits.unregister(*member, instance));
        }
    }

    pub(super) fn stop_lane(&self, instance: InstanceId) {
        self.lanes.stop(instance);
        self.unregister(instance);
    }

    /// Tells what the scheduler wants: in the step in which it wants it, so that a
    /// request for a permit and its withdrawal don't come the wrong way round.
    /// Returns which instances have to wait, for the scheduler to hear at once.
    pub(super) fn tell_rate_limiter(
        &self,
        state: &mut State,
        effects: &mut Effects,
    ) -> Vec<InstanceId> {
        if state.orders.is_empty() {
            return Vec::new();
        }
        let limited = self.limited.as_ref();
        let told = limited.map(|limited| limited.permits.tell(limited.member, &state.orders));
        state.orders.clear();
        match told {
            Some(Ok(Told { granted, delayed })) => {
                if !granted.is_empty() {
                    effects.push(Effect::Deliver(granted));
                }
                delayed
            }
            Some(Err(_)) | None => {
                state.broken = true;
                Vec::new()
            }
        }
    }

    /// A broken scheduler returns nothing, and others need what its instances
    /// have.
    pub(super) fn take_permit_back(&self, event: Event, effects: &mut Effects) {
        let Some(Limited { permits, member }) = &self.limited else { return };
        let (instance, used_for) = match event {
            Event::LaneFree(instance) => (instance, PermitUse::Executed),
            Event::PermitGranted(instance) => (instance, PermitUse::Unused),
            Event::Enqueue(_)
            | Event::Cancel(_)
            | Event::Released { .. }
            | Event::AddInstance(_)
            | Event::RemoveInstance(_)
            | Event::PermitDelayed(_)
            | Event::Drain
            | Event::Tick => return,
        };
        effects.push(Effect::Deliver(permits.take_back_from(*member, instance, used_for)));
    }

    pub(super) fn deliver(&self, granted: Granted) {
        if let Some(Limited { permits, .. }) = &self.limited {
            permits.deliver(granted);
        }
    }
}
