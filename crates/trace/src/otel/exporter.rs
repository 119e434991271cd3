//! Gathers spans and sends them in batches.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::collector::Collector;
use super::ids::NumberSource;
use super::otlp;
use super::spans::{Span, spans_of};
use crate::queue::{CollectedTrace, TraceMemory};

/// The bounds within which spans are gathered.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// The greatest number of spans that wait; further ones are dropped.
    pub queued_max: usize,
    /// The time that a span waits at most until it is sent.
    pub delay: Duration,
    /// The greatest number of spans that are sent together.
    pub batch_max: usize,
}

/// Decides about the times at which spans are sent: a value that is told the time.
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

    /// The time until the next batch, if one waits.
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
    _memory: Arc<TraceMemory>,
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

    /// The time until something is to be sent; `None` is any time.
    pub(crate) fn wait(&self, now: Instant) -> Option<Duration> {
        self.spans.wait(now)
    }

    /// The number of spans that were dropped because the collector is too slow.
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
