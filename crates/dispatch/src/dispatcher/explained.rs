//! What explained requests wait for in the queue, and the batches in which they leave it.
//!
//! A dispatcher has this only while such a request waits, so that nothing is watched otherwise.
//! Like the timeline it gets the scheduler's own events and times, under the lock that each
//! step holds. What a request waits for is what the scheduler's status says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use galatea_gate::limits::Limits;
use galatea_infer::{
    BatchFacts, Explanation, Mark, PendingRequest, Queued, Trace, Wait, WaitClock, WaitTimes,
};
use galatea_policy::{
    Batch, BatchEntry, BatchStrategy, CloseReason, RequestKey, RequestWait, Scheduler, Time,
};
use galatea_stdx::len64;

/// The explained requests that wait.
#[derive(Debug)]
pub(super) struct Explained {
    /// Where the times of the scheduler start.
    epoch: Instant,
    batching: Batching,
    clocks: Clocks,
    waiting: BTreeMap<RequestKey, Arc<Explanation>>,
}

/// Without a sequence batcher all requests wait for the same.
#[derive(Debug)]
enum Clocks {
    Shared(WaitClock),
    /// Of the first [`Limits::EXPLAINED_IN_SEQUENCES_MAX`] requests.
    Each(BTreeMap<RequestKey, WaitClock>),
}

/// How a dispatcher's requests are batched, as far as explanations tell it apart.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Batching {
    Arrivals,
    Deadlines,
    Sequences,
}

impl Batching {
    /// What the scheduler says that a request waits for.
    pub(super) const fn wait(self, wait: RequestWait) -> Wait {
        match wait {
            RequestWait::Lane => Wait::Instance,
            RequestWait::BatchDelay => match self {
                Self::Arrivals | Self::Sequences => Wait::BatchDelay,
                Self::Deadlines => Wait::Window,
            },
            RequestWait::Permit => Wait::Permit,
            RequestWait::Slot => Wait::Slot,
            RequestWait::Predecessor => Wait::Predecessor,
            RequestWait::Hold => Wait::Hold,
        }
    }
}

/// The explanation of a request, if its client asked for one.
pub(super) fn explanation(request: &PendingRequest) -> Option<&Arc<Explanation>> {
    request.trace().and_then(|trace| Trace::explanation(trace))
}

impl Explained {
    pub(super) fn new(epoch: Instant, now: Time, batching: Batching) -> Self {
        let clocks = match batching {
            Batching::Arrivals | Batching::Deadlines => {
                Clocks::Shared(WaitClock::new(now.0, Wait::Instance))
            }
            Batching::Sequences => Clocks::Each(BTreeMap::new()),
        };
        Self { epoch, batching, clocks, waiting: BTreeMap::new() }
    }

    /// Whether no explained request waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// A request is about to be queued.
    pub(super) fn arrive<S: BatchStrategy>(
        &mut self,
        key: RequestKey,
        now: Time,
        explanation: Arc<Explanation>,
        scheduler: &Scheduler<S>,
    ) {
        let lanes = scheduler.lane_counts();
        let found = Queued {
            requests_ahead: len64(scheduler.queued()),
            instances: len64(lanes.total),
            busy: len64(lanes.busy),
            running_ns: lanes.busy_since.map_or(0, |since| now.saturating_since(since)),
            behind_first: lanes.busy == lanes.total && lanes.has_first_batch,
        };
        explanation.update(|facts| facts.queued = Some(found));
        match &mut self.clocks {
            Clocks::Shared(clock) => clock.arrive(now.0, key.0),
            Clocks::Each(clocks) if clocks.len() < Limits::EXPLAINED_IN_SEQUENCES_MAX => {
                let mut clock = WaitClock::new(now.0, Wait::Instance);
                clock.arrive(now.0, key.0);
                clocks.insert(key, clock);
            }
            Clocks::Each(_) => {}
        }
        self.waiting.insert(key, explanation);
    }

    /// The scheduler made a step.
    pub(super) fn stepped<S: BatchStrategy>(&mut self, now: Time, scheduler: &Scheduler<S>) {
        let batching = self.batching;
        let wait = |key| batching.wait(scheduler.wait_of(key));
        match &mut self.clocks {
            Clocks::Shared(clock) => clock.set(now.0, wait(RequestKey(0))),
            Clocks::Each(clocks) => {
                clocks.iter_mut().for_each(|(key, clock)| clock.set(now.0, wait(*key)));
            }
        }
    }

    /// A batch is closed for an instance.
    pub(super) fn close(&mut self, now: Time, batch: &Batch, is_first: bool) {
        let requests = batch.entries().iter().filter(|entry| entry.request().is_some()).count();
        let padding = batch.entries().len().saturating_sub(requests);
        let facts = BatchFacts {
            requests: len64(requests),
            rows: u64::from(batch.batch_size()),
            padding_rows: len64(padding),
            closed: batch.close_reason().name(),
            is_first,
        };
        for key in batch.entries().iter().filter_map(BatchEntry::request) {
            let Some((explanation, waits)) = self.leave(key, now) else { continue };
            explanation.update(|known| {
                known.waits = waits;
                known.batch.get_or_insert(facts);
            });
            explanation.mark(Mark::Closed, self.epoch + Duration::from_nanos(now.0));
        }
        if let Clocks::Shared(clock) = &mut self.clocks {
            clock.close(now.0, batch.close_reason() == CloseReason::Shape);
        }
    }

    /// A request is not executed.
    pub(super) fn fail(&mut self, now: Time, key: RequestKey) {
        if let Some((explanation, waits)) = self.leave(key, now) {
            explanation.update(|known| known.waits = waits);
        }
    }

    fn leave(&mut self, key: RequestKey, now: Time) -> Option<(Arc<Explanation>, WaitTimes)> {
        let explanation = self.waiting.remove(&key)?;
        let waits = match &mut self.clocks {
            Clocks::Shared(clock) => clock.leave(now.0, key.0),
            Clocks::Each(clocks) => {
                clocks.remove(&key).and_then(|mut clock| clock.leave(now.0, key.0))
            }
        };
        Some((explanation, waits.unwrap_or_default()))
    }
}

/// The thread that executes these requests begins with them.
pub(super) fn start<'a>(requests: impl Iterator<Item = &'a PendingRequest>) {
    let mut now = None;
    for explanation in requests.filter_map(explanation) {
        let now = *now.get_or_insert_with(Instant::now);
        explanation.mark(Mark::Started, now);
    }
}
