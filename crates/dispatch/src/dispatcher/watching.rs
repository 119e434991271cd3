//! A dispatcher's state as watchers see it.

use std::time::{Duration, Instant};

use galatea_control::{InstanceActivity, QueueActivity, SequenceActivity};
use galatea_policy::{QueueWaitReason, SchedulerStatus, Time};

use super::Dispatcher;
use super::observation::Timeline;

/// A dispatcher's state, and the executions of its instances.
#[derive(Debug)]
pub(crate) struct DispatcherReading {
    pub(crate) queue: QueueActivity,
    pub(crate) sequences: Option<SequenceActivity>,
    pub(crate) instances: Vec<InstanceActivity>,
}

impl Dispatcher {
    /// Records the executions of up to `instances_max` instances from now on, until
    /// [`Dispatcher::end_recording`], and takes the executions recorded since the last call. Times
    /// are relative to `start`. Also returns the number of recorded instances.
    pub(crate) fn read_recording(
        &self,
        start: Instant,
        instances_max: usize,
    ) -> (DispatcherReading, usize) {
        let names = self.lanes.names();
        let mut state = self.lock("read what is watched");
        let status = state.scheduler.status();
        let now = self.now();
        let timeline = state.views.get_or_begin(|| Timeline::new(self.epoch));
        let instances = timeline.take(start, now, &names);
        timeline.set_instances(names.keys().copied().take(instances_max));
        drop(state);
        let reading = DispatcherReading {
            queue: queue(&status, now),
            sequences: status.sequences.as_ref().map(|sequences| SequenceActivity {
                taken_slots: sequences.taken_slots,
                free_slots: sequences.free_slots,
                backlog: sequences.backlogged,
            }),
            instances,
        };
        (reading, names.len().min(instances_max))
    }

    /// Stops recording executions.
    pub(crate) fn end_recording(&self) {
        let timeline = self.lock("end a recording").views.end_view::<Timeline>();
        drop(timeline);
    }

    #[cfg(test)]
    pub(crate) fn is_recording(&self) -> bool {
        let mut state = self.lock("look whether it is watched");
        state.views.get::<Timeline>().is_some()
    }
}

fn queue(status: &SchedulerStatus, now: Time) -> QueueActivity {
    let oldest = status.queues.iter().map(|queue| queue.oldest).min();
    let first = status.queues.first();
    QueueActivity {
        waiting: status.queues.iter().map(|queue| queue.waiting).sum(),
        oldest: oldest
            .map_or(Duration::ZERO, |oldest| Duration::from_nanos(now.saturating_since(oldest))),
        waits_for: first.map(|queue| match queue.waits_for {
            QueueWaitReason::Lane => "instance",
            QueueWaitReason::BatchDelay { .. } => "batch_delay",
            QueueWaitReason::Permit => "rate_limiter",
            QueueWaitReason::Hold { .. } => "hold",
        }),
    }
}
