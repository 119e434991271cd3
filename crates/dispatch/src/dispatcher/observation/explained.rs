//! The queue waits of explained requests, and the batches in which they leave the queue.
//!
//! A dispatcher has this view only while such a request waits. The reason for a wait comes from the
//! scheduler's status.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use galatea_explain::{
    BatchFacts, LatencyExplanation, Milestone, QueueSnapshot, QueueWaitTracker, WaitReason,
    WaitTimes,
};
use galatea_infer::PendingRequest;
use galatea_policy::{CloseReason, RequestKey, RequestWaitReason, Time};
use galatea_stdx::len64;

use super::{ClosingBatch, Observation, View, WaitingRequests};

/// The maximum number of a model's explained sequence requests whose waits are distinguished at a
/// time. Each has its own reason to wait, so each scheduler step examines all of them. For
/// additional requests, only the total wait is known.
const EXPLAINED_IN_SEQUENCES_MAX: usize = 64;

/// The waiting explained requests.
#[derive(Debug)]
pub(in crate::dispatcher) struct ExplainedRequests {
    /// The zero point of the scheduler's time.
    epoch: Instant,
    clocks: Clocks,
    waiting: BTreeMap<RequestKey, Arc<LatencyExplanation>>,
}

/// The clocks. Without a sequence batcher, all requests wait for the same reason.
#[derive(Debug)]
enum Clocks {
    Shared(QueueWaitTracker),
    /// A clock for each of the first [`EXPLAINED_IN_SEQUENCES_MAX`] requests.
    Each(BTreeMap<RequestKey, QueueWaitTracker>),
}

/// A dispatcher's batching mode, to the extent that explanations need it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(in crate::dispatcher) enum Batching {
    Arrivals,
    Deadlines,
    Sequences,
}

impl Batching {
    /// The name that explanations use for a wait in the scheduler.
    pub(in crate::dispatcher) const fn wait(self, wait: RequestWaitReason) -> WaitReason {
        match wait {
            RequestWaitReason::Lane => WaitReason::Instance,
            RequestWaitReason::BatchDelay => match self {
                Self::Arrivals | Self::Sequences => WaitReason::BatchDelay,
                Self::Deadlines => WaitReason::Window,
            },
            RequestWaitReason::Permit => WaitReason::Permit,
            RequestWaitReason::Slot => WaitReason::Slot,
            RequestWaitReason::Predecessor => WaitReason::Predecessor,
            RequestWaitReason::Hold => WaitReason::Hold,
        }
    }
}

/// The explanation of a request, if its client asked for one.
pub(in crate::dispatcher) fn explanation(
    request: &PendingRequest,
) -> Option<Arc<LatencyExplanation>> {
    request.trace().and_then(|trace| LatencyExplanation::from_trace(trace))
}

impl View for ExplainedRequests {
    fn observe(&mut self, now: Time, observation: &Observation<'_>) {
        match observation {
            Observation::Queued(queued) => {
                if let Some((explanation, found)) = &queued.explained {
                    self.arrive(queued.info.key, now, explanation.clone(), *found);
                }
            }
            Observation::Closed(closing) => self.close(now, closing),
            Observation::Failed(key, _) => {
                if let Some((explanation, waits)) = self.leave(*key, now) {
                    explanation.update(|known| known.waits = waits);
                }
            }
            Observation::Stepped(waiting) => self.step(now, waiting),
            Observation::Dropped => self.waiting.clear(),
            Observation::Freed(_) => {}
        }
    }

    /// Returns true if no explained request is waiting.
    fn has_ended(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl ExplainedRequests {
    pub(in crate::dispatcher) fn new(epoch: Instant, now: Time, batching: Batching) -> Self {
        let clocks = match batching {
            Batching::Arrivals | Batching::Deadlines => {
                Clocks::Shared(QueueWaitTracker::new(now.0, WaitReason::Instance))
            }
            Batching::Sequences => Clocks::Each(BTreeMap::new()),
        };
        Self { epoch, clocks, waiting: BTreeMap::new() }
    }

    fn arrive(
        &mut self,
        key: RequestKey,
        now: Time,
        explanation: Arc<LatencyExplanation>,
        found: QueueSnapshot,
    ) {
        explanation.update(|facts| facts.queued = Some(found));
        match &mut self.clocks {
            Clocks::Shared(clock) => clock.arrive(now.0, key.0),
            Clocks::Each(clocks) if clocks.len() < EXPLAINED_IN_SEQUENCES_MAX => {
                let mut clock = QueueWaitTracker::new(now.0, WaitReason::Instance);
                clock.arrive(now.0, key.0);
                clocks.insert(key, clock);
            }
            Clocks::Each(_) => {}
        }
        self.waiting.insert(key, explanation);
    }

    fn step(&mut self, now: Time, waiting: &WaitingRequests<'_>) {
        match &mut self.clocks {
            Clocks::Shared(clock) => clock.set_wait_reason(now.0, (waiting.wait_of)(RequestKey(0))),
            Clocks::Each(clocks) => {
                let set = |(key, clock): (&RequestKey, &mut QueueWaitTracker)| {
                    clock.set_wait_reason(now.0, (waiting.wait_of)(*key));
                };
                clocks.iter_mut().for_each(set);
            }
        }
    }

    fn close(&mut self, now: Time, closing: &ClosingBatch<'_>) {
        let requests = closing.keys().count();
        let padding = closing.entries.len().saturating_sub(requests);
        let facts = BatchFacts {
            requests: len64(requests),
            rows: u64::from(closing.rows),
            padding_rows: len64(padding),
            closed: closing.reason.name(),
            is_first: closing.is_first,
        };
        for key in closing.keys() {
            let Some((explanation, waits)) = self.leave(key, now) else { continue };
            explanation.update(|known| {
                known.waits = waits;
                known.batch.get_or_insert(facts);
            });
            explanation.set_milestone(Milestone::Closed, self.epoch + Duration::from_nanos(now.0));
        }
        if let Clocks::Shared(clock) = &mut self.clocks {
            clock.close_batch(now.0, closing.reason == CloseReason::Shape);
        }
    }

    fn leave(
        &mut self,
        key: RequestKey,
        now: Time,
    ) -> Option<(Arc<LatencyExplanation>, WaitTimes)> {
        let explanation = self.waiting.remove(&key)?;
        let waits = match &mut self.clocks {
            Clocks::Shared(clock) => clock.remove_request(now.0, key.0),
            Clocks::Each(clocks) => {
                clocks.remove(&key).and_then(|mut clock| clock.remove_request(now.0, key.0))
            }
        };
        Some((explanation, waits.unwrap_or_default()))
    }
}

/// Marks the start of execution in these requests' explanations.
pub(in crate::dispatcher) fn mark_started<'a>(requests: impl Iterator<Item = &'a PendingRequest>) {
    let mut now = None;
    for explanation in requests.filter_map(explanation) {
        let now = *now.get_or_insert_with(Instant::now);
        explanation.set_milestone(Milestone::Started, now);
    }
}
