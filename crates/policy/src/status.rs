//! Why things wait: plain data for status pages and messages of failing tests.

use crate::ids::{InstanceId, SequenceKey};
use crate::time::Time;

/// A scheduler's state in words. Bounded, because it is taken under the driver's
/// lock while requests wait for that.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SchedulerStatus {
    /// Levels where requests wait, served in this order: the first
    /// [`SchedulerStatus::ROWS_MAX`].
    pub queues: Vec<QueueStatus>,
    /// Instances by id.
    pub lanes: Vec<LaneStatus>,
    /// The sequence batcher's slots and backlog, if the model has one.
    pub sequences: Option<SequencesStatus>,
    /// Whether new requests are refused because the model unloads.
    pub draining: bool,
}

impl SchedulerStatus {
    /// So many rows of a kind are shown at most.
    pub const ROWS_MAX: usize = 1000;
}

/// Requests waiting at one level.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct QueueStatus {
    /// The level; 0 if the model has none.
    pub priority: u64,
    /// Requests that wait, with those whose time was up and that were moved back.
    pub waiting: usize,
    /// Of these, requests moved behind the others because their time was up.
    pub delayed: usize,
    /// When the longest waiting request arrived.
    pub oldest: Time,
    /// What must happen before the level's requests run.
    pub waits_for: QueueWaitReason,
}

/// What queued requests wait for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum QueueWaitReason {
    /// An instance to become free, or to be added.
    Lane,
    /// The batch to grow, or a time to come.
    BatchDelay {
        /// Rows that wait.
        pending_batch_size: u32,
        /// The preferred size that would go at once.
        next_preferred_batch_size: u32,
        /// When the batch goes as it is; none if that is never.
        until: Option<Time>,
    },
    /// The rate limiter's permit for an instance that is free.
    Permit,
    /// For tests: further requests that must be queued first.
    Hold {
        /// How many.
        missing: u32,
    },
}

/// What an instance does.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum LaneStatus {
    /// It waits for a batch.
    Free {
        /// Which instance.
        instance: InstanceId,
        /// Since when.
        since: Time,
    },
    /// It executes a batch.
    Busy {
        /// Which instance.
        instance: InstanceId,
        /// Since when.
        since: Time,
    },
    /// It executes its last batch.
    Removing {
        /// Which instance.
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
    /// How many there are.
    pub taken_slots: u64,
    /// Slots that hold none.
    pub free_slots: u64,
    /// Sequences that wait for a slot, in order: the first [`SchedulerStatus::ROWS_MAX`].
    pub backlog: Vec<BacklogStatus>,
    /// How many there are.
    pub backlogged: usize,
}

/// A slot that holds a sequence.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct SlotStatus {
    /// Whose slot.
    pub instance: InstanceId,
    /// Its number.
    pub slot: u32,
    /// The sequence in it.
    pub sequence: SequenceKey,
    /// Its requests that wait.
    pub waiting: usize,
    /// What it waits for.
    pub waits_for: SlotWaitReason,
}

/// What a slot's sequence waits for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum SlotWaitReason {
    /// Its next request; without one, it ends then.
    Request {
        /// When it counts as idle; none if that is never.
        idle_at: Option<Time>,
    },
    /// The end of its request's execution.
    Execution,
    /// Its instance to become free.
    Lane,
    /// Its batch to grow, or a time to come.
    BatchDelay {
        /// When the batch goes as it is; none if that is never.
        until: Option<Time>,
    },
    /// The rate limiter's permit for its instance, which is free.
    Permit,
    /// For tests: further requests that must be queued first.
    Hold,
}

/// A sequence that waits for a slot.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct BacklogStatus {
    /// The sequence.
    pub sequence: SequenceKey,
    /// Its requests so far.
    pub waiting: usize,
    /// When it fails; none if that is never.
    pub fails_at: Option<Time>,
}
