//! The settings of a scheduler, taken from a validated model configuration.
//!
//! `galatea_config` has types of the same names that mirror `config.pbtxt`. The engine
//! converts them to these, in which defaults are resolved and times are nanoseconds.

use std::collections::BTreeMap;

/// Everything a scheduler is built from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SchedulingSpec {
    /// Maximum of rows in a batch; 0 means that the model does not batch, so each request
    /// is a batch of its own.
    pub max_batch_size: u32,
    /// The scheduler that forms the batches.
    pub mode: SchedulingMode,
    /// For tests: the number of requests that must have been queued since the start
    /// before the first dispatch; 0 is off. With a sequence batcher: the number of requests
    /// that must wait in slots.
    pub hold_until_queued: u32,
    /// For tests, with a sequence batcher, in addition: the number of requests that must
    /// wait in the backlog; 0 is off.
    pub hold_until_backlogged: u32,
}

/// The scheduler that forms the batches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SchedulingMode {
    /// The default scheduler: each request is a batch of its own, first come, first
    /// served.
    Default,
    /// The dynamic batcher joins whole requests.
    Dynamic(DynamicSpec),
    /// The deadline batcher joins whole requests as their deadlines and learned costs
    /// allow.
    Deadline(DeadlineSpec),
    /// The sequence batcher assigns each sequence to one instance and keeps its order.
    Sequence(SequenceSpec),
}

/// The deadline batcher's settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeadlineSpec {
    /// The time that a request may take from its arrival, unless its own deadline is earlier.
    pub objective_ns: u64,
    /// The levels and their policies, without [`TimeoutAction::Delay`]: a deadline can't be
    /// put off. The sizes and the delay of batches have no effect.
    pub queue: DynamicSpec,
}

/// The sequence batcher's settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SequenceSpec {
    /// The way in which the requests of an instance's sequences become batches.
    pub strategy: SequenceStrategy,
    /// The time that a sequence with a slot may have no request queued or in execution; 0 is
    /// unlimited.
    pub max_sequence_idle_ns: u64,
    /// True if each request is a sequence of its own, which runs again until its backend has
    /// finished it.
    pub iterative: bool,
}

/// The way in which the requests of an instance's sequences become batches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SequenceStrategy {
    /// A slot is a row of the batch; each instance has `max_batch_size` of them.
    Direct {
        /// The time that the oldest waiting request may wait for more ready slots.
        max_queue_delay_ns: u64,
        /// The number of ready slots at which a batch is dispatched before the delay is
        /// over; 0 is without delay.
        minimum_ready_slots: u32,
    },
    /// The next requests of an instance's sequences are batched dynamically.
    Oldest {
        /// Maximum of sequences with a slot of an instance; 0 means `max_batch_size`.
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
    /// Batch sizes that are dispatched at once when reached. Empty means the maximum
    /// alone; 0 and sizes above the maximum are ignored.
    pub preferred_batch_sizes: Vec<u32>,
    /// The time that the oldest request of a batch may wait for the batch to grow.
    pub max_queue_delay_ns: u64,
    /// Number of priority levels; 0 is one queue without levels.
    pub priority_levels: u64,
    /// The level of requests with no level, or with one out of range.
    pub default_priority_level: u64,
    /// The policy of levels without an own policy.
    pub default_queue_policy: QueuePolicy,
    /// Policies of single levels. Unused when `priority_levels` is 0.
    pub priority_queue_policies: BTreeMap<u64, QueuePolicy>,
    /// The padding of batches, with which requests of one shape class may have different lengths.
    /// Preferred sizes have no effect then.
    pub padding: Option<PaddingSpec>,
}

/// The bounds of padded batches.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PaddingSpec {
    /// The most elements of a batch of several requests: rows times the longest length;
    /// [`u64::MAX`] is unlimited.
    pub budget: u64,
}

/// Limits of time and number for the requests that wait at one level.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct QueuePolicy {
    /// The fate of a request whose timeout expires.
    pub timeout_action: TimeoutAction,
    /// The time that a request may wait; 0 is unlimited.
    pub default_timeout_ns: u64,
    /// True if a request's own timeout counts. It can only shorten the default, so with a default
    /// of 0 it has no effect.
    pub allow_timeout_override: bool,
    /// Maximum of waiting requests at this level; 0 is unlimited.
    pub max_queue_size: u32,
}

impl QueuePolicy {
    /// The time that a request with its own timeout may wait; 0 is unlimited.
    pub(crate) fn timeout_ns(&self, own_timeout_ns: u64) -> u64 {
        if self.allow_timeout_override && own_timeout_ns != 0 {
            self.default_timeout_ns.min(own_timeout_ns)
        } else {
            self.default_timeout_ns
        }
    }
}

/// The fate of a request whose timeout in the queue expires.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum TimeoutAction {
    /// It fails.
    #[default]
    Reject,
    /// It moves behind all requests of its level that have not expired.
    Delay,
}
