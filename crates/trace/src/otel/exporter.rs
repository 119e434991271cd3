//! Gathers spans and sends them in batches.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::collector::Collector;
use super::ids::NumberSource;
use super::otlp;
use super::spans::{Span, spans_of};
use crate::queue::{CollectedTrace, Memory};

/// How spans are gathered.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// The greatest number of spans that wait; further ones are dropped.
    pub queued_max: usize,
    /// How long a span waits at most until it is sent.
    pub delay: Duration,
    /// The greatest number of spans that are sent together.
    pub batch_max: usize,
}

/// Which spans are sent when: a value that is told the time.
#[derive(Debug)]
struct Batcher<T> {
    limits: BatchLimits,
    waiting: VecDeque<T>,
    /// When the first of those that wait is to be sent.
    due: Option<Instant>,
    dropped: u64,
}

impl<T> Batcher<T> {
    fn new(limits: BatchLimits) -> Self {
        Self { limits, waiting: VecDeque::new(), due: None, dropped: 0 }
    }

    fn add(&mut self, now: Instant, span: T) {
        if self.waiting.len() >= self.limits.queued_max {
            self.dropped = self.dropped.saturating_add(1);
            return;
        }
        self.due = self.due.or_else(|| now.checked_add(self.limits.delay));
        self.waiting.push_back(span);
    }

    /// The spans that are to be sent now.
    fn take(&mut self, now: Instant) -> Option<Vec<T>> {
        let is_due = self.due.is_some_and(|due| due <= now);
        let is_full = self.waiting.len() >= self.limits.batch_max.max(1);
        if is_due || is_full { self.take_any() } else { None }
    }

    /// The next spans, whether they are to be sent now or not.
    fn take_any(&mut self) -> Option<Vec<T>> {
        let count = self.waiting.len().min(self.limits.batch_max.max(1));
        let batch: Vec<T> = self.waiting.drain(..count).collect();
        if self.waiting.is_empty() {
            self.due = None;
        }
        (!batch.is_empty()).then_some(batch)
    }

    /// How long until the next batch, if one waits.
    fn wait(&self, now: Instant) -> Option<Duration> {
        self.due.map(|due| due.saturating_duration_since(now))
    }
}

/// Sends spans; used by one thread alone.
#[derive(Debug)]
pub(crate) struct Exporter {
    collector: Collector,
    resource: Vec<(String, String)>,
    numbers: Arc<NumberSource>,
    spans: Batcher<WaitingSpan>,
}

/// A span that waits. The memory of its trace is counted until all of its spans are sent.
#[derive(Debug)]
struct WaitingSpan {
    span: Span,
    _memory: Arc<Memory>,
}

impl Exporter {
    pub(crate) fn new(
        collector: Collector,
        resource: Vec<(String, String)>,
        limits: BatchLimits,
        numbers: Arc<NumberSource>,
    ) -> Self {
        Self { collector, resource, numbers, spans: Batcher::new(limits) }
    }

    /// Adds the spans of a trace.
    pub(crate) fn add(&mut self, now: Instant, trace: CollectedTrace) {
        let CollectedTrace { events, root, client: Some(client), memory, .. } = trace else {
            return;
        };
        let memory = Arc::new(memory);
        for span in spans_of(&client, root, events, &self.numbers) {
            self.spans.add(now, WaitingSpan { span, _memory: memory.clone() });
        }
    }

    /// Sends what is to be sent now. The error is the last one.
    pub(crate) fn send_due(&mut self, now: Instant) -> Result<(), String> {
        let mut result = Ok(());
        while let Some(batch) = self.spans.take(now) {
            result = self.send(batch).and(result);
        }
        result
    }

    /// Sends all. The first failure ends it: the server waits.
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        while let Some(batch) = self.spans.take_any() {
            self.send(batch)?;
        }
        Ok(())
    }

    /// How long until something is to be sent; `None` is any time.
    pub(crate) fn wait(&self, now: Instant) -> Option<Duration> {
        self.spans.wait(now)
    }

    /// How many spans were dropped because the collector is too slow.
    pub(crate) fn dropped(&self) -> u64 {
        self.spans.dropped
    }

    fn send(&self, batch: Vec<WaitingSpan>) -> Result<(), String> {
        let count = batch.len();
        let spans = batch.iter().map(|waiting| &waiting.span);
        self.collector.post(&otlp::encode(&self.resource, spans)).map_err(|error| {
            format!("failed to send {count} spans to {}: {error}", self.collector.address())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: BatchLimits =
        BatchLimits { queued_max: 4, delay: Duration::from_secs(5), batch_max: 2 };

    #[test]
    fn a_full_batch_is_sent_at_once_and_others_when_they_are_due() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut batcher = Batcher::new(LIMITS);
        assert_eq!(batcher.wait(start), None);
        batcher.add(start, 1);
        assert_eq!(
            (batcher.take(at(4)), batcher.wait(at(4))),
            (None, Some(LIMITS.delay - Duration::from_secs(4)))
        );
        batcher.add(at(4), 2);
        batcher.add(at(4), 3);
        assert_eq!(batcher.take(at(4)), Some(vec![1, 2]));
        assert_eq!(batcher.take(at(4)), None);
        assert_eq!(batcher.take(at(5)), Some(vec![3]));
        assert_eq!((batcher.take(at(9)), batcher.wait(at(9))), (None, None));
    }

    #[test]
    fn spans_that_find_the_queue_full_are_dropped() {
        let now = Instant::now();
        let mut batcher = Batcher::new(LIMITS);
        (0..6).for_each(|span| batcher.add(now, span));
        assert_eq!(batcher.dropped, 2);
        assert_eq!(batcher.take_any(), Some(vec![0, 1]));
        assert_eq!(batcher.take_any(), Some(vec![2, 3]));
        assert_eq!(batcher.take_any(), None);
    }

    #[test]
    fn limits_of_nothing_send_single_spans() {
        let now = Instant::now();
        let limits = BatchLimits { batch_max: 0, delay: Duration::ZERO, ..LIMITS };
        let mut batcher = Batcher::new(limits);
        batcher.add(now, 1);
        assert_eq!(batcher.take(now), Some(vec![1]));
        let mut none = Batcher::new(BatchLimits { queued_max: 0, ..limits });
        none.add(now, 1);
        assert_eq!((none.take_any(), none.dropped), (None, 1));
    }
}
