//! How a model wants its requests scheduled. Validated by the configuration.

use std::collections::BTreeMap;

/// Everything a scheduler is built from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SchedulingSpec {
    /// Rows that a batch may have; 0 means that the model does not batch, so
    /// that each request is a batch of its own.
    pub max_batch_size: u32,
    /// Who decides which requests run together.
    pub mode: SchedulingMode,
    /// For tests: dispatch nothing until that many requests have been queued
    /// since the start; 0 is off. With a sequence batcher: until that many
    /// requests wait in slots.
    pub hold_until_queued: u32,
    /// For tests: with a sequence batcher, and in addition, until that many
    /// requests wait in the backlog; 0 is off.
    pub hold_until_backlogged: u32,
}

/// Who decides which requests run together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SchedulingMode {
    /// The client: each request is a batch of its own, first come, first served.
    Default,
    /// The dynamic batcher joins whole requests.
    Dynamic(DynamicSpec),
    /// The sequence batcher leads each sequence to one instance, in order.
    Sequence(SequenceSpec),
}

/// The sequence batcher's settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SequenceSpec {
    /// How the requests of an instance's sequences become batches.
    pub strategy: SequenceStrategy,
    /// How long a sequence with a slot may have nothing queued and nothing in
    /// execution; 0 is for ever.
    pub max_sequence_idle_ns: u64,
    /// Whether each request is a sequence of its own, which runs again until its
    /// backend is done with it.
    pub iterative: bool,
}

/// How the requests of an instance's sequences become batches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SequenceStrategy {
    /// A slot is a row of the batch; each instance has `max_batch_size` of them.
    Direct {
        /// How long the longest waiting request may wait for more slots to get
        /// ready.
        max_queue_delay_ns: u64,
        /// With so many ready slots a batch goes before the delay is over; with
        /// 0 it always does.
        minimum_ready_slots: u32,
    },
    /// The next requests of an instance's sequences are batched dynamically.
    Oldest {
        /// Sequences that an instance takes on; 0 means `max_batch_size`.
        max_candidate_sequences: u32,
        /// As [`DynamicSpec::preferred_batch_sizes`].
        preferred_batch_sizes: Vec<u32>,
        /// As [`DynamicSpec::max_queue_delay_ns`].
        max_queue_delay_ns: u64,
    },
}

/// The dynamic batcher's settings.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DynamicSpec {
    /// Batch sizes that go at once when reached. Empty means the maximum alone;
    /// 0 and sizes above the maximum are ignored.
    pub preferred_batch_sizes: Vec<u32>,
    /// How long the oldest request of a batch may wait for the batch to grow.
    pub max_queue_delay_ns: u64,
    /// Number of priority levels; 0 is one queue without levels.
    pub priority_levels: u64,
    /// The level of requests that name none, or one out of range.
    pub default_priority_level: u64,
    /// The policy of levels that have none of their own.
    pub default_queue_policy: QueuePolicy,
    /// Policies of single levels. Unused when `priority_levels` is 0.
    pub priority_queue_policies: BTreeMap<u64, QueuePolicy>,
}

/// How long, and how many, requests may wait at one level.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct QueuePolicy {
    /// What happens to a request whose time is up.
    pub timeout_action: TimeoutAction,
    /// How long a request may wait; 0 is for ever.
    pub default_timeout_ns: u64,
    /// Whether a request's own timeout counts. It can only shorten the default,
    /// so with a default of 0 it has no effect.
    pub allow_timeout_override: bool,
    /// Requests that may wait at this level; 0 is unlimited.
    pub max_queue_size: u32,
}

impl QueuePolicy {
    /// How long a request with its own timeout may wait; 0 is for ever.
    pub(crate) fn timeout_ns(&self, own_timeout_ns: u64) -> u64 {
        if self.allow_timeout_override && own_timeout_ns != 0 {
            self.default_timeout_ns.min(own_timeout_ns)
        } else {
            self.default_timeout_ns
        }
    }
}

/// What happens to a request whose time in the queue is up.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum TimeoutAction {
    /// It fails.
    #[default]
    Reject,
    /// It moves behind all requests of its level that have time left.
    Delay,
}
