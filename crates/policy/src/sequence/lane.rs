//! The eligible requests of an instance's sequences, and their batcher.

use crate::batcher::{BatchDecision, DirectBatcher, DynamicBatcher, Intake, ReadyRequest};
use crate::ids::RequestInfo;
use crate::queue::PolicyQueue;
use crate::sequence::requests::{Request, RequestIndex, Requests};
use crate::sequence::slots::Slot;
use crate::spec::{DynamicBatcherSpec, SequenceStrategy};
use crate::time::Time;

/// The eligible requests of an instance, and the reason why its next batch waits.
#[derive(Clone, Debug)]
pub(super) struct SequenceLane {
    eligible: EligibleRequests,
    /// The batch's wait according to the latest decision.
    pub(super) waiting: Option<BatchWait>,
}

/// The wait of a batch that may still grow.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct BatchWait {
    /// The time at which the batch is dispatched as is; `None` means never.
    pub(super) until: Option<Time>,
}

/// The eligible requests, at most one per sequence.
#[derive(Clone, Debug)]
enum EligibleRequests {
    Direct(DirectBatcher<RequestIndex>),
    Oldest { queue: Box<PolicyQueue>, batcher: DynamicBatcher },
}

impl SequenceLane {
    pub(super) fn new(strategy: &SequenceStrategy, max_batch_size: u32) -> Self {
        let eligible = match strategy {
            SequenceStrategy::Direct { max_queue_delay_ns, minimum_ready_slots } => {
                let delay_ns = *max_queue_delay_ns;
                EligibleRequests::Direct(DirectBatcher::new(delay_ns, *minimum_ready_slots))
            }
            SequenceStrategy::Oldest { preferred_batch_sizes, max_queue_delay_ns, .. } => {
                let dynamic = DynamicBatcherSpec {
                    preferred_batch_sizes: preferred_batch_sizes.clone(),
                    max_queue_delay_ns: *max_queue_delay_ns,
                    ..DynamicBatcherSpec::default()
                };
                EligibleRequests::Oldest {
                    queue: Box::new(PolicyQueue::unlimited()),
                    batcher: DynamicBatcher::new(max_batch_size, &dynamic),
                }
            }
        };
        SequenceLane { eligible, waiting: None }
    }

    /// Adds the eligible request of the sequence in that slot.
    pub(super) fn insert(&mut self, slot: Slot, index: RequestIndex, request: &Request, now: Time) {
        match &mut self.eligible {
            EligibleRequests::Direct(batcher) => {
                let Request { waits_since, shape_class, .. } = *request;
                batcher
                    .insert(slot.number, ReadyRequest { request: index, waits_since, shape_class });
            }
            EligibleRequests::Oldest { queue, .. } => {
                let info = RequestInfo {
                    key: request.key,
                    batch_size: 1,
                    shape_class: request.shape_class,
                    priority: 0,
                    deadline: Time::MAX,
                    length: 0,
                    timeout_ns: 0,
                    sequence: None,
                };
                queue.enqueue(info, now).expect("the queue has no limit");
            }
        }
    }

    /// Removes the eligible request of the sequence in that slot.
    pub(super) fn remove(&mut self, slot: Slot, request: &Request) {
        match &mut self.eligible {
            EligibleRequests::Direct(batcher) => batcher.remove(slot.number),
            EligibleRequests::Oldest { queue, .. } => {
                let waiting = queue.find(request.key).expect("an eligible request waits");
                queue.take(waiting);
            }
        }
    }

    pub(super) fn decide(&mut self, now: Time, intake: Intake) -> BatchDecision {
        let decision = match &mut self.eligible {
            EligibleRequests::Direct(batcher) => batcher.decide(now, intake),
            EligibleRequests::Oldest { queue, batcher } => batcher.decide(queue, now, intake),
        };
        self.waiting = match decision {
            BatchDecision::Wait { until, .. } => Some(BatchWait { until }),
            BatchDecision::Empty | BatchDecision::Close { .. } => None,
        };
        decision
    }

    /// Removes and returns the batch that the decision closed; `None` is padding.
    pub(super) fn take_batch(
        &mut self,
        requests: usize,
        known: &Requests,
    ) -> Vec<Option<RequestIndex>> {
        match &mut self.eligible {
            EligibleRequests::Direct(batcher) => batcher.take_batch(),
            EligibleRequests::Oldest { queue, .. } => (0..requests)
                .map(|_| {
                    let first = queue.first().expect("the batcher counted eligible requests");
                    known.find(queue.take(first).key)
                })
                .collect(),
        }
    }
}
