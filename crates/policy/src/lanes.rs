//! Stage four: which instance takes the batch?
//!
//! The instance that became free last is chosen first. Its code and arenas are
//! the likeliest to be in cache, and under light load the other instances stay
//! asleep. The choice depends on the order of events only, so a replay repeats it.
//!
//! Where a rate limiter is in charge, an instance also needs a permit for each
//! batch, and the first free instance that has one takes it.

use std::collections::BTreeMap;

use crate::event::{Action, Actions};
use crate::ids::InstanceId;
use crate::permits::Permits;
use crate::status::LaneStatus;
use crate::time::Time;

/// The model's instances. Each has at most one batch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lanes {
    lanes: BTreeMap<InstanceId, Lane>,
    /// A stack: the last to become free is the first to be taken.
    free: Vec<InstanceId>,
    /// If instances need permits.
    permits: Option<Permits>,
}

#[derive(Clone, Debug)]
struct Lane {
    state: LaneState,
    since: Time,
}

/// Free ⇄ Busy; a busy lane may become Leaving, from where it only goes away.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum LaneState {
    Free,
    Busy,
    Leaving,
}

/// Whether an instance is gone after an event.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Departure {
    Gone,
    Stays,
}

/// Whether an instance takes a batch.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    Now,
    /// Once it has a permit, which was asked for.
    AwaitsPermit,
}

impl Lanes {
    /// From now on each batch needs a permit.
    pub(crate) fn require_permits(&mut self) {
        self.permits = Some(Permits::default());
    }

    /// The instance may run a batch, within this step. One that went before its
    /// permit came gives it back.
    ///
    /// # Panics
    ///
    /// If an instance that is there did not ask.
    pub(crate) fn grant(&mut self, id: InstanceId, out: &mut Actions) {
        if !self.lanes.contains_key(&id) {
            out.push(Action::ReturnPermit { instance: id, used: false });
            return;
        }
        let has_asked = self.permits.as_mut().is_some_and(|permits| permits.grant(id));
        assert!(has_asked, "{id:?} asked for no permit");
    }

    /// Gives back the permit that came for nothing, at the end of a step.
    pub(crate) fn return_unused(&mut self, out: &mut Actions) {
        if let Some(instance) = self.permits.as_mut().and_then(Permits::take_granted) {
            out.push(Action::ReturnPermit { instance, used: false });
        }
    }

    /// The rate limiter lets the instance wait.
    pub(crate) fn delay(&mut self, id: InstanceId) {
        if let Some(permits) = &mut self.permits {
            permits.delay(id);
        }
    }

    /// The instance has no batch that could close.
    pub(crate) fn withdraw(&mut self, id: InstanceId, out: &mut Actions) {
        if let Some(permits) = &mut self.permits {
            permits.withdraw(id, out);
        }
    }

    /// There is no batch that could close, for any instance.
    pub(crate) fn withdraw_all(&mut self, out: &mut Actions) {
        if let Some(permits) = &mut self.permits {
            permits.withdraw_all(out);
        }
    }

    /// Whether the instance has asked for a permit and not got it.
    pub(crate) fn awaits_permit(&self, id: InstanceId) -> bool {
        self.permits.as_ref().is_some_and(|permits| permits.has_asked(id))
    }

    pub(crate) fn add(&mut self, id: InstanceId, now: Time) {
        let previous = self.lanes.insert(id, Lane { state: LaneState::Free, since: now });
        assert!(previous.is_none(), "{id:?} was added twice");
        self.free.push(id);
    }

    /// A free instance goes at once, a busy one after its batch.
    pub(crate) fn remove(&mut self, id: InstanceId, out: &mut Actions) -> Departure {
        let lane = self.lanes.get_mut(&id).unwrap_or_else(|| panic!("{id:?} is not known"));
        match lane.state {
            LaneState::Free => {
                self.lanes.remove(&id);
                self.free.retain(|free| *free != id);
                if let Some(permits) = &mut self.permits {
                    permits.forget(id, out);
                }
                Departure::Gone
            }
            LaneState::Busy => {
                lane.state = LaneState::Leaving;
                Departure::Stays
            }
            LaneState::Leaving => Departure::Stays,
        }
    }

    /// The instance finished its batch.
    pub(crate) fn release(&mut self, id: InstanceId, now: Time, out: &mut Actions) -> Departure {
        let lane = self.lanes.get_mut(&id).unwrap_or_else(|| panic!("{id:?} is not known"));
        let departure = match lane.state {
            LaneState::Free => panic!("{id:?} became free twice"),
            LaneState::Busy => {
                *lane = Lane { state: LaneState::Free, since: now };
                self.free.push(id);
                Departure::Stays
            }
            LaneState::Leaving => {
                self.lanes.remove(&id);
                Departure::Gone
            }
        };
        if self.permits.is_some() {
            out.push(Action::ReturnPermit { instance: id, used: true });
        }
        departure
    }

    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    pub(crate) fn is_free(&self, id: InstanceId) -> bool {
        self.lanes.get(&id).is_some_and(|lane| lane.state == LaneState::Free)
    }

    pub(crate) fn all_free(&self) -> bool {
        self.free.len() == self.lanes.len()
    }

    /// Gives a batch to the best free instance. If none may run yet, there are
    /// permits asked for behind this: for as many instances as requests wait, and
    /// for another in the place of each that was told to wait.
    pub(crate) fn take(
        &mut self,
        waiting: usize,
        now: Time,
        out: &mut Actions,
    ) -> Option<InstanceId> {
        let id = match &mut self.permits {
            None => *self.free.last().expect("a batch closes only when a lane is free"),
            Some(permits) => {
                let Some(granted) = permits.take_granted() else {
                    permits.ask_for_some(&self.free, waiting, out);
                    return None;
                };
                granted
            }
        };
        self.occupy(id, now);
        Some(id)
    }

    /// Gives a batch to this instance, which is free, or asks for its permit.
    pub(crate) fn take_this(&mut self, id: InstanceId, now: Time, out: &mut Actions) -> Taken {
        if let Some(permits) = &mut self.permits {
            if !permits.is_granted(id) {
                permits.ask(id, out);
                return Taken::AwaitsPermit;
            }
            permits.take_granted();
        }
        self.occupy(id, now);
        Taken::Now
    }

    fn occupy(&mut self, id: InstanceId, now: Time) {
        let place = self.free.iter().rposition(|free| *free == id);
        self.free.remove(place.unwrap_or_else(|| panic!("{id:?} is not free")));
        let lane = self.lanes.get_mut(&id).expect("a free lane exists");
        assert_eq!(lane.state, LaneState::Free, "{id:?} takes one batch at a time");
        *lane = Lane { state: LaneState::Busy, since: now };
    }

    pub(crate) fn status(&self) -> Vec<LaneStatus> {
        let describe = |(id, lane): (&InstanceId, &Lane)| match lane.state {
            LaneState::Free => LaneStatus::Free { instance: *id, since: lane.since },
            LaneState::Busy => LaneStatus::Busy { instance: *id, since: lane.since },
            LaneState::Leaving => LaneStatus::Removing { instance: *id, busy_since: lane.since },
        };
        self.lanes.iter().map(describe).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(count: u32) -> Lanes {
        let mut lanes = Lanes::default();
        for id in 0..count {
            lanes.add(InstanceId(id), Time(0));
        }
        lanes
    }

    fn take(lanes: &mut Lanes, now: u64) -> InstanceId {
        lanes.take(1, Time(now), &mut Actions::default()).expect("no permits are needed")
    }

    fn release(lanes: &mut Lanes, id: u32, now: u64) -> Departure {
        lanes.release(InstanceId(id), Time(now), &mut Actions::default())
    }

    fn remove(lanes: &mut Lanes, id: InstanceId) -> Departure {
        lanes.remove(id, &mut Actions::default())
    }

    #[test]
    fn the_last_to_become_free_is_taken_first() {
        let mut lanes = lanes(3);
        assert_eq!(take(&mut lanes, 1), InstanceId(2));
        assert_eq!(take(&mut lanes, 1), InstanceId(1));
        release(&mut lanes, 2, 2);
        assert_eq!(take(&mut lanes, 3), InstanceId(2));
        assert_eq!(take(&mut lanes, 3), InstanceId(0));
        assert!(!lanes.has_free());
    }

    #[test]
    fn a_busy_lane_leaves_after_its_batch() {
        let mut lanes = lanes(2);
        let busy = take(&mut lanes, 1);
        assert_eq!(remove(&mut lanes, busy), Departure::Stays);
        assert_eq!(remove(&mut lanes, busy), Departure::Stays);
        assert!(!lanes.all_free());
        assert_eq!(release(&mut lanes, busy.0, 2), Departure::Gone);
        assert!(lanes.all_free());
        assert_eq!(remove(&mut lanes, InstanceId(0)), Departure::Gone);
        assert!(!lanes.has_free());
    }

    #[test]
    #[should_panic(expected = "became free twice")]
    fn a_lane_is_freed_once() {
        let mut lanes = lanes(1);
        release(&mut lanes, 0, 1);
    }

    #[test]
    #[should_panic(expected = "added twice")]
    fn an_instance_is_added_once() {
        let mut lanes = lanes(1);
        lanes.add(InstanceId(0), Time(1));
    }
}
