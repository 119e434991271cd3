//! The server's current activity, for observers: queues, instances and the latest executions.

use std::fmt;
use std::time::Duration;

use galatea_gate::access::{AccessPass, api};

use crate::ModelStatistics;

/// The maximum number of model versions shown to observers; a page can't display more versions
/// legibly.
pub const WATCHED_VERSIONS_MAX: usize = 256;

/// The server as seen by doors that show its activity.
pub trait ActivityMonitor: fmt::Debug + Send + Sync {
    /// Records executions until the returned value is dropped. Returns `None` while another
    /// recording is in progress: the owner of that recording shares its readings.
    fn begin(&self, pass: AccessPass<api::Statistics>) -> Option<Box<dyn ActivityRecording>>;

    /// Returns the counters of the versions in service, at most [`WATCHED_VERSIONS_MAX`].
    fn counters(&self) -> Vec<ModelStatistics>;

    /// Returns true if the control mode lets clients load and unload models.
    fn allows_model_control(&self) -> bool;

    /// Returns the memory of models that are loaded on demand, and its changes whose numbers are at
    /// least `from`. `None` if models aren't loaded on demand.
    fn residency(&self, from: u64) -> Option<ResidencyReading> {
        let _ = from;
        None
    }
}

/// The memory of models that are loaded on demand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResidencyReading {
    /// The time of the reading, relative to the server's start.
    pub at: Duration,
    /// The maximum memory of all models together, in bytes.
    pub limit_bytes: u64,
    /// The memory of all models together, in bytes.
    pub used_bytes: u64,
    /// The latest changes, oldest first. There is a maximum, beyond which old ones are dropped.
    pub changes: Vec<ResidencyChange>,
}

/// A change of the models in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResidencyChange {
    /// The number of the change. Each change has a larger number than earlier ones.
    pub number: u64,
    /// The time of the change, relative to the server's start.
    pub at: Duration,
    /// The model.
    pub model: String,
    /// The kind of the change.
    pub kind: ResidencyChangeKind,
    /// The model's memory, in bytes.
    pub bytes: u64,
    /// The reason in words; empty if there is none to tell.
    pub reason: String,
}

/// The kind of a change of the models in memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ResidencyChangeKind {
    /// A load began.
    LoadBegan,
    /// The model was loaded.
    Loaded,
    /// The load failed.
    LoadFailed,
    /// The model went out of service.
    UnloadBegan,
    /// The model's memory is free.
    Unloaded,
}

impl ResidencyChangeKind {
    /// The kind as a word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LoadBegan => "load",
            Self::Loaded => "loaded",
            Self::LoadFailed => "failed",
            Self::UnloadBegan => "unload",
            Self::Unloaded => "unloaded",
        }
    }
}

/// A recording of executions, which lasts until it is dropped.
pub trait ActivityRecording: Send {
    /// Reads the events since the last call and the current state. May take long with many models.
    fn read(&mut self) -> ActivityReading;
}

/// The result of one read of a recording.
#[derive(Debug, Default)]
pub struct ActivityReading {
    /// The time of the reading, relative to the start of the recording.
    pub at: Duration,
    /// The versions in service, at most [`WATCHED_VERSIONS_MAX`].
    pub versions: Vec<VersionActivity>,
    /// The number of versions not shown.
    pub omitted: usize,
}

/// A model version.
#[derive(Debug, Default)]
pub struct VersionActivity {
    /// The version's counters, with its name and number.
    pub statistics: ModelStatistics,
    /// The platform or, if there is none, the backend.
    pub platform: String,
    /// The maximum batch size; 0 for a model that does not batch.
    pub max_batch_size: u32,
    /// The waiting requests.
    pub queue: QueueActivity,
    /// The sequences; `None` if the model has no sequence batcher.
    pub sequences: Option<SequenceActivity>,
    /// The version's instances, in order.
    pub instances: Vec<InstanceActivity>,
}

/// The waiting requests of a version.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueActivity {
    /// The number of waiting requests, over all priorities.
    pub waiting: usize,
    /// The age of the oldest waiting request.
    pub oldest: Duration,
    /// The event that the first waiting request waits for, worded as in the scheduler report.
    pub waits_for: Option<&'static str>,
}

/// The sequences of a version.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SequenceActivity {
    /// The number of slots that hold a sequence.
    pub taken_slots: u64,
    /// The number of free slots.
    pub free_slots: u64,
    /// The number of sequences that wait for a slot.
    pub backlog: usize,
}

/// An instance of a version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceActivity {
    /// The instance's name.
    pub name: String,
    /// The execution in progress.
    pub current: Option<ExecutionInterval>,
    /// The executions that have ended, in time order.
    pub ended: Vec<ExecutionInterval>,
    /// The number of executions that were dropped for lack of room.
    pub lost: u64,
}

/// An execution, or several short ones in a row.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutionInterval {
    /// The time at which the batch was closed, relative to the start of the recording.
    pub begin: Duration,
    /// The time at which the instance was free again; while the execution is in progress, the time
    /// of the reading.
    pub end: Duration,
    /// The number of executions.
    pub count: u32,
    /// The sum of their batch sizes.
    pub batch_size: u32,
    /// The sum of their durations.
    pub busy: Duration,
    /// The longest wait of any request.
    pub waited: Duration,
    /// The reasons why the batches were closed.
    pub reasons: BatchCloseReasons,
}

/// A set of reasons for closing a batch, by number.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchCloseReasons(u16);

impl BatchCloseReasons {
    /// The set that contains only this reason.
    #[must_use]
    pub const fn only(number: usize) -> Self {
        Self(if number < 16 { 1 << number } else { 0 })
    }

    /// The union of the two sets.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The set as a bit mask: each reason's number is the position of its bit.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }
}
