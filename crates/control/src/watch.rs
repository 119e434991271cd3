//! The server now, for those who look on: queues, instances and the latest
//! executions of each.

use std::fmt;
use std::time::Duration;

use galatea_gate::access::{Pass, api};

use crate::ModelStatistics;

/// The maximum number of model versions that watchers are shown: more than a page shows well.
pub const WATCHED_VERSIONS_MAX: usize = 256;

/// The server, as doors see it that show what happens in it.
pub trait Watch: fmt::Debug + Send + Sync {
    /// Begins to record executions, until the returned value is dropped. `None` while another
    /// recording goes on: its owner shares what it reads.
    fn begin(&self, pass: Pass<api::Statistics>) -> Option<Box<dyn Recording>>;

    /// Returns the counters of the versions that serve, as many as are shown.
    fn counters(&self) -> Vec<ModelStatistics>;

    /// Returns true if clients may load and unload models, as far as the control mode decides.
    fn allows_model_control(&self) -> bool;
}

/// Executions that are recorded as long as this lives.
pub trait Recording: Send {
    /// Reads events since the last call, and the present state. Takes long with many models.
    fn read(&mut self) -> Reading;
}

/// The result of one look at a recording.
#[derive(Debug, Default)]
pub struct Reading {
    /// The time of the reading, since the recording began.
    pub at: Duration,
    /// Versions that serve, as many as are shown.
    pub versions: Vec<WatchedVersion>,
    /// The number of further versions.
    pub omitted: usize,
}

/// A version of a model.
#[derive(Debug, Default)]
pub struct WatchedVersion {
    /// Its counters, with its name and number.
    pub statistics: ModelStatistics,
    /// Its platform or, without one, its backend.
    pub platform: String,
    /// The maximum batch size; 0 for a model that does not batch.
    pub max_batch_size: u32,
    /// The requests that wait.
    pub queue: WatchedQueue,
    /// `None` without a sequence batcher.
    pub sequences: Option<WatchedSequences>,
    /// Its instances, in order.
    pub instances: Vec<WatchedInstance>,
}

/// The requests of a version that wait.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedQueue {
    /// Their number, over all priorities.
    pub waiting: usize,
    /// Since when the oldest of them waits.
    pub oldest: Duration,
    /// The event that the first of them waits for, as the scheduler's status names it.
    pub waits_for: Option<&'static str>,
}

/// The sequences of a version.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedSequences {
    /// Slots that hold a sequence.
    pub taken_slots: u64,
    /// Slots that hold none.
    pub free_slots: u64,
    /// Sequences that wait for a slot.
    pub backlog: usize,
}

/// An instance of a version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedInstance {
    /// Its name.
    pub name: String,
    /// The execution that goes on.
    pub current: Option<WatchedExecution>,
    /// The executions that have ended, by time.
    pub ended: Vec<WatchedExecution>,
    /// The number of executions that were not kept, because there was no room for them.
    pub lost: u64,
}

/// An execution, or several short ones in a row.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedExecution {
    /// When its batch was closed, since the recording began.
    pub begin: Duration,
    /// When its instance was free again; the time of the reading if it goes on.
    pub end: Duration,
    /// The number of executions.
    pub count: u32,
    /// The sum of their batch sizes.
    pub batch_size: u32,
    /// The sum of the times that they took.
    pub busy: Duration,
    /// The time that the request waited that waited longest.
    pub waited: Duration,
    /// Why their batches were closed when they were.
    pub reasons: CloseReasons,
}

/// A set of the reasons for which batches are closed, by their numbers.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct CloseReasons(u16);

impl CloseReasons {
    /// The set of this one.
    #[must_use]
    pub const fn only(number: usize) -> Self {
        Self(if number < 16 { 1 << number } else { 0 })
    }

    /// The reasons of both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The numbers of its reasons, ascending, as the places of bits.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }
}
