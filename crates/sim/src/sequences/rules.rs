//! A sequence batcher's settings, with defaults resolved.

use galatea_policy::{SchedulingMode, SequenceBatcherSpec, SequenceStrategy, Time};

use crate::dynamic_rules::DynamicRules;
use crate::setup::{SchedulerSetup, oldest_settings};

/// The idle time left to a sequence that gets its slot late.
pub(super) const SLOT_GRACE_NS: u64 = 50_000_000;

#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// The number of slots per instance.
    pub(crate) slots: usize,
    pub(crate) strategy: Strategy,
    pub(crate) iterative: bool,
    /// The number of requests in slots that the test hook waits for.
    pub(crate) hold_in_slots: usize,
    /// The number of requests in the backlog that the test hook waits for.
    pub(crate) hold_in_backlog: usize,
    idle_ns: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum Strategy {
    Direct { delay_ns: u64, minimum_ready: usize },
    Oldest(DynamicRules),
}

impl Rules {
    pub(crate) fn new(setup: &SchedulerSetup) -> Self {
        let SchedulingMode::Sequence(SequenceBatcherSpec {
            strategy,
            max_sequence_idle_ns,
            iterative,
        }) = &setup.spec.mode
        else {
            unreachable!("the stateless schedulers have a ledger of their own")
        };
        let rows = count(setup.spec.max_batch_size.max(1));
        let (slots, strategy) = match strategy {
            SequenceStrategy::Direct { max_queue_delay_ns, minimum_ready_slots } => {
                let minimum_ready = count(*minimum_ready_slots);
                (rows, Strategy::Direct { delay_ns: *max_queue_delay_ns, minimum_ready })
            }
            SequenceStrategy::Oldest {
                max_candidate_sequences,
                preferred_batch_sizes,
                max_queue_delay_ns,
            } => {
                let settings = oldest_settings(preferred_batch_sizes, *max_queue_delay_ns);
                let dynamic_rules = DynamicRules::new(setup.spec.max_batch_size, &settings);
                let candidates = count(*max_candidate_sequences);
                (if candidates == 0 { rows } else { candidates }, Strategy::Oldest(dynamic_rules))
            }
        };
        Rules {
            slots,
            strategy,
            iterative: *iterative,
            hold_in_slots: count(setup.spec.hold_until_queued),
            hold_in_backlog: count(setup.spec.hold_until_backlogged),
            idle_ns: *max_sequence_idle_ns,
        }
    }

    /// Returns the end of the idle time of a sequence that has had a slot since `slot_since`.
    pub(crate) fn idle_at(&self, arrived_at: Time, slot_since: Time) -> Option<Time> {
        let least = slot_since.saturating_add(self.idle_ns.min(SLOT_GRACE_NS));
        later(arrived_at, self.idle_ns).map(|end| end.max(least))
    }
}

/// Returns the time plus `nanoseconds`; `None` if `nanoseconds` is 0 or the sum reaches the end of
/// time.
pub(crate) fn later(time: Time, nanoseconds: u64) -> Option<Time> {
    if nanoseconds == 0 {
        return None;
    }
    Some(time.saturating_add(nanoseconds)).filter(|time| *time != Time::MAX)
}

fn count(number: u32) -> usize {
    usize::try_from(number).expect("the simulator runs on 32 bits or more")
}
