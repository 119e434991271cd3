//! Stage four: which instance takes the batch?
//!
//! The instance that became free last is chosen first. Its code and arenas are
//! the likeliest to be in cache, and under light load the other instances stay
//! asleep. The choice depends on the order of events only, so a replay repeats it.

use std::collections::BTreeMap;

use crate::ids::InstanceId;
use crate::status::LaneStatus;
use crate::time::Time;

/// The model's instances. Each has at most one batch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lanes {
    lanes: BTreeMap<InstanceId, Lane>,
    /// A stack: the last to become free is the first to be taken.
    free: Vec<InstanceId>,
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

impl Lanes {
    pub(crate) fn add(&mut self, id: InstanceId, now: Time) {
        let previous = self.lanes.insert(id, Lane { state: LaneState::Free, since: now });
        assert!(previous.is_none(), "{id:?} was added twice");
        self.free.push(id);
    }

    /// A free instance goes at once, a busy one after its batch.
    pub(crate) fn remove(&mut self, id: InstanceId) -> Departure {
        let lane = self.lanes.get_mut(&id).unwrap_or_else(|| panic!("{id:?} is not known"));
        match lane.state {
            LaneState::Free => {
                self.lanes.remove(&id);
                self.free.retain(|free| *free != id);
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
    pub(crate) fn release(&mut self, id: InstanceId, now: Time) -> Departure {
        let lane = self.lanes.get_mut(&id).unwrap_or_else(|| panic!("{id:?} is not known"));
        match lane.state {
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
        }
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

    /// Gives a batch to the best free instance.
    pub(crate) fn take(&mut self, now: Time) -> InstanceId {
        let id = *self.free.last().expect("a batch closes only when a lane is free");
        self.take_this(id, now);
        id
    }

    /// Gives a batch to this instance, which is free.
    pub(crate) fn take_this(&mut self, id: InstanceId, now: Time) {
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
            LaneState::Leaving => LaneStatus::Leaving { instance: *id, busy_since: lane.since },
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

    #[test]
    fn the_last_to_become_free_is_taken_first() {
        let mut lanes = lanes(3);
        assert_eq!(lanes.take(Time(1)), InstanceId(2));
        assert_eq!(lanes.take(Time(1)), InstanceId(1));
        lanes.release(InstanceId(2), Time(2));
        assert_eq!(lanes.take(Time(3)), InstanceId(2));
        assert_eq!(lanes.take(Time(3)), InstanceId(0));
        assert!(!lanes.has_free());
    }

    #[test]
    fn a_busy_lane_leaves_after_its_batch() {
        let mut lanes = lanes(2);
        let busy = lanes.take(Time(1));
        assert_eq!(lanes.remove(busy), Departure::Stays);
        assert_eq!(lanes.remove(busy), Departure::Stays);
        assert!(!lanes.all_free());
        assert_eq!(lanes.release(busy, Time(2)), Departure::Gone);
        assert!(lanes.all_free());
        assert_eq!(lanes.remove(InstanceId(0)), Departure::Gone);
        assert!(!lanes.has_free());
    }

    #[test]
    #[should_panic(expected = "became free twice")]
    fn a_lane_is_freed_once() {
        let mut lanes = lanes(1);
        lanes.release(InstanceId(0), Time(1));
    }

    #[test]
    #[should_panic(expected = "added twice")]
    fn an_instance_is_added_once() {
        let mut lanes = lanes(1);
        lanes.add(InstanceId(0), Time(1));
    }
}
