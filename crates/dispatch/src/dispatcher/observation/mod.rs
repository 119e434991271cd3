//! Events in the life of a dispatcher's requests, and views of these events.
//!
//! Each event is one [`Observation`]. The dispatcher records it once, with a time that it has read
//! anyway, under the lock that each step holds. A view is a fold: a value that takes times and
//! observations one after another, and is read at intervals. It has no clock, lock or thread, and
//! does not affect what it observes, so its tests are plain text (`tests.rs`).
//!
//! | file | view | present |
//! |---|---|---|
//! | `counts.rs` | batches and failures by reason | always |
//! | `waits.rs` | the waits of all requests together | always, without a sequence batcher |
//! | `explained.rs` | the waits and batches of explained requests | while one waits |
//! | `timeline.rs` | the latest executions of each instance | while they are watched |
//! | `recorder.rs`, `lines.rs` | requests and executions as lines of a file | while a client records |
//!
//! Views that are not always present implement [`View`] and are kept in one list, which is empty
//! while none are present. A view with a single reader is in the reader's file (`reports/`).

mod counts;
mod explained;
mod lines;
mod recorder;
#[cfg(test)]
mod tests;
mod timeline;
mod waits;

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Instant;

use galatea_explain::{LatencyExplanation, QueueSnapshot, WaitReason, WaitTimes};
use galatea_infer::InferenceRequest;
use galatea_policy::{
    BatchEntry, CloseReason, FailReason, InstanceId, RequestInfo, RequestKey, Time,
};

pub(crate) use self::counts::SchedulingCounts;
pub(super) use self::explained::{Batching, ExplainedRequests, explanation, mark_started};
pub(crate) use self::lines::TakenTraffic;
pub(crate) use self::recorder::VariableDims;
pub(super) use self::recorder::{Recorder, RequestEnd};
pub(super) use self::timeline::Timeline;
use self::waits::TotalWaits;

/// An event in the life of requests.
pub(super) enum Observation<'a> {
    /// A request is about to enter the queue.
    Queued(QueuedRequest<'a>),
    /// A batch is closed, and will be executed next.
    Closed(ClosingBatch<'a>),
    /// A request leaves the queue without being executed.
    Failed(RequestKey, FailReason),
    /// An instance has executed its batch.
    Freed(InstanceId),
    /// The scheduler has made a step. From now on, requests wait for these reasons.
    Stepped(WaitingRequests<'a>),
    /// The scheduler broke, and its requests are dropped.
    Dropped,
}

/// A request that is about to enter the queue.
pub(super) struct QueuedRequest<'a> {
    pub(super) info: &'a RequestInfo,
    pub(super) content: &'a InferenceRequest,
    /// The explanation of an explained request, and the state of the queue that it enters.
    pub(super) explained: Option<(Arc<LatencyExplanation>, QueueSnapshot)>,
    /// The outcome of a recorded request, set once it is known.
    pub(super) end: Option<&'a RequestEnd>,
}

/// A batch whose requests leave the queue.
pub(super) struct ClosingBatch<'a> {
    pub(super) instance: InstanceId,
    pub(super) entries: &'a [BatchEntry],
    pub(super) rows: u32,
    pub(super) reason: CloseReason,
    /// The number of requests that remain in the queue.
    pub(super) left: u64,
    /// True if this is the first batch of its instance, if a view needs to know.
    pub(super) is_first: bool,
    /// The time at which the longest-waiting request was queued, if a view needs to know.
    pub(super) oldest: Option<Instant>,
}

impl ClosingBatch<'_> {
    /// The requests in the batch, in row order.
    fn keys(&self) -> impl Iterator<Item = RequestKey> {
        self.entries.iter().filter_map(BatchEntry::request)
    }
}

/// The waiting requests and the reasons for their waits. Without a sequence batcher, all of them
/// wait for the same reason.
pub(super) struct WaitingRequests<'a> {
    pub(super) count: u64,
    pub(super) wait_of: &'a dyn Fn(RequestKey) -> WaitReason,
}

/// A dispatcher's views.
#[derive(Debug)]
pub(super) struct Views {
    counts: SchedulingCounts,
    /// The total waits; `None` with a sequence batcher.
    waits: Option<TotalWaits>,
    /// The on-demand views, at most one of each type.
    on_demand: Vec<Box<dyn View>>,
}

/// A view that is not always present.
pub(super) trait View: Any + Debug + Send {
    /// Processes an event.
    fn observe(&mut self, now: Time, observation: &Observation<'_>);

    /// Returns true if the view is no longer needed. This is checked after each event, and the view
    /// is then dropped.
    fn has_ended(&self) -> bool {
        false
    }
}

impl Views {
    pub(super) fn new(batching: Batching) -> Self {
        let waits = match batching {
            Batching::Arrivals | Batching::Deadlines => Some(TotalWaits::default()),
            Batching::Sequences => None,
        };
        Self { counts: SchedulingCounts::default(), waits, on_demand: Vec::new() }
    }

    /// Passes an event to all views.
    #[inline]
    pub(super) fn observe(&mut self, now: Time, observation: &Observation<'_>) {
        self.counts.observe(observation);
        if let Some(waits) = &mut self.waits {
            waits.observe(now, observation);
        }
        if self.is_watched() {
            self.on_demand.retain_mut(|view| {
                view.observe(now, observation);
                !view.has_ended()
            });
        }
    }

    /// Returns true if any on-demand view is present.
    pub(super) const fn is_watched(&self) -> bool {
        !self.on_demand.is_empty()
    }

    /// The view of this type, if it is present.
    pub(super) fn get<V: View>(&mut self) -> Option<&mut V> {
        self.on_demand.iter_mut().find_map(|view| typed(&mut **view))
    }

    /// The view of this type, created if it is not present.
    pub(super) fn get_or_begin<V: View>(&mut self, begin: impl FnOnce() -> V) -> &mut V {
        if self.get::<V>().is_none() {
            self.on_demand.push(Box::new(begin()));
        }
        self.get().unwrap_or_else(|| panic!("a view that begins is present"))
    }

    /// Ends the view of this type and returns it, so that the caller can drop it without a lock.
    pub(super) fn end_view<V: View>(&mut self) -> Option<Box<dyn View>> {
        let is_it = |view: &mut Box<dyn View>| typed::<V>(&mut **view).is_some();
        let at = self.on_demand.iter_mut().position(is_it)?;
        Some(self.on_demand.swap_remove(at))
    }

    /// Counts of batches and failures by reason.
    pub(super) const fn counts(&self) -> &SchedulingCounts {
        &self.counts
    }

    /// The waits of all requests so far; `None` with a sequence batcher.
    pub(super) fn waits(&self, now: Time) -> Option<WaitTimes> {
        self.waits.as_ref().map(|waits| waits.until(now))
    }
}

fn typed<V: View>(view: &mut dyn View) -> Option<&mut V> {
    let any: &mut dyn Any = view;
    any.downcast_mut()
}
