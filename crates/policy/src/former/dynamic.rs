//! The dynamic former: whole requests from the front of the queue.
//!
//! A batch is a run of requests from the front with equal batch keys and
//! together at most `max_batch_size` rows. In this order:
//!
//! 1. If a preferred size was reached and the oldest request of the run has not
//!    waited for the whole delay, the largest preferred size reached goes. The
//!    run also counts as preferred where its next request would lead past the
//!    largest preferred size, if no preferred size was reached before.
//! 2. If the next request does not fit (size or key), or the run has reached the
//!    largest preferred size, waiting is in vain: the whole run goes.
//! 3. If the delay is over, the whole run goes, even where 1 would have taken
//!    less of it.
//! 4. Otherwise the run waits for what is left of the delay.
//!
//! A custom batching strategy is asked for each request that fits by size and
//! key, and can close the batch before it.
//!
//! The walk along the queue is kept from step to step and continued while
//! requests only join at the end, so that a step costs what is new.

use crate::former::{Outlook, Verdict};
use crate::ids::{BatchKey, RequestKey};
use crate::queue::{PolicyQueue, SlotId};
use crate::spec::DynamicSpec;
use crate::strategy::{BatchStrategy, Inclusion, NoStrategy};
use crate::time::Time;

#[derive(Clone, Debug)]
pub(crate) struct DynamicFormer<S = NoStrategy> {
    max_batch_size: u64,
    /// Ascending, without duplicates, never empty, at most `max_batch_size`.
    preferred_sizes: Vec<u64>,
    max_queue_delay_ns: u64,
    run: Run,
    custom: Option<CustomBatching<S>>,
}

/// The model's own rule, and whether it has a batch open.
#[derive(Clone, Debug)]
struct CustomBatching<S> {
    strategy: S,
    is_open: bool,
}

impl<S: BatchStrategy> CustomBatching<S> {
    /// Shows the strategy the first request of a batch, which it can't refuse.
    fn open_with(&mut self, first: RequestKey) {
        self.strategy.open();
        self.is_open = true;
        self.strategy.include(first);
    }

    fn close(&mut self) {
        if std::mem::take(&mut self.is_open) {
            self.strategy.close();
        }
    }
}

/// The requests from the front of the queue that can be one batch.
#[derive(Copy, Clone, Debug, Default)]
struct Run {
    /// The queue's revision at which the walk started.
    revision: u64,
    last: Option<SlotId>,
    batch_key: BatchKey,
    whole: Stretch,
    /// The part of the run that goes at once unless the delay is over.
    preferred: Option<Stretch>,
    oldest: Time,
    end: RunEnd,
}

/// A run's first requests, and their rows together.
#[derive(Copy, Clone, Debug, Default)]
struct Stretch {
    requests: usize,
    rows: u64,
}

/// Whether a run can still grow. It closes once, until the queue's order changes.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum RunEnd {
    #[default]
    Open,
    Closed,
}

impl<S: BatchStrategy> DynamicFormer<S> {
    pub(crate) fn new(max_batch_size: u32, spec: &DynamicSpec) -> Self {
        let max_batch_size = max_batch_size.max(1);
        let usable = |size: &u32| (1..=max_batch_size).contains(size);
        let mut preferred_sizes: Vec<u64> =
            spec.preferred_batch_sizes.iter().copied().filter(usable).map(u64::from).collect();
        preferred_sizes.sort_unstable();
        preferred_sizes.dedup();
        if preferred_sizes.is_empty() {
            preferred_sizes.push(u64::from(max_batch_size));
        }
        DynamicFormer {
            max_batch_size: u64::from(max_batch_size),
            preferred_sizes,
            max_queue_delay_ns: spec.max_queue_delay_ns,
            run: Run::default(),
            custom: None,
        }
    }

    /// Lets the model have its say.
    pub(crate) fn with_strategy(mut self, strategy: Option<S>) -> Self {
        self.custom = strategy.map(|strategy| CustomBatching { strategy, is_open: false });
        self
    }

    /// The batch that was judged last is closed: its requests leave the queue.
    pub(crate) fn close(&mut self) {
        if let Some(custom) = &mut self.custom {
            custom.close();
        }
    }

    /// Each request is a batch of its own.
    pub(crate) fn one_by_one() -> Self {
        Self::new(1, &DynamicSpec::default())
    }

    pub(crate) fn judge(&mut self, queue: &PolicyQueue, now: Time, outlook: Outlook) -> Verdict {
        self.walk(queue);
        let run = &self.run;
        if run.whole.requests == 0 {
            return Verdict::Nothing;
        }
        let delay_ns = match outlook {
            Outlook::Open => self.max_queue_delay_ns,
            Outlook::Draining => 0,
        };
        let delay_is_over = delay_ns != 0 && now.saturating_since(run.oldest) >= delay_ns;
        if let Some(preferred) = run.preferred
            && !delay_is_over
        {
            return preferred.close();
        }
        let grown = run.end == RunEnd::Closed || run.whole.rows >= self.largest_preferred();
        if grown || delay_is_over || delay_ns == 0 {
            return run.whole.close();
        }
        let next_preferred =
            self.preferred_sizes.iter().copied().find(|size| *size > run.whole.rows);
        Verdict::Wait {
            until: run.oldest.deadline_after(delay_ns),
            rows: rows_of_a_batch(run.whole.rows),
            next_preferred: rows_of_a_batch(
                next_preferred.expect("the run is below the largest preferred size"),
            ),
        }
    }

    fn largest_preferred(&self) -> u64 {
        *self.preferred_sizes.last().expect("never empty")
    }

    /// Continues the walk, from the start if the order of the queue changed.
    fn walk(&mut self, queue: &PolicyQueue) {
        if self.run.last.is_none() || self.run.revision != queue.revision() {
            self.close();
            self.run = Run { revision: queue.revision(), ..Run::default() };
        }
        while self.run.end == RunEnd::Open {
            let next = match self.run.last {
                None => queue.first(),
                Some(last) => queue.after(last),
            };
            let Some(next) = next else { return };
            self.look_at(queue, next);
        }
    }

    fn look_at(&mut self, queue: &PolicyQueue, slot: SlotId) {
        let waiting = queue.get(slot);
        let largest_preferred = self.largest_preferred();
        let run = &mut self.run;
        let rows = run.whole.rows + u64::from(waiting.rows);
        if run.whole.requests == 0 {
            run.batch_key = waiting.batch_key;
            run.oldest = waiting.enqueued;
            if let Some(custom) = &mut self.custom {
                custom.open_with(waiting.key);
            }
        } else {
            if rows > largest_preferred && run.preferred.is_none() {
                run.preferred = Some(run.whole);
            }
            if rows > self.max_batch_size || waiting.batch_key != run.batch_key {
                run.end = RunEnd::Closed;
                return;
            }
            if let Some(custom) = &mut self.custom
                && custom.strategy.include(waiting.key) == Inclusion::CloseBefore
            {
                run.end = RunEnd::Closed;
                return;
            }
        }
        run.last = Some(slot);
        run.whole = Stretch { requests: run.whole.requests + 1, rows };
        run.oldest = run.oldest.min(waiting.enqueued);
        if self.preferred_sizes.binary_search(&rows).is_ok() {
            run.preferred = Some(run.whole);
        }
        if rows >= self.max_batch_size {
            run.end = RunEnd::Closed;
        }
    }
}

impl Stretch {
    fn close(self) -> Verdict {
        Verdict::Close { requests: self.requests, rows: rows_of_a_batch(self.rows) }
    }
}

/// A batch's rows fit: they are at most the maximum, or one request's.
fn rows_of_a_batch(rows: u64) -> u32 {
    u32::try_from(rows).expect("a run is bounded by the maximum or is one request")
}

#[cfg(test)]
#[path = "dynamic_tests.rs"]
mod tests;
