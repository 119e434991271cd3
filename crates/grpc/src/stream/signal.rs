//! What is shared between a stream, its answers, and whoever makes them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;

use galatea_infer::{CongestionPoint, ResumeHook};

use super::StreamLimits;
use crate::signal::{CallKey, News, Signal, Use};

/// What becomes of the failure of a request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Errors {
    /// It is sent as a message, and the stream goes on.
    AsMessages,
    /// It ends the stream as its status.
    AsStatus,
}

/// The side of a stream that is known outside its connection's task, and that
/// `h2` wakes when the stream can go on.
pub(crate) struct StreamSignal {
    connection: Arc<Signal>,
    call: CallKey,
    errors: Errors,
    limits: StreamLimits,
    /// How many responses are not written, and what they take.
    unwritten_messages: AtomicUsize,
    unwritten_bytes: AtomicUsize,
    /// Whether the connection's task will look at the stream.
    awake: AtomicBool,
    /// Whether the stream waits until less of it is unwritten.
    waits: AtomicBool,
    /// Whether nobody takes replies any more.
    over: AtomicBool,
    /// Models that answer many times and pause until the client has read more.
    paused: Mutex<Vec<ResumeHook>>,
}

impl StreamSignal {
    pub(crate) fn new(
        connection: Arc<Signal>,
        call: CallKey,
        errors: Errors,
        limits: StreamLimits,
    ) -> Self {
        Self {
            connection,
            call,
            errors,
            limits,
            unwritten_messages: AtomicUsize::new(0),
            unwritten_bytes: AtomicUsize::new(0),
            awake: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            over: AtomicBool::new(false),
            paused: Mutex::default(),
        }
    }

    pub(crate) fn connection(&self) -> &Signal {
        &self.connection
    }

    pub(crate) const fn call(&self) -> CallKey {
        self.call
    }

    pub(crate) const fn errors(&self) -> Errors {
        self.errors
    }

    pub(crate) const fn limits(&self) -> StreamLimits {
        self.limits
    }

    pub(crate) fn unwritten_messages(&self) -> usize {
        self.unwritten_messages.load(Ordering::Relaxed)
    }

    pub(crate) fn unwritten_bytes(&self) -> usize {
        self.unwritten_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn push(&self, news: News) {
        self.connection.push(news);
    }

    /// The task looks at the stream now.
    pub(crate) fn begin(&self) {
        self.awake.store(false, Ordering::Release);
        self.waits.store(false, Ordering::Release);
    }

    /// The task will look at the stream again when less of it is unwritten or
    /// unfinished.
    pub(crate) fn wait(&self) {
        self.waits.store(true, Ordering::Release);
    }

    /// Has the task look at the stream, if it waits for less work.
    pub(crate) fn relieve(&self) {
        if self.waits.swap(false, Ordering::AcqRel) {
            self.look();
        }
    }

    /// Has the task look at the stream.
    pub(crate) fn look(&self) {
        if !self.awake.swap(true, Ordering::AcqRel) {
            self.connection.push_stream(self.call);
        }
    }

    /// From now on replies are dropped where they are made.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Release);
        self.go_on();
    }

    /// Lets the models that paused go on, if the client has read enough. Only
    /// the connection's task may do that, and nobody from inside `h2`: they may
    /// answer at once.
    pub(crate) fn go_on(&self) {
        let go_on = {
            let mut paused = self.paused();
            if paused.is_empty() {
                return;
            }
            if self.is_congested() {
                self.wait();
                return;
            }
            std::mem::take(&mut *paused)
        };
        go_on.into_iter().for_each(|hook| hook());
    }

    fn paused(&self) -> std::sync::MutexGuard<'_, Vec<ResumeHook>> {
        self.paused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Counts an answer; returns whether there is room for it.
    pub(crate) fn hold(&self, bytes: usize) -> bool {
        let held = self.connection.hold(bytes, Use::Stream);
        if held {
            self.unwritten_messages.fetch_add(1, Ordering::Relaxed);
            self.unwritten_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        held
    }

    /// Forgets an answer.
    pub(crate) fn let_go(&self, bytes: usize) {
        self.unwritten_messages.fetch_sub(1, Ordering::Relaxed);
        self.unwritten_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.connection.let_go(bytes, Use::Stream);
        // Whoever begins to wait asks afterwards whether it still has to.
        fence(Ordering::SeqCst);
        self.relieve();
    }
}

/// Models that answer many times pause when the client doesn't read: the same
/// limits hold for them as for further requests.
impl CongestionPoint for StreamSignal {
    fn is_congested(&self) -> bool {
        let is_full = self.unwritten_messages() >= self.limits.messages_max
            || self.unwritten_bytes() >= self.limits.bytes_max;
        is_full && !self.is_over()
    }

    fn when_free(&self, hook: ResumeHook) -> Option<ResumeHook> {
        let mut paused = self.paused();
        paused.push(hook);
        self.wait();
        fence(Ordering::SeqCst);
        if self.is_congested() { None } else { paused.pop() }
    }
}

impl std::fmt::Debug for StreamSignal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StreamSignal({:?})", self.call)
    }
}

impl Wake for StreamSignal {
    fn wake(self: Arc<Self>) {
        self.look();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.look();
    }
}
