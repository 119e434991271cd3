//! Tests of a dispatcher under load, and of its guarantees about order and sequences.

mod driving;
mod ordering;
mod sequences;

use std::time::Duration;

use galatea_policy::{InstanceId, SchedulerActions, SchedulerEvent};
use galatea_stdx::Lock;

use super::Dispatcher;

/// Views and injected faults for tests.
impl Dispatcher {
    /// Drains without a notification.
    pub(crate) fn drain(&self) {
        self.step_and_perform(SchedulerEvent::Drain);
    }

    /// Drains and waits for the end; returns false if that takes longer than `timeout`.
    pub(crate) fn wait_drained(&self, timeout: Duration) -> bool {
        let (ended, end) = std::sync::mpsc::channel();
        let ended = Lock::new(ended);
        self.drain_and_notify(move || {
            let _ = ended.lock("notify").send(());
        });
        let is_drained = self.is_drained() || end.recv_timeout(timeout).is_ok();
        if is_drained {
            self.join_lanes();
        }
        is_drained
    }

    /// Breaks the scheduler with an event that no dispatcher sends.
    pub(crate) fn break_scheduler(&self) {
        self.step_and_perform(SchedulerEvent::LaneFree(InstanceId(u32::MAX)));
    }

    /// Removes the instances from the scheduler but keeps their lanes, so that removing one breaks
    /// the scheduler.
    pub(crate) fn remove_scheduled_instances(&self) {
        let mut state = self.lock("remove instances");
        let mut actions = SchedulerActions::default();
        for instance in self.lanes.instances() {
            state.scheduler.step(
                self.now(),
                SchedulerEvent::RemoveInstance(instance),
                &mut actions,
            );
        }
    }

    /// The number of lanes that have not been stopped.
    pub(crate) fn lane_count(&self) -> usize {
        self.lanes.instances().len()
    }

    /// The numbers of requests, of open sequences and of all sequences.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        self.lock("count").counts()
    }

    /// The number of executing requests whose replies have not been sent.
    pub(crate) fn replies_waiting(&self) -> usize {
        self.lock("count")
            .replies
            .as_ref()
            .map_or(0, |replies| replies.order.unfinished_request_count())
    }
}
