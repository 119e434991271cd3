//! The server's state as watchers see it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use galatea_control::{
    ActivityMonitor, ActivityReading, ActivityRecording, ModelStatistics, ResidencyReading,
    WATCHED_VERSIONS_MAX,
};
use galatea_infer::{AccessPass, api};

use super::Server;
use crate::manager::ControlMode;
use crate::registry::Registry;

/// The maximum number of instances whose executions are recorded for watchers. Each takes 64 KiB
/// while there are watchers.
const WATCHED_INSTANCES_MAX: usize = 256;

impl ActivityMonitor for Server {
    fn begin(&self, _: AccessPass<api::Statistics>) -> Option<Box<dyn ActivityRecording>> {
        let is_recording = self.is_recording.clone();
        if is_recording.swap(true, Ordering::AcqRel) {
            return None;
        }
        let registry = self.registry.clone();
        Some(Box::new(ServerRecording { registry, start: Instant::now(), is_recording }))
    }

    fn counters(&self) -> Vec<ModelStatistics> {
        let snapshot = self.registry.snapshot();
        let versions = snapshot.ready().take(WATCHED_VERSIONS_MAX);
        versions.map(|model| model.statistics()).collect()
    }

    fn allows_model_control(&self) -> bool {
        match self.options.control {
            ControlMode::Explicit | ControlMode::Demand => true,
            ControlMode::None | ControlMode::Poll => false,
        }
    }

    fn residency(&self, from: u64) -> Option<ResidencyReading> {
        self.demand.as_ref().map(|demand| demand.residency(from))
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Server")
    }
}

/// Reads the recordings of the versions in service, and ends them on drop.
///
/// A draining version is not read: the reaper will destroy it, and must hold the only reference to
/// it. Its recording ends when the version ends.
struct ServerRecording {
    registry: Arc<Registry>,
    start: Instant,
    is_recording: Arc<AtomicBool>,
}

impl ActivityRecording for ServerRecording {
    fn read(&mut self) -> ActivityReading {
        let mut reading = ActivityReading::default();
        let mut instances_left = WATCHED_INSTANCES_MAX;
        for model in self.registry.snapshot().ready() {
            if reading.versions.len() >= WATCHED_VERSIONS_MAX {
                reading.omitted += 1;
                continue;
            }
            let (version, recorded) = model.take_recorded_executions(self.start, instances_left);
            instances_left = instances_left.saturating_sub(recorded);
            reading.versions.push(version);
        }
        reading.at = self.start.elapsed();
        reading
    }
}

impl Drop for ServerRecording {
    fn drop(&mut self) {
        self.registry.snapshot().ready().for_each(|model| model.stop_recording_executions());
        self.is_recording.store(false, Ordering::Release);
    }
}
