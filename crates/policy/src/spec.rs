//! A scheduler's settings, derived from a validated model configuration.
//!
//! `galatea_config` has types with the same names that mirror `config.pbtxt`. The engine converts
//! them to the types in this module, with defaults resolved and times in nanoseconds.

use std::collections::BTreeMap;

/// Everything needed to build a scheduler.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SchedulingSpec {
    /// The maximum number of rows in a batch. 0 means that the model doesn't batch, so each request
    /// executes alone.
    pub max_batch_size: u32,
    /// The scheduler that forms the batches.
    pub mode: SchedulingMode,
    /// For tests: the number of requests that must have been queued since startup before the first
    /// dispatch; 0 disables the hold. With a sequence batcher: the number of requests that must be
    /// waiting in slots.
    pub hold_until_queued: u32,
    /// For tests with a sequence batcher: the number of requests that must additionally be waiting
    /// in the backlog; 0 disables the hold.
    pub hold_until_backlogged: u32,
}

/// The scheduler that forms the batches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SchedulingMode {
    /// The default scheduler, which executes each request in a batch of its own, first come, first
    /// served.
    Default,
    /// The dynamic batcher, which combines whole requests.
    Dynamic(DynamicBatcherSpec),
    /// The deadline batcher, which combines whole requests as their deadlines and the learned costs
    /// allow.
    Deadline(DeadlineBatcherSpec),
    /// The sequence batcher, which assigns each sequence to one instance and preserves its order.
    Sequence(SequenceBatcherSpec),
}

/// The deadline batcher's settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeadlineBatcherSpec {
    /// The time from arrival within which a request must complete, unless its own deadline is
    /// earlier.
    pub objective_ns: u64,
    /// The levels and their policies, without [`TimeoutAction::Delay`] because deadlines can't be
    /// postponed. Batch sizes and delays have no effect.
    pub queue: DynamicBatcherSpec,
}

/// The sequence batcher's settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SequenceBatcherSpec {
    /// The strategy for batching the requests of an instance's sequences.
    pub strategy: SequenceStrategy,
    /// The maximum time for which a sequence with a slot may have no queued or executing request; 0
    /// means unlimited.
    pub max_sequence_idle_ns: u64,
    /// True if each request is a sequence of its own that runs again until its backend has finished
    /// it.
    pub iterative: bool,
}

/// The strategy for batching the requests of an instance's sequences.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SequenceStrategy {
    /// Each slot is a row of the batch, and each instance has `max_batch_size` slots.
    Direct {
        /// The time for which the oldest waiting request may wait for more ready slots.
        max_queue_delay_ns: u64,
        /// The number of ready slots at which a batch is dispatched before the delay is over; 0
        /// means no delay.
        minimum_ready_slots: u32,
    },
    /// The next requests of an instance's sequences are batched dynamically.
    Oldest {
        /// The maximum number of sequences with a slot on an instance; 0 means `max_batch_size`.
        max_candidate_sequences: u32,
        /// The same as [`DynamicBatcherSpec::preferred_batch_sizes`].
        preferred_batch_sizes: Vec<u32>,
        /// The same as [`DynamicBatcherSpec::max_queue_delay_ns`].
        max_queue_delay_ns: u64,
    },
}

/// The dynamic batcher's settings.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DynamicBatcherSpec {
    /// The batch sizes that are dispatched as soon as they are reached. Empty means only the
    /// maximum; 0 and sizes above the maximum are ignored.
    pub preferred_batch_sizes: Vec<u32>,
    /// The time for which the oldest request of a batch may wait for the batch to grow.
    pub max_queue_delay_ns: u64,
    /// The number of priority levels; 0 means a single queue without levels.
    pub priority_levels: u64,
    /// The level of requests that have no level or an out-of-range one.
    pub default_priority_level: u64,
    /// The policy of levels without their own policy.
    pub default_queue_policy: QueuePolicy,
    /// The policies of individual levels. Unused when `priority_levels` is 0.
    pub priority_queue_policies: BTreeMap<u64, QueuePolicy>,
    /// The padding of batches, which allows requests of the same shape class to have different
    /// lengths. Preferred sizes then have no effect.
    pub padding: Option<PaddingSpec>,
}

/// The limits of padded batches.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PaddingSpec {
    /// The maximum number of elements in a batch of several requests, which is rows times the
    /// longest length; [`u64::MAX`] means unlimited.
    pub budget: u64,
}

/// Limits on the waiting time and the number of requests at one level.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct QueuePolicy {
    /// The action taken when a request's timeout expires.
    pub timeout_action: TimeoutAction,
    /// The time for which a request may wait; 0 means unlimited.
    pub default_timeout_ns: u64,
    /// True if a request's own timeout is honoured. It can only shorten the default, so it has no
    /// effect if the default is 0.
    pub allow_timeout_override: bool,
    /// The maximum number of waiting requests at this level; 0 means unlimited.
    pub max_queue_size: u32,
}

impl QueuePolicy {
    /// Returns the time for which a request with its own timeout may wait; 0 means unlimited.
    pub(crate) fn timeout_ns(&self, own_timeout_ns: u64) -> u64 {
        if self.allow_timeout_override && own_timeout_ns != 0 {
            self.default_timeout_ns.min(own_timeout_ns)
        } else {
            self.default_timeout_ns
        }
    }
}

/// The action taken when a request's timeout in the queue expires.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum TimeoutAction {
    /// The request fails.
    #[default]
    Reject,
    /// The request moves behind all requests of its level that haven't expired.
    Delay,
}
