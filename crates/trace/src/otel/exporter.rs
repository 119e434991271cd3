//! Collection of spans, which are sent in batches.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::collector::CollectorClient;
use super::ids::NumberSource;
use super::otlp;
use super::spans::{Span, spans_of};
use crate::queue::{CollectedTrace, TraceMemory};

/// The limits on span collection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SpanBatchLimits {
    /// The maximum number of waiting spans. Spans beyond this number are dropped.
    pub queued_max: usize,
    /// The maximum time that a span waits to be sent.
    pub delay: Duration,
    /// The maximum number of spans per batch.
    pub batch_max: usize,
}

/// Decides when spans are sent. Its times are passed in as arguments.
#[derive(Debug)]
struct Batcher<T> {
    limits: SpanBatchLimits,
    waiting: VecDeque<T>,
    /// The time at which the oldest waiting span is due.
    due: Option<Instant>,
    dropped: u64,
}

impl<T> Batcher<T> {
    fn new(limits: SpanBatchLimits) -> Self {
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

    /// Takes the spans that are due now.
    fn take(&mut self, now: Instant) -> Option<Vec<T>> {
        let is_due = self.due.is_some_and(|due| due <= now);
        let is_full = self.waiting.len() >= self.limits.batch_max.max(1);
        if is_due || is_full { self.take_any() } else { None }
    }

    /// Takes the next spans, even if they are not due.
    fn take_any(&mut self) -> Option<Vec<T>> {
        let count = self.waiting.len().min(self.limits.batch_max.max(1));
        let batch: Vec<T> = self.waiting.drain(..count).collect();
        if self.waiting.is_empty() {
            self.due = None;
        }
        (!batch.is_empty()).then_some(batch)
    }

    /// The time until the next batch, if any spans are waiting.
    fn time_until_batch(&self, now: Instant) -> Option<Duration> {
        self.due.map(|due| due.saturating_duration_since(now))
    }
}

/// Sends spans; used by a single thread.
#[derive(Debug)]
pub(crate) struct Exporter {
    collector: CollectorClient,
    resource: Vec<(String, String)>,
    numbers: Arc<NumberSource>,
    spans: Batcher<WaitingSpan>,
}

/// A waiting span. Its trace's memory stays counted until all of the trace's spans have been sent.
#[derive(Debug)]
struct WaitingSpan {
    span: Span,
    _memory: Arc<TraceMemory>,
}

impl Exporter {
    pub(crate) fn new(
        collector: CollectorClient,
        resource: Vec<(String, String)>,
        limits: SpanBatchLimits,
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

    /// Sends the spans that are due, and returns the last error, if any.
    pub(crate) fn send_due(&mut self, now: Instant) -> Result<(), String> {
        let mut result = Ok(());
        while let Some(batch) = self.spans.take(now) {
            result = self.send(batch).and(result);
        }
        result
    }

    /// Sends all spans. Stops at the first failure, because the server is waiting to shut down.
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        while let Some(batch) = self.spans.take_any() {
            self.send(batch)?;
        }
        Ok(())
    }

    /// The time until spans are due, or `None` if none are waiting.
    pub(crate) fn time_until_batch(&self, now: Instant) -> Option<Duration> {
        self.spans.time_until_batch(now)
    }

    /// The number of spans dropped because the collector is too slow.
    pub(crate) fn dropped(&self) -> u64 {
        self.spans.dropped
    }

    fn send(&self, batch: Vec<WaitingSpan>) -> Result<(), String> {
        let spans = batch.iter().map(|waiting| &waiting.span);
        self.collector.post(otlp::encode(&self.resource, spans)).map_err(|error| {
            format!("failed to send spans to {}: {error}", self.collector.address())
        })
    }
}

#[cfg(test)]
#[path = "exporter_tests.rs"]
mod tests;
