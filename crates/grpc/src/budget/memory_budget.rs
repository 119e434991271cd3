//! The memory budget of a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

use galatea_gate::ledger::MemoryAccount;

/// The number of bytes that a connection has in flight, and their limits.
pub(crate) struct MemoryBudget {
    /// The number of bytes in unwritten unary responses.
    call_unwritten_bytes: AtomicUsize,
    /// The number of bytes in unwritten stream responses.
    stream_unwritten_bytes: AtomicUsize,
    /// The number of bytes of other memory that unwritten responses keep alive.
    retained_bytes: AtomicUsize,
    /// The number of bytes in in-flight unary requests.
    call_request_bytes: AtomicUsize,
    /// The number of bytes in in-flight stream requests.
    stream_request_bytes: AtomicUsize,
    /// The number of bytes in incomplete messages.
    arriving_bytes: AtomicUsize,
    limits: BudgetLimits,
    /// The connection's share of the memory used by all connections.
    account: Arc<MemoryAccount>,
    /// Wakes the connection's task once there is room for requests again.
    waker: Waker,
}

/// The memory limits of a connection.
#[derive(Copy, Clone, Debug)]
pub(crate) struct BudgetLimits {
    /// The number of unwritten unary response bytes at which no more unary calls are read. Streams
    /// don't count here: a client may leave a stream unread while it waits for the response to a
    /// call.
    pub(crate) call_unwritten_bytes_max: usize,
    /// The number of unwritten bytes at which nothing more is read.
    pub(crate) unwritten_bytes_max: usize,
    /// The number of unwritten bytes at which additional responses are dropped.
    pub(crate) unwritten_bytes_dropped: usize,
    /// The maximum number of bytes of other memory that unwritten responses may keep alive.
    pub(crate) retained_bytes_max: usize,
    /// The number of bytes in in-flight requests at which no more requests of the same kind are
    /// read. Unary calls and streams count separately: a stream request may wait until the client
    /// reads the stream, while the client waits for the response to a call.
    pub(crate) request_bytes_max: usize,
    /// The number of bytes across several incomplete messages at which a message that adds more is
    /// refused.
    pub(crate) arriving_bytes_max: usize,
}

/// The kind of call that uses the memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// A call with one request and one response.
    Unary,
    /// A stream.
    Stream,
}

impl MemoryBudget {
    /// Creates an empty budget for the connection with this account. `waker` wakes the connection's
    /// task.
    pub(crate) const fn new(
        limits: BudgetLimits,
        account: Arc<MemoryAccount>,
        waker: Waker,
    ) -> Self {
        Self {
            call_unwritten_bytes: AtomicUsize::new(0),
            stream_unwritten_bytes: AtomicUsize::new(0),
            retained_bytes: AtomicUsize::new(0),
            call_request_bytes: AtomicUsize::new(0),
            stream_request_bytes: AtomicUsize::new(0),
            arriving_bytes: AtomicUsize::new(0),
            limits,
            account,
            waker,
        }
    }

    /// The account to which the memory of requests and responses is charged.
    pub(crate) const fn account(&self) -> &Arc<MemoryAccount> {
        &self.account
    }

    /// Counts a response. Returns true if there is room for it.
    pub(super) fn charge_response(&self, bytes: usize, kind: CallKind) -> bool {
        let has_room = self.unwritten_bytes() < self.limits.unwritten_bytes_dropped;
        if has_room {
            self.unwritten(kind).fetch_add(bytes, Ordering::Relaxed);
        }
        has_room
    }

    /// Releases a response that has been written or dropped.
    pub(super) fn release_response(&self, bytes: usize, kind: CallKind) {
        self.unwritten(kind).fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts other memory that a response keeps alive. Returns true if the limit has room for it.
    pub(super) fn charge_retained(&self, bytes: usize) -> bool {
        let before = self.retained_bytes.fetch_add(bytes, Ordering::Relaxed);
        let has_room = before.saturating_add(bytes) <= self.limits.retained_bytes_max;
        if !has_room {
            self.release_retained(bytes);
        }
        has_room
    }

    /// Releases memory that a response no longer keeps alive.
    pub(super) fn release_retained(&self, bytes: usize) {
        self.retained_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts an in-flight request.
    pub(super) fn charge_request(&self, bytes: usize, kind: CallKind) {
        self.requests(kind).fetch_add(bytes, Ordering::Relaxed);
    }

    /// Releases a request that is no longer in progress. If that makes room, the connection's task
    /// reads more requests.
    pub(super) fn release_request(&self, bytes: usize, kind: CallKind) {
        let before = self.requests(kind).fetch_sub(bytes, Ordering::Relaxed);
        let after = before.saturating_sub(bytes);
        let limit = self.limits.request_bytes_max;
        if after < limit && before >= limit {
            self.waker.wake_by_ref();
        }
    }

    /// Changes the count of an incomplete message from `before` to `after` bytes. Returns true if
    /// there is room for it alongside the others. Called only by the connection's task.
    pub(super) fn recharge_arriving(&self, before: usize, after: usize) -> bool {
        let all = self.arriving_bytes.load(Ordering::Relaxed);
        let others = all.saturating_sub(before);
        let now = others.saturating_add(after);
        self.arriving_bytes.store(now, Ordering::Relaxed);
        others == 0 || now <= self.limits.arriving_bytes_max
    }

    /// The number of bytes in requests that are arriving or in progress.
    pub(crate) fn request_bytes(&self) -> usize {
        let counts = [&self.call_request_bytes, &self.stream_request_bytes, &self.arriving_bytes];
        counts.into_iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// The number of bytes in unwritten responses.
    pub(crate) fn unwritten_bytes(&self) -> usize {
        let calls = self.call_unwritten_bytes.load(Ordering::Relaxed);
        calls.saturating_add(self.stream_unwritten_bytes.load(Ordering::Relaxed))
    }

    /// Returns true if no more requests are read, because too many bytes are unwritten or in
    /// progress.
    pub(crate) fn is_full(&self, kind: CallKind) -> bool {
        let is_kind_full = match kind {
            CallKind::Unary => {
                let unwritten = self.call_unwritten_bytes.load(Ordering::Relaxed);
                unwritten >= self.limits.call_unwritten_bytes_max
            }
            CallKind::Stream => false,
        };
        let in_progress = self.requests(kind).load(Ordering::Relaxed);
        is_kind_full
            || in_progress >= self.limits.request_bytes_max
            || self.unwritten_bytes() >= self.limits.unwritten_bytes_max
    }

    const fn unwritten(&self, kind: CallKind) -> &AtomicUsize {
        match kind {
            CallKind::Unary => &self.call_unwritten_bytes,
            CallKind::Stream => &self.stream_unwritten_bytes,
        }
    }

    const fn requests(&self, kind: CallKind) -> &AtomicUsize {
        match kind {
            CallKind::Unary => &self.call_request_bytes,
            CallKind::Stream => &self.stream_request_bytes,
        }
    }
}

impl std::fmt::Debug for MemoryBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryBudget({} bytes unwritten)", self.unwritten_bytes())
    }
}
