//! The memory budget of a stream, within its connection's budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::task::Waker;

use galatea_infer::{CongestionPoint, ResumeHook};
use galatea_stdx::Lock;

use super::memory_budget::{CallKind, MemoryBudget};

/// The limits on a stream's unfinished messages. Below them, the stream's requests don't wait.
#[derive(Copy, Clone, Debug)]
pub(crate) struct StreamLimits {
    /// The total number of requests without a final reply and unwritten responses.
    pub(crate) messages_max: usize,
    /// The total size of these requests and responses, in bytes.
    pub(crate) bytes_max: usize,
}

/// A stream's unwritten responses, and the code that waits for their number to fall.
pub(crate) struct StreamBudget {
    connection: Arc<MemoryBudget>,
    limits: StreamLimits,
    unwritten_messages: AtomicUsize,
    unwritten_bytes: AtomicUsize,
    /// True if the stream waits until it has fewer unwritten responses.
    is_waiting: AtomicBool,
    /// True if the stream has ended, in which case replies are dropped.
    is_over: AtomicBool,
    /// The decoupled models that pause until the client has read more.
    paused: Lock<Vec<PausedModel>>,
    /// Wakes the connection's task to serve the stream.
    waker: Waker,
}

/// A paused decoupled model.
struct PausedModel {
    hook: ResumeHook,
    /// The count of unwritten responses to the model's request, if their number is limited.
    unwritten: Option<Arc<ResponseCount>>,
}

/// A limited number of unwritten responses.
pub(super) struct ResponseCount {
    count: AtomicUsize,
    max: usize,
}

impl ResponseCount {
    pub(super) const fn new(max: usize) -> Self {
        Self { count: AtomicUsize::new(0), max }
    }

    pub(super) fn add(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn remove(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn is_full(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= self.max
    }
}

impl StreamBudget {
    pub(crate) const fn new(
        connection: Arc<MemoryBudget>,
        limits: StreamLimits,
        waker: Waker,
    ) -> Self {
        Self {
            connection,
            limits,
            unwritten_messages: AtomicUsize::new(0),
            unwritten_bytes: AtomicUsize::new(0),
            is_waiting: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            paused: Lock::new(Vec::new()),
            waker,
        }
    }

    pub(super) fn connection(&self) -> &MemoryBudget {
        &self.connection
    }

    /// Returns true if there is no room for another request on a stream that has `messages`
    /// requests with `bytes` in progress. In that case, the stream is served again when there may
    /// be room.
    pub(crate) fn is_full(&self, messages: usize, bytes: usize) -> bool {
        let messages = messages.saturating_add(self.unwritten_messages());
        let bytes = bytes.saturating_add(self.unwritten_bytes());
        let is_full = messages >= self.limits.messages_max || bytes >= self.limits.bytes_max;
        if is_full {
            self.wait();
        }
        is_full
    }

    fn unwritten_messages(&self) -> usize {
        self.unwritten_messages.load(Ordering::Relaxed)
    }

    fn unwritten_bytes(&self) -> usize {
        self.unwritten_bytes.load(Ordering::Relaxed)
    }

    /// Notes that the stream is being served and isn't waiting.
    pub(crate) fn begin(&self) {
        self.is_waiting.store(false, Ordering::Release);
    }

    /// Requests that the stream be served again once fewer of its bytes are unwritten or in
    /// progress.
    fn wait(&self) {
        self.is_waiting.store(true, Ordering::Release);
    }

    /// Wakes the stream if it is waiting, because it has fewer unwritten bytes or fewer bytes in
    /// progress than before.
    pub(crate) fn wake_if_waiting(&self) {
        if self.is_waiting.swap(false, Ordering::AcqRel) {
            self.waker.wake_by_ref();
        }
    }

    /// Ends the stream. Later replies are dropped where they are created.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.resume_models();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Resumes the paused models if the client has read enough. Only the connection's task may call
    /// this, and never from inside `h2`, because a model may respond immediately.
    pub(crate) fn resume_models(&self) {
        let hooks = {
            let mut paused = self.paused.lock("resume models");
            if paused.is_empty() {
                return;
            }
            if self.is_congested() {
                self.wait();
                return;
            }
            let is_over = self.is_over();
            let models = std::mem::take(&mut *paused).into_iter();
            let is_free = |model: &PausedModel| {
                is_over || !model.unwritten.as_ref().is_some_and(|unwritten| unwritten.is_full())
            };
            let (free, full): (Vec<_>, Vec<_>) = models.partition(is_free);
            if !full.is_empty() {
                self.wait();
            }
            *paused = full;
            free
        };
        hooks.into_iter().for_each(|model| (model.hook)());
    }

    /// Stores the hook of a model that is to pause, possibly because of the `unwritten` responses
    /// to its request. Returns the hook if there is no longer a reason to pause.
    pub(super) fn pause(
        &self,
        hook: ResumeHook,
        unwritten: Option<&Arc<ResponseCount>>,
    ) -> Option<ResumeHook> {
        let mut paused = self.paused.lock("pause a model");
        paused.push(PausedModel { hook, unwritten: unwritten.cloned() });
        self.wait();
        fence(Ordering::SeqCst);
        let is_full = unwritten.is_some_and(|unwritten| unwritten.is_full()) && !self.is_over();
        if is_full || self.is_congested() { None } else { paused.pop().map(|model| model.hook) }
    }

    /// Counts a response. Returns true if there is room for it.
    pub(super) fn charge_response(&self, bytes: usize) -> bool {
        let has_room = self.connection.charge_response(bytes, CallKind::Stream);
        if has_room {
            self.unwritten_messages.fetch_add(1, Ordering::Relaxed);
            self.unwritten_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        has_room
    }

    /// Releases a response that has been written or dropped.
    pub(super) fn release_response(&self, bytes: usize) {
        self.unwritten_messages.fetch_sub(1, Ordering::Relaxed);
        self.unwritten_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.connection.release_response(bytes, CallKind::Stream);
        // A waiter sets its flag first and then reads the counts after its own fence, so one of the
        // two threads sees the other's write.
        fence(Ordering::SeqCst);
        self.wake_if_waiting();
    }
}

/// Decoupled models pause when the client doesn't read, within the same limits as new requests.
impl CongestionPoint for StreamBudget {
    fn is_congested(&self) -> bool {
        let is_full = self.unwritten_messages() >= self.limits.messages_max
            || self.unwritten_bytes() >= self.limits.bytes_max;
        is_full && !self.is_over()
    }

    fn when_free(&self, hook: ResumeHook) -> Option<ResumeHook> {
        self.pause(hook, None)
    }
}
