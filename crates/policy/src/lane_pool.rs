//! Stage four: chooses the instance that takes the batch.
//!
//! The instance that became free last is chosen first. Its code and memory arenas are the most
//! likely to be in cache, and under light load the other instances stay asleep. The choice depends
//! only on the order of events, so a replay reproduces it.
//!
//! With a rate limiter, an instance also needs a permit for each batch, and the first free instance
//! with a permit takes the batch.

use std::collections::BTreeMap;

use crate::event::{SchedulerAction, SchedulerActions};
use crate::ids::InstanceId;
use crate::permit_requests::PermitRequests;
use crate::status::{InstanceStateCounts, InstanceStatus};
use crate::time::Time;

/// The model's instances. Each has at most one batch.
#[derive(Clone, Debug, Default)]
pub(crate) struct LanePool {
    lanes: BTreeMap<InstanceId, PooledLane>,
    /// A stack: the instance that became free last gets the next batch.
    free: Vec<InstanceId>,
    /// The permit requests, if instances need permits.
    permits: Option<PermitRequests>,
}

#[derive(Clone, Debug)]
struct PooledLane {
    state: LaneState,
    since: Time,
    /// The number of batches that the instance has taken.
    batches: u64,
}

/// Free ⇄ Busy → Removing. A lane is deleted from Free, or from Removing when its batch ends.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum LaneState {
    Free,
    Busy,
    Removing,
}

/// The effect of an event on an instance that may be removed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Removal {
    /// The instance was removed.
    Complete,
    /// The instance remains, perhaps until its batch or its sequences end.
    Pending,
}

/// The effect of a decision on a free instance.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Assignment {
    Assigned,
    /// The instance gets a batch once its requested permit is granted.
    AwaitsPermit,
}

impl LanePool {
    /// Requires a permit for each batch.
    pub(crate) fn require_permits(&mut self) {
        self.permits = Some(PermitRequests::default());
    }

    /// Allows the instance to run a batch within this step. If the instance was removed in the
    /// meantime, its permit is returned.
    ///
    /// # Panics
    ///
    /// Panics if the instance is in the pool and didn't request a permit.
    pub(crate) fn grant(&mut self, id: InstanceId, out: &mut SchedulerActions) {
        if !self.lanes.contains_key(&id) {
            out.push(SchedulerAction::ReturnPermit { instance: id, used: false });
            return;
        }
        let is_requested = self.permits.as_mut().is_some_and(|permits| permits.mark_granted(id));
        assert!(is_requested, "{id:?} asked for no permit");
    }

    /// Returns a permit that no batch has used. Called at the end of a step.
    pub(crate) fn return_unused_permit(&mut self, out: &mut SchedulerActions) {
        if let Some(instance) = self.permits.as_mut().and_then(PermitRequests::take_granted) {
            out.push(SchedulerAction::ReturnPermit { instance, used: false });
        }
    }

    /// Records that the rate limiter delays the instance's permit.
    pub(crate) fn delay(&mut self, id: InstanceId) {
        if let Some(permits) = &mut self.permits {
            permits.delay(id);
        }
    }

    /// Withdraws the instance's permit request, because the instance has no batch that could close.
    pub(crate) fn withdraw(&mut self, id: InstanceId, out: &mut SchedulerActions) {
        if let Some(permits) = &mut self.permits {
            permits.withdraw(id, out);
        }
    }

    /// Withdraws all permit requests, because no instance has a batch that could close.
    pub(crate) fn withdraw_all(&mut self, out: &mut SchedulerActions) {
        if let Some(permits) = &mut self.permits {
            permits.withdraw_all(out);
        }
    }

    /// Returns true if the instance has requested a permit and doesn't have it yet.
    pub(crate) fn awaits_permit(&self, id: InstanceId) -> bool {
        self.permits.as_ref().is_some_and(|permits| permits.has_requested(id))
    }

    pub(crate) fn add(&mut self, id: InstanceId, now: Time) {
        let previous =
            self.lanes.insert(id, PooledLane { state: LaneState::Free, since: now, batches: 0 });
        assert!(previous.is_none(), "{id:?} was added twice");
        self.free.push(id);
    }

    /// Removes a free instance immediately and a busy one after its batch.
    pub(crate) fn remove(&mut self, id: InstanceId, out: &mut SchedulerActions) -> Removal {
        let lane = self.lanes.get_mut(&id).unwrap_or_else(|| panic!("{id:?} is not known"));
        match lane.state {
            LaneState::Free => {
                self.lanes.remove(&id);
                self.free.retain(|free| *free != id);
                if let Some(permits) = &mut self.permits {
                    permits.forget(id, out);
                }
                Removal::Complete
            }
            LaneState::Busy => {
                lane.state = LaneState::Removing;
                Removal::Pending
            }
            LaneState::Removing => Removal::Pending,
        }
    }

    /// Frees the instance after its batch.
    pub(crate) fn release(
        &mut self,
        id: InstanceId,
        now: Time,
        out: &mut SchedulerActions,
    ) -> Removal {
        let lane = self.lanes.get_mut(&id).unwrap_or_else(|| panic!("{id:?} is not known"));
        let removal = match lane.state {
            LaneState::Free => panic!("{id:?} became free twice"),
            LaneState::Busy => {
                *lane = PooledLane { state: LaneState::Free, since: now, ..*lane };
                self.free.push(id);
                Removal::Pending
            }
            LaneState::Removing => {
                self.lanes.remove(&id);
                Removal::Complete
            }
        };
        if self.permits.is_some() {
            out.push(SchedulerAction::ReturnPermit { instance: id, used: true });
        }
        removal
    }

    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    pub(crate) fn free_count(&self) -> usize {
        self.free.len()
    }

    pub(crate) fn is_free(&self, id: InstanceId) -> bool {
        self.lanes.get(&id).is_some_and(|lane| lane.state == LaneState::Free)
    }

    pub(crate) fn all_free(&self) -> bool {
        self.free.len() == self.lanes.len()
    }

    /// Assigns a batch to the best free instance. If no instance may run yet, requests permits for
    /// as many instances as there are waiting requests. If a permit is delayed, another instance
    /// requests one in its place.
    pub(crate) fn assign(
        &mut self,
        waiting: usize,
        now: Time,
        out: &mut SchedulerActions,
    ) -> Option<InstanceId> {
        let id = match &mut self.permits {
            None => *self.free.last().expect("a batch closes only when a lane is free"),
            Some(permits) => {
                let Some(granted) = permits.take_granted() else {
                    permits.request_for_some(&self.free, waiting, out);
                    return None;
                };
                granted
            }
        };
        self.occupy(id, now);
        Some(id)
    }

    /// Assigns a batch to this free instance, or requests its permit.
    pub(crate) fn assign_to(
        &mut self,
        id: InstanceId,
        now: Time,
        out: &mut SchedulerActions,
    ) -> Assignment {
        if let Some(permits) = &mut self.permits {
            if !permits.is_granted(id) {
                permits.request(id, out);
                return Assignment::AwaitsPermit;
            }
            permits.take_granted();
        }
        self.occupy(id, now);
        Assignment::Assigned
    }

    fn occupy(&mut self, id: InstanceId, now: Time) {
        let position = self.free.iter().rposition(|free| *free == id);
        self.free.remove(position.unwrap_or_else(|| panic!("{id:?} is not free")));
        let lane = self.lanes.get_mut(&id).expect("a free lane exists");
        assert_eq!(lane.state, LaneState::Free, "{id:?} takes one batch at a time");
        *lane = PooledLane { state: LaneState::Busy, since: now, batches: lane.batches + 1 };
    }

    /// Returns true if the instance's latest batch is its first.
    pub(crate) fn is_first_batch(&self, id: InstanceId) -> bool {
        self.lanes.get(&id).is_some_and(|lane| lane.batches == 1)
    }

    pub(crate) fn counts(&self) -> InstanceStateCounts {
        let busy = || self.lanes.values().filter(|lane| lane.state != LaneState::Free);
        InstanceStateCounts {
            total: self.lanes.len(),
            busy: busy().count(),
            busy_since: busy().map(|lane| lane.since).min(),
            has_first_batch: busy().any(|lane| lane.batches == 1),
        }
    }

    pub(crate) fn status(&self) -> Vec<InstanceStatus> {
        let describe = |(id, lane): (&InstanceId, &PooledLane)| match lane.state {
            LaneState::Free => InstanceStatus::Free { instance: *id, since: lane.since },
            LaneState::Busy => InstanceStatus::Busy { instance: *id, since: lane.since },
            LaneState::Removing => {
                InstanceStatus::Removing { instance: *id, busy_since: lane.since }
            }
        };
        self.lanes.iter().map(describe).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(count: u32) -> LanePool {
        let mut lanes = LanePool::default();
        for id in 0..count {
            lanes.add(InstanceId(id), Time(0));
        }
        lanes
    }

    fn assign(lanes: &mut LanePool, now: u64) -> InstanceId {
        lanes.assign(1, Time(now), &mut SchedulerActions::default()).expect("no permits are needed")
    }

    fn release(lanes: &mut LanePool, id: u32, now: u64) -> Removal {
        lanes.release(InstanceId(id), Time(now), &mut SchedulerActions::default())
    }

    fn remove(lanes: &mut LanePool, id: InstanceId) -> Removal {
        lanes.remove(id, &mut SchedulerActions::default())
    }

    #[test]
    fn the_last_lane_to_become_free_is_assigned_first() {
        let mut lanes = lanes(3);
        assert_eq!(assign(&mut lanes, 1), InstanceId(2));
        assert_eq!(assign(&mut lanes, 1), InstanceId(1));
        release(&mut lanes, 2, 2);
        assert_eq!(assign(&mut lanes, 3), InstanceId(2));
        assert_eq!(assign(&mut lanes, 3), InstanceId(0));
        assert!(!lanes.has_free());
    }

    #[test]
    fn a_busy_lane_is_removed_after_its_batch() {
        let mut lanes = lanes(2);
        let busy = assign(&mut lanes, 1);
        assert_eq!(remove(&mut lanes, busy), Removal::Pending);
        assert_eq!(remove(&mut lanes, busy), Removal::Pending);
        assert!(!lanes.all_free());
        assert_eq!(release(&mut lanes, busy.0, 2), Removal::Complete);
        assert!(lanes.all_free());
        assert_eq!(remove(&mut lanes, InstanceId(0)), Removal::Complete);
        assert!(!lanes.has_free());
    }

    #[test]
    fn the_first_batch_of_an_instance_is_known() {
        let mut lanes = lanes(2);
        let counts = |total, busy, busy_since: Option<u64>, has_first_batch| InstanceStateCounts {
            total,
            busy,
            busy_since: busy_since.map(Time),
            has_first_batch,
        };
        assert_eq!(lanes.counts(), counts(2, 0, None, false));
        let first = assign(&mut lanes, 1);
        assert!(lanes.is_first_batch(first));
        assert_eq!(lanes.counts(), counts(2, 1, Some(1), true));
        release(&mut lanes, first.0, 2);
        assert_eq!(assign(&mut lanes, 3), first);
        assert!(!lanes.is_first_batch(first));
        assert_eq!(lanes.counts(), counts(2, 1, Some(3), false));
        assert_eq!(assign(&mut lanes, 4), InstanceId(0));
        assert_eq!(lanes.counts(), counts(2, 2, Some(3), true));
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
