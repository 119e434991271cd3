//! Recordings of a model's traffic for clients.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use galatea_control::{TrafficRecording, TrafficRecordingControl};
use galatea_dispatch::LoadedModel;
use galatea_infer::{AccessPass, Status, api};

use super::Server;
use crate::handle::ModelHandle;
use crate::registry::Registry;

/// The maximum number of model versions whose traffic is recorded at a time, each for one client.
/// Each recording uses up to 8 MiB in addition to its queue.
const TRAFFIC_RECORDINGS_MAX: usize = 8;

impl TrafficRecordingControl for Server {
    fn record_traffic(
        &self,
        _: AccessPass<api::Trace>,
        model: &str,
        version: Option<i64>,
    ) -> Result<Box<dyn TrafficRecording>, Status> {
        let found = self.find(model, version)?;
        let place = RecordingPermit::take(&self.traffic_recordings)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let began_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let processors = std::thread::available_parallelism().map_or(0, usize::from);
        let processors = u32::try_from(processors).unwrap_or(u32::MAX);
        let header = found.begin_traffic_recording(began_ms, processors).ok_or_else(|| {
            let version = found.version();
            Status::unavailable(format!(
                "the traffic of model '{model}' version {version} is being recorded already"
            ))
        })?;
        Ok(Box::new(ModelRecording {
            registry: self.registry.clone(),
            model: Arc::downgrade(&found),
            header: Some(header),
            _place: place,
        }))
    }
}

/// A permit for one recording.
struct RecordingPermit(Arc<AtomicUsize>);

impl RecordingPermit {
    fn take(taken: &Arc<AtomicUsize>) -> Result<Self, Status> {
        let place = Self(taken.clone());
        let max = TRAFFIC_RECORDINGS_MAX;
        if taken.fetch_add(1, Ordering::AcqRel) >= max {
            let text = format!("the traffic of {max} models is being recorded, the maximum");
            return Err(Status::unavailable(text));
        }
        Ok(place)
    }
}

impl Drop for RecordingPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Reads the recording of a version in service, and ends the recording on drop. Does not keep the
/// version alive. A draining version is not read, because the reaper must hold the only reference
/// to it.
struct ModelRecording {
    registry: Arc<Registry>,
    model: Weak<ModelHandle>,
    header: Option<String>,
    _place: RecordingPermit,
}

impl ModelRecording {
    fn with_version<T>(&self, act: impl FnOnce(&LoadedModel) -> T) -> Option<T> {
        let snapshot = self.registry.snapshot();
        let mut ready = snapshot.ready();
        ready.find(|model| Arc::as_ptr(model) == self.model.as_ptr()).map(|model| act(model))
    }
}

impl TrafficRecording for ModelRecording {
    fn read(&mut self) -> Option<String> {
        if let Some(header) = self.header.take() {
            return Some(header);
        }
        self.with_version(LoadedModel::read_traffic_recording).flatten()
    }
}

impl Drop for ModelRecording {
    fn drop(&mut self) {
        self.with_version(LoadedModel::end_traffic_recording);
    }
}
