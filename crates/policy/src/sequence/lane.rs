//! What one instance's sequences have to run, and the former that joins it.

use crate::former::{DynamicFormer, Outlook, PositionalFormer, Ready, Verdict};
use crate::ids::RequestInfo;
use crate::queue::PolicyQueue;
use crate::sequence::requests::{Request, RequestIndex, Requests};
use crate::sequence::slots::Slot;
use crate::spec::{DynamicSpec, SequenceStrategy};
use crate::time::Time;

#[derive(Clone, Debug)]
pub(super) struct SequenceLane {
    eligible: Eligible,
    /// What its batch waits for, since it was judged last.
    pub(super) waits: Option<LaneWait>,
}

/// A batch waits to grow.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct LaneWait {
    /// When it goes as it is; none if that is never.
    pub(super) until: Option<Time>,
}

/// The first requests of the sequences that may run: at most one of each.
#[derive(Clone, Debug)]
enum Eligible {
    Direct(PositionalFormer<RequestIndex>),
    Oldest { queue: Box<PolicyQueue>, former: DynamicFormer },
}

impl SequenceLane {
    pub(super) fn new(strategy: &SequenceStrategy, max_batch_size: u32) -> Self {
        let eligible = match strategy {
            SequenceStrategy::Direct { max_queue_delay_ns, minimum_ready_slots } => {
                let delay_ns = *max_queue_delay_ns;
                Eligible::Direct(PositionalFormer::new(delay_ns, *minimum_ready_slots))
            }
            SequenceStrategy::Oldest { preferred_batch_sizes, max_queue_delay_ns, .. } => {
                let dynamic = DynamicSpec {
                    preferred_batch_sizes: preferred_batch_sizes.clone(),
                    max_queue_delay_ns: *max_queue_delay_ns,
                    ..DynamicSpec::default()
                };
                Eligible::Oldest {
                    queue: Box::new(PolicyQueue::unlimited()),
                    former: DynamicFormer::new(max_batch_size, &dynamic),
                }
            }
        };
        SequenceLane { eligible, waits: None }
    }

    /// The request is the next of the sequence in that slot.
    pub(super) fn insert(&mut self, slot: Slot, index: RequestIndex, request: &Request, now: Time) {
        match &mut self.eligible {
            Eligible::Direct(former) => {
                let Request { waits_since, batch_key, .. } = *request;
                former.insert(slot.number, Ready { request: index, waits_since, batch_key });
            }
            Eligible::Oldest { queue, .. } => {
                let ticket = RequestInfo {
                    key: request.key,
                    batch_size: 1,
                    batch_key: request.batch_key,
                    priority: 0,
                    timeout_ns: 0,
                    sequence: None,
                };
                queue.enqueue(ticket, now).expect("the queue has no limit");
            }
        }
    }

    /// The request, which was the next of the sequence in that slot, is gone.
    pub(super) fn remove(&mut self, slot: Slot, request: &Request) {
        match &mut self.eligible {
            Eligible::Direct(former) => former.remove(slot.number),
            Eligible::Oldest { queue, .. } => {
                let waiting = queue.find(request.key).expect("an eligible request waits");
                queue.take(waiting);
            }
        }
    }

    pub(super) fn judge(&mut self, now: Time, outlook: Outlook) -> Verdict {
        let verdict = match &mut self.eligible {
            Eligible::Direct(former) => former.judge(now, outlook),
            Eligible::Oldest { queue, former } => former.judge(queue, now, outlook),
        };
        self.waits = match verdict {
            Verdict::Wait { until, .. } => Some(LaneWait { until }),
            Verdict::Nothing | Verdict::Close { .. } => None,
        };
        verdict
    }

    /// Takes out the batch that the verdict closed; none stands for padding.
    pub(super) fn take(&mut self, requests: usize, known: &Requests) -> Vec<Option<RequestIndex>> {
        match &mut self.eligible {
            Eligible::Direct(former) => former.take(),
            Eligible::Oldest { queue, .. } => (0..requests)
                .map(|_| {
                    let first = queue.first().expect("the former counted eligible requests");
                    known.find(queue.take(first).key)
                })
                .collect(),
        }
    }
}
