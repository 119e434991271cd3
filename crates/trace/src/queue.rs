//! The queue of complete traces for the writer thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use galatea_stdx::{Condvar, Lock};

use crate::event::Event;
use crate::otel::spans::ClientSpan;
use crate::settings::TraceSettings;

/// The maximum total size in bytes of the traces being recorded or waiting for the writer thread.
/// Tensors of traced requests are copied, so a few large tensors can use up this limit. Traces
/// beyond the limit are dropped.
pub(crate) const TRACE_BYTES_MAX: usize = 64 << 20;
/// The maximum number of traces waiting for the writer thread.
pub(crate) const TRACES_QUEUED_MAX: usize = 16_384;

/// The records of a request and of the requests that served it.
#[derive(Debug)]
pub(crate) struct CollectedTrace {
    /// The settings under which it was traced.
    pub(crate) setting: Arc<TraceSettings>,
    /// The records; empty if they were dropped.
    pub(crate) events: Vec<Event>,
    /// The number of the client request's trace.
    pub(crate) root: u64,
    /// The client's span, for a collector.
    pub(crate) client: Option<Box<ClientSpan>>,
    /// The memory counted for this trace, released on drop.
    pub(crate) memory: TraceMemory,
}

impl CollectedTrace {
    pub(crate) fn new(
        setting: Arc<TraceSettings>,
        events: Vec<Event>,
        client: Option<(u64, Box<ClientSpan>)>,
        memory: TraceMemory,
    ) -> Self {
        let (root, client) = match client {
            Some((root, client)) => (root, Some(client)),
            None => (0, None),
        };
        Self { setting, events, root, client, memory }
    }
}

/// A message to the writer thread.
#[derive(Debug)]
pub(crate) enum Message {
    /// A trace is complete.
    Trace(CollectedTrace),
    /// The settings with this number are no longer in force, and all traces that used them are
    /// complete.
    Retired(u64),
    /// The server is stopping.
    Stop,
}

/// A queue that never blocks its writers: traces that don't fit are dropped and counted.
#[derive(Debug, Default)]
pub(crate) struct TraceQueue {
    messages: Lock<VecDeque<Message>>,
    arrived: Condvar,
    traces: AtomicUsize,
    bytes: Arc<AtomicUsize>,
    dropped: AtomicU64,
}

/// Counted trace memory, released on drop.
#[derive(Debug)]
pub(crate) struct TraceMemory {
    used: Arc<AtomicUsize>,
    bytes: usize,
}

impl TraceMemory {
    /// Counts more bytes, unless that would exceed the limit.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > TRACE_BYTES_MAX {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        self.bytes = self.bytes.saturating_add(bytes);
        true
    }

    /// Releases the bytes counted so far.
    pub(crate) fn clear(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = 0;
    }
}

impl Drop for TraceMemory {
    fn drop(&mut self) {
        self.clear();
    }
}

impl TraceQueue {
    /// A memory account for the records of a trace.
    pub(crate) fn memory(&self) -> TraceMemory {
        TraceMemory { used: self.bytes.clone(), bytes: 0 }
    }

    /// Adds a complete trace. If the queue is full, only the end of the trace is queued, and only
    /// for files, which must know about it.
    pub(crate) fn push_trace(&self, mut trace: CollectedTrace) {
        let has_room = self.traces.load(Ordering::Relaxed) < TRACES_QUEUED_MAX;
        if !has_room && !trace.events.is_empty() {
            trace.events = Vec::new();
            trace.memory.clear();
            self.count_dropped();
        }
        if !has_room && trace.client.is_some() {
            return;
        }
        self.traces.fetch_add(1, Ordering::Relaxed);
        self.push(Message::Trace(trace));
    }

    pub(crate) fn push(&self, message: Message) {
        self.messages.lock("queue a trace").push_back(message);
        self.arrived.notify_one();
    }

    /// Counts a trace whose records were dropped.
    pub(crate) fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of traces dropped so far.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Takes all messages. If there are none, waits for at most `wait`; `None` means no limit.
    pub(crate) fn take(&self, wait: Option<Duration>) -> VecDeque<Message> {
        let mut messages = self.messages.lock("take traces");
        if messages.is_empty() {
            messages = match wait {
                Some(wait) => self.arrived.wait_timeout(messages, wait),
                None => self.arrived.wait(messages),
            };
        }
        let taken = std::mem::take(&mut *messages);
        drop(messages);
        let traces = taken.iter().filter(|message| matches!(message, Message::Trace(_))).count();
        self.traces.fetch_sub(traces, Ordering::Relaxed);
        taken
    }
}
