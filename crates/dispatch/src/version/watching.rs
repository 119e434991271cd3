//! A version's state as watchers see it.

use std::time::Instant;

use galatea_control::VersionActivity;

use super::LoadedModel;
use crate::dispatcher::DispatcherReading;

impl LoadedModel {
    /// Records the executions of up to `instances_max` instances until
    /// [`LoadedModel::stop_recording_executions`], and takes the executions recorded since the last call. Times
    /// are relative to `start`. Also returns the number of recorded instances.
    #[must_use]
    pub fn take_recorded_executions(
        &self,
        start: Instant,
        instances_max: usize,
    ) -> (VersionActivity, usize) {
        let (reading, recorded) = self.dispatcher.read_recording(start, instances_max);
        let DispatcherReading { queue, sequences, instances } = reading;
        let spec = &self.spec;
        let platform = if spec.platform.is_empty() { &spec.backend } else { &spec.platform };
        let version = VersionActivity {
            statistics: self.statistics(),
            platform: platform.clone(),
            max_batch_size: spec.max_batch_size,
            queue,
            sequences,
            instances,
        };
        (version, recorded)
    }

    /// Stops recording executions.
    pub fn stop_recording_executions(&self) {
        self.dispatcher.end_recording();
    }
}
