//! A version's state as watchers see it.

use std::time::Instant;

use galatea_control::WatchedVersion;

use super::LoadedModel;
use crate::dispatcher::DispatcherReading;

impl LoadedModel {
    /// Records the executions of up to `instances_max` instances until
    /// [`LoadedModel::end_recording`], and takes the executions recorded since the last call. Times
    /// are relative to `start`. Also returns the number of recorded instances.
    #[must_use]
    pub fn read_recording(&self, start: Instant, instances_max: usize) -> (WatchedVersion, usize) {
        let (reading, recorded) = self.dispatcher.read_recording(start, instances_max);
        let DispatcherReading { queue, sequences, instances } = reading;
        let spec = &self.spec;
        let platform = if spec.platform.is_empty() { &spec.backend } else { &spec.platform };
        let version = WatchedVersion {
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
    pub fn end_recording(&self) {
        self.dispatcher.end_recording();
    }
}
