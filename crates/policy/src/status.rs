//! Reasons for which requests, instances and sequences wait: plain data for status pages and
//! messages of failing tests.

use crate::ids::{InstanceId, SequenceKey};
use crate::time::Time;

/// A snapshot of a scheduler. Its size is bounded, because it is taken under the driver's
/// lock, for which requests wait.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SchedulerStatus {
    /// Levels with waiting requests, in the order of service: the first
    /// [`SchedulerStatus::ROWS_MAX`].
    pub queues: Vec<LevelStatus>,
    /// Instances by id.
    pub lanes: Vec<LaneStatus>,
    /// The sequence batcher's slots and backlog, if the model has one.
    pub sequences: Option<SequencesStatus>,
    /// True if new requests are refused because the model unloads.
    pub draining: bool,
}

impl SchedulerStatus {
    /// Maximum of rows of each kind.
    pub const ROWS_MAX: usize = 1000;
}

/// Requests waiting at one level.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct LevelStatus {
    /// The level; 0 if the model has none.
    pub priority: u64,
    /// Number of waiting requests, with the delayed ones.
    pub waiting: usize,
    /// Number of requests that were moved behind the others when their timeout expired.
    pub delayed: usize,
    /// When the longest waiting request arrived.
    pub oldest: Time,
    /// The reason for which the level's requests wait.
    pub waits_for: QueueWaitReason,
}

/// The reason for which queued requests wait.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum QueueWaitReason {
    /// An instance to become free, or to be added.
    Lane,
    /// The batch to grow, or the end of its delay.
    BatchDelay {
        /// Rows that wait.
        pending_batch_size: u32,
        /// The next preferred size, which would be dispatched at once.
        next_preferred_batch_size: u32,
        /// When the batch is dispatched as it is; none if that is never.
        until: Option<Time>,
    },
    /// The rate limiter's permit for an instance that is free.
    Permit,
    /// For tests: further requests that must be queued first.
    Hold {
        /// Their number.
        missing: u32,
    },
}

/// The reason for which one queued request waits.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RequestWait {
    /// An instance to become free, or to be added.
    Lane,
    /// Its batch to grow, or the end of the batch's delay.
    BatchDelay,
    /// The rate limiter's permit for an instance that is free.
    Permit,
    /// A slot for its sequence.
    Slot,
    /// The request of its sequence that is in front of it.
    Predecessor,
    /// For tests: further requests that must be queued first.
    Hold,
}

/// The instances, in numbers.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct LaneCounts {
    /// All of them.
    pub total: usize,
    /// Those that execute a batch.
    pub busy: usize,
    /// Since when the longest of these batches is executed.
    pub busy_since: Option<Time>,
    /// True if one of these batches is the first of its instance.
    pub has_first_batch: bool,
}

impl From<QueueWaitReason> for RequestWait {
    fn from(reason: QueueWaitReason) -> Self {
        match reason {
            QueueWaitReason::Lane => Self::Lane,
            QueueWaitReason::BatchDelay { .. } => Self::BatchDelay,
            QueueWaitReason::Permit => Self::Permit,
            QueueWaitReason::Hold { .. } => Self::Hold,
        }
    }
}

/// The state of an instance.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum LaneStatus {
    /// It waits for a batch.
    Free {
        /// The instance.
        instance: InstanceId,
        /// Since when.
        since: Time,
    },
    /// It executes a batch.
    Busy {
        /// The instance.
        instance: InstanceId,
        /// Since when.
        since: Time,
    },
    /// It executes its last batch.
    Removing {
        /// The instance.
        instance: InstanceId,
        /// Since when.
        busy_since: Time,
    },
}

/// A sequence batcher's slots and backlog.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SequencesStatus {
    /// Slots that hold a sequence, by instance and number: the first
    /// [`SchedulerStatus::ROWS_MAX`].
    pub slots: Vec<SlotStatus>,
    /// Number of slots that hold a sequence.
    pub taken_slots: u64,
    /// Number of slots that hold none.
    pub free_slots: u64,
    /// Sequences that wait for a slot, in order: the first [`SchedulerStatus::ROWS_MAX`].
    pub backlog: Vec<WaitingSequenceStatus>,
    /// Number of sequences in the backlog.
    pub backlogged: usize,
}

/// A slot that holds a sequence.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct SlotStatus {
    /// The instance of the slot.
    pub instance: InstanceId,
    /// Its number.
    pub slot: u32,
    /// The sequence in it.
    pub sequence: SequenceKey,
    /// Number of its waiting requests.
    pub waiting: usize,
    /// The reason for which it waits.
    pub waits_for: SlotWaitReason,
}

/// The reason for which a slot's sequence waits.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum SlotWaitReason {
    /// Its next request, or the end of its idle time.
    Request {
        /// When it counts as idle; none if that is never.
        idle_at: Option<Time>,
    },
    /// The end of its request's execution.
    Execution,
    /// Its instance to become free.
    Lane,
    /// Its batch to grow, or the end of its delay.
    BatchDelay {
        /// When the batch is dispatched as it is; none if that is never.
        until: Option<Time>,
    },
    /// The rate limiter's permit for its instance, which is free.
    Permit,
    /// For tests: further requests that must be queued first.
    Hold,
}

/// A sequence that waits for a slot.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct WaitingSequenceStatus {
    /// The sequence.
    pub sequence: SequenceKey,
    /// Number of its requests so far.
    pub waiting: usize,
    /// When it fails; none if that is never.
    pub fails_at: Option<Time>,
}
