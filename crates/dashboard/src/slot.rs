//! The pending events of one watcher.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use galatea_gate::ledger::{MemoryAccount, MemoryCharge};

use crate::frame;

/// The maximum number of events that wait for a slow watcher, which misses any others. Two events
/// arrive per second.
pub(crate) const WATCHER_EVENTS_MAX: usize = 4;

/// An event, charged to the connection that will receive it.
struct WaitingEvent {
    bytes: Bytes,
    _charge: MemoryCharge,
}

/// The events that wait for a watcher, and the number of events that it has missed.
pub(crate) struct WatcherSlot {
    account: Arc<MemoryAccount>,
    events: VecDeque<WaitingEvent>,
    lost: u64,
    reader: Option<Waker>,
}

impl WatcherSlot {
    pub(crate) fn new(account: Arc<MemoryAccount>) -> Self {
        Self { account, events: VecDeque::new(), lost: 0, reader: None }
    }

    /// Adds an event. If the watcher reads too slowly, the oldest event is lost; if there is no
    /// memory for the new event, the new event is lost. Returns the task that waits for events.
    pub(crate) fn add(&mut self, bytes: &Bytes) -> Option<Waker> {
        if self.events.len() >= WATCHER_EVENTS_MAX {
            self.events.pop_front();
            self.lost = self.lost.saturating_add(1);
        }
        match MemoryCharge::new(&self.account, bytes.len()) {
            Ok(charge) => {
                self.events.push_back(WaitingEvent { bytes: bytes.clone(), _charge: charge })
            }
            Err(_) => self.lost = self.lost.saturating_add(1),
        }
        self.reader.take()
    }

    /// Returns the next event. Lost events are reported first.
    fn next(&mut self) -> Option<Bytes> {
        if self.lost > 0 {
            return Some(frame::lost(std::mem::take(&mut self.lost)));
        }
        self.events.pop_front().map(|waiting| waiting.bytes)
    }

    pub(crate) fn poll(&mut self, context: &Context<'_>) -> Poll<Bytes> {
        match self.next() {
            Some(bytes) => Poll::Ready(bytes),
            None => {
                self.reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    pub(crate) const fn take_reader(&mut self) -> Option<Waker> {
        self.reader.take()
    }
}
