//! Events in the life of a dispatcher's requests, and views of them.
//!
//! An event is one [`Observation`]. The dispatcher records each once, with a time that it has read
//! anyway, under the lock that each of its steps holds. A view is a fold: a value that takes times
//! and observations one after another, and is read at intervals. It has no clock, lock or thread,
//! and does not affect what it observes, so that its tests are texts (`tests.rs`).
//!
//! | file | view | present |
//! |---|---|---|
//! | `counts.rs` | batches and failures by reason | always |
//! | `waits.rs` | the waits of all requests together | always, without a sequence batcher |
//! | `explained.rs` | the waits and batches of explained requests | while one waits |
//! | `timeline.rs` | the latest executions of each instance | while they are watched |
//! | `recorder.rs`, `lines.rs` | requests and executions as lines of a file | while a client records |
//!
//! The views that are not always present are behind one pointer, which is null while there are
//! none.

mod counts;
mod explained;
mod lines;
mod recorder;
#[cfg(test)]
mod tests;
mod timeline;
mod waits;

use std::sync::Arc;
use std::time::Instant;

use galatea_explain::{Explanation, Queued, Wait, WaitTimes};
use galatea_infer::InferenceRequest;
use galatea_policy::{
    BatchEntry, CloseReason, FailReason, InstanceId, RequestInfo, RequestKey, Time,
};

pub(super) use self::counts::SchedulingCounts;
pub(super) use self::explained::{Batching, Explained, explanation, mark_started};
pub(crate) use self::lines::TakenTraffic;
pub(crate) use self::recorder::VariableDims;
pub(super) use self::recorder::{Recorder, RequestEnd};
pub(super) use self::timeline::Timeline;
use self::waits::TotalWaits;

/// An event in the life of requests.
pub(super) enum Observation<'a> {
    /// A request is about to enter the queue.
    Queued(QueuedRequest<'a>),
    /// A batch is closed, and is executed next.
    Closed(ClosingBatch<'a>),
    /// A request leaves the queue without being executed.
    Failed(RequestKey, FailReason),
    /// An instance has executed its batch.
    Freed(InstanceId),
    /// The scheduler made a step: from now on requests wait for these reasons.
    Stepped(WaitingRequests<'a>),
    /// The scheduler broke, and its requests are dropped.
    Dropped,
}

/// A request on its way into the queue.
pub(super) struct QueuedRequest<'a> {
    pub(super) info: &'a RequestInfo,
    pub(super) content: &'a InferenceRequest,
    /// The explanation of an explained request, and the state of the queue that it enters.
    pub(super) explained: Option<(Arc<Explanation>, Queued)>,
    /// The end of a recorded request, which is set once it is known.
    pub(super) end: Option<&'a RequestEnd>,
}

/// A batch whose requests leave the queue.
pub(super) struct ClosingBatch<'a> {
    pub(super) instance: InstanceId,
    pub(super) entries: &'a [BatchEntry],
    pub(super) rows: u32,
    pub(super) reason: CloseReason,
    /// The number of requests that stay in the queue.
    pub(super) left: u64,
    /// True if it is the first batch of its instance, if a view needs to know.
    pub(super) is_first: bool,
    /// The time at which the longest-waiting request was queued, if a view needs to know.
    pub(super) oldest: Option<Instant>,
}

impl ClosingBatch<'_> {
    /// The requests of the batch, in the order of its rows.
    fn keys(&self) -> impl Iterator<Item = RequestKey> {
        self.entries.iter().filter_map(BatchEntry::request)
    }
}

/// The waiting requests, and the reasons for their waits. Without a sequence batcher all wait for
/// the same reason.
pub(super) struct WaitingRequests<'a> {
    pub(super) count: u64,
    pub(super) wait_of: &'a dyn Fn(RequestKey) -> Wait,
}

/// The views of a dispatcher.
#[derive(Debug)]
pub(super) struct Views {
    counts: SchedulingCounts,
    /// The total waits; `None` with a sequence batcher.
    waits: Option<TotalWaits>,
    /// The views on demand; `None` while there are none.
    on_demand: Option<Box<OnDemand>>,
}

/// The views that are not always present.
#[derive(Debug, Default)]
pub(super) struct OnDemand {
    pub(super) explained: Option<Explained>,
    pub(super) timeline: Option<Timeline>,
    pub(super) recorder: Option<Recorder>,
}

impl Views {
    pub(super) fn new(batching: Batching) -> Self {
        let waits = match batching {
            Batching::Arrivals | Batching::Deadlines => Some(TotalWaits::default()),
            Batching::Sequences => None,
        };
        Self { counts: SchedulingCounts::default(), waits, on_demand: None }
    }

    /// Shows an event to all views.
    #[inline]
    pub(super) fn observe(&mut self, now: Time, observation: &Observation<'_>) {
        self.counts.observe(observation);
        if let Some(waits) = &mut self.waits {
            waits.observe(now, observation);
        }
        if let Some(views) = &mut self.on_demand {
            views.observe(now, observation);
            if views.is_idle() {
                self.on_demand = None;
            }
        }
    }

    /// Returns true if any view on demand is present.
    pub(super) const fn is_watched(&self) -> bool {
        self.on_demand.is_some()
    }

    /// The views on demand, if any is present.
    pub(super) fn watched(&mut self) -> Option<&mut OnDemand> {
        self.on_demand.as_deref_mut()
    }

    /// The views on demand, for a view that begins.
    pub(super) fn begin(&mut self) -> &mut OnDemand {
        self.on_demand.get_or_insert_default()
    }

    /// Ends a view, and returns it, to be dropped without a lock.
    pub(super) fn end<T>(&mut self, take: impl FnOnce(&mut OnDemand) -> T) -> Option<T> {
        let views = self.on_demand.as_mut()?;
        let ended = take(views);
        if views.is_idle() {
            self.on_demand = None;
        }
        Some(ended)
    }

    /// Counts of batches and failures by reason.
    pub(super) const fn counts(&self) -> &SchedulingCounts {
        &self.counts
    }

    /// The waits of all requests until now; `None` with a sequence batcher.
    pub(super) fn waits(&self, now: Time) -> Option<WaitTimes> {
        self.waits.as_ref().map(|waits| waits.until(now))
    }
}

impl OnDemand {
    /// Returns true if no view on demand is left.
    const fn is_idle(&self) -> bool {
        self.explained.is_none() && self.timeline.is_none() && self.recorder.is_none()
    }

    fn observe(&mut self, now: Time, observation: &Observation<'_>) {
        if let Some(explained) = &mut self.explained {
            explained.observe(now, observation);
            if explained.has_ended() {
                self.explained = None;
            }
        }
        if let Some(timeline) = &mut self.timeline {
            timeline.observe(now, observation);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.observe(now, observation);
        }
    }
}
