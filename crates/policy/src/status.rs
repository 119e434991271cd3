//! The reasons why requests, instances and sequences wait, as plain data for status pages and the
//! messages of failing tests.

use crate::ids::{InstanceId, SequenceKey};
use crate::time::Time;

/// A snapshot of a scheduler. Its size is bounded because it is taken under the driver's lock,
/// which requests wait for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SchedulerStatus {
    /// Levels with waiting requests, in service order, limited to the first
    /// [`SchedulerStatus::ROWS_MAX`].
    pub queues: Vec<PriorityLevelStatus>,
    /// Instances by id.
    pub lanes: Vec<InstanceStatus>,
    /// The sequence batcher's slots and backlog, if the model has one.
    pub sequences: Option<SequenceBatcherStatus>,
    /// True if new requests are refused because the model is unloading.
    pub draining: bool,
}

impl SchedulerStatus {
    /// The maximum number of entries of each kind.
    pub const ROWS_MAX: usize = 1000;
}

/// Requests waiting at one level.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PriorityLevelStatus {
    /// The level; 0 if the model has no levels.
    pub priority: u64,
    /// The number of waiting requests, including the delayed ones.
    pub waiting: usize,
    /// The number of requests that were moved behind the others when their timeouts expired.
    pub delayed: usize,
    /// The arrival time of the request that has waited longest.
    pub oldest: Time,
    /// The reason why the level's requests wait.
    pub waits_for: QueueWaitReason,
}

/// The reason why queued requests wait.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum QueueWaitReason {
    /// An instance must become free or be added.
    Lane,
    /// The batch must grow, or its delay must end.
    BatchDelay {
        /// The number of waiting rows.
        pending_batch_size: u32,
        /// The next preferred size, at which the batch would be dispatched immediately.
        next_preferred_batch_size: u32,
        /// The time at which the batch is dispatched as is; `None` means never.
        until: Option<Time>,
    },
    /// A free instance must receive a permit from the rate limiter.
    Permit,
    /// For tests: more requests must be queued first.
    Hold {
        /// The number of missing requests.
        missing: u32,
    },
}

/// The reason why one queued request waits.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RequestWaitReason {
    /// An instance must become free or be added.
    Lane,
    /// The request's batch must grow, or the batch's delay must end.
    BatchDelay,
    /// A free instance must receive a permit from the rate limiter.
    Permit,
    /// The request's sequence must get a slot.
    Slot,
    /// The preceding request of the sequence must execute first.
    Predecessor,
    /// For tests: more requests must be queued first.
    Hold,
}

/// Counts of the instances by state.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct InstanceStateCounts {
    /// The total number of instances.
    pub total: usize,
    /// The number of instances that are executing a batch.
    pub busy: usize,
    /// The start time of the batch that has been executing longest.
    pub busy_since: Option<Time>,
    /// True if one of the executing batches is the first of its instance.
    pub has_first_batch: bool,
}

impl From<QueueWaitReason> for RequestWaitReason {
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
pub enum InstanceStatus {
    /// The instance waits for a batch.
    Free {
        /// The instance.
        instance: InstanceId,
        /// The time at which the instance became free.
        since: Time,
    },
    /// The instance is executing a batch.
    Busy {
        /// The instance.
        instance: InstanceId,
        /// The time at which the instance became busy.
        since: Time,
    },
    /// The instance is executing its last batch.
    Removing {
        /// The instance.
        instance: InstanceId,
        /// The time at which the instance became busy.
        busy_since: Time,
    },
}

/// A sequence batcher's slots and backlog.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SequenceBatcherStatus {
    /// Slots that are occupied by a sequence, ordered by instance and number, limited to the first
    /// [`SchedulerStatus::ROWS_MAX`].
    pub slots: Vec<SequenceSlotStatus>,
    /// The number of slots that are occupied by a sequence.
    pub taken_slots: u64,
    /// The number of free slots.
    pub free_slots: u64,
    /// Sequences that wait for a slot, in order, limited to the first
    /// [`SchedulerStatus::ROWS_MAX`].
    pub backlog: Vec<WaitingSequenceStatus>,
    /// The number of sequences in the backlog.
    pub backlogged: usize,
}

/// A slot that is occupied by a sequence.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct SequenceSlotStatus {
    /// The instance of the slot.
    pub instance: InstanceId,
    /// The slot number.
    pub slot: u32,
    /// The sequence in the slot.
    pub sequence: SequenceKey,
    /// The number of the sequence's waiting requests.
    pub waiting: usize,
    /// The reason why the sequence waits.
    pub waits_for: SequenceSlotWaitReason,
}

/// The reason why a slot's sequence waits.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum SequenceSlotWaitReason {
    /// The sequence's next request must arrive, or its idle time must end.
    Request {
        /// The time at which the sequence counts as idle; `None` means never.
        idle_at: Option<Time>,
    },
    /// The execution of the sequence's request must end.
    Execution,
    /// The sequence's instance must become free.
    Lane,
    /// The batch must grow, or its delay must end.
    BatchDelay {
        /// The time at which the batch is dispatched as is; `None` means never.
        until: Option<Time>,
    },
    /// The sequence's instance, which is free, must receive a permit from the rate limiter.
    Permit,
    /// For tests: more requests must be queued first.
    Hold,
}

/// A sequence that waits for a slot.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct WaitingSequenceStatus {
    /// The sequence.
    pub sequence: SequenceKey,
    /// The number of the sequence's requests so far.
    pub waiting: usize,
    /// The time at which the sequence fails; `None` means never.
    pub fails_at: Option<Time>,
}
