//! How news reaches a connection's task.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use galatea_codec::grpc::{MessageChunks, encode_infer_response};
use galatea_infer::{InferenceResponse, Reply, ResponseSink, Status};

/// Something that happened outside a connection's task.
#[derive(Debug)]
pub(crate) enum News {
    /// A call has its answer.
    Answer {
        /// The call.
        call: CallKey,
        /// The message, or why there is none.
        outcome: Result<MessageChunks, Status>,
    },
    /// The door takes no new inferences.
    Stop,
    /// The door is closed.
    Close,
}

/// A call of a connection. Places are used again, serial numbers are not: the
/// answer to a call that is over finds nothing.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallKey {
    pub(crate) place: usize,
    pub(crate) serial: u64,
}

/// The inbox of a connection's task, and the only thing that wakes it.
///
/// The task is woken when it rests, and then once, however many answers
/// arrive before it runs: waking a runtime's thread costs a system call, and
/// the answers of a batch arrive together. `h2` and the socket get this as
/// their waker too, because `h2` wakes its task whenever an answer is handed
/// to it, even by that task itself, and would have it run twice.
pub(crate) struct Signal {
    state: Mutex<State>,
}

struct State {
    news: Vec<News>,
    waker: Waker,
    /// Whether the task runs or is about to.
    awake: bool,
    /// Whether someone wanted it to while it did.
    notified: bool,
}

impl Signal {
    pub(crate) fn new() -> Self {
        let state =
            State { news: Vec::new(), waker: Waker::noop().clone(), awake: true, notified: false };
        Self { state: Mutex::new(state) }
    }

    /// The task runs; `waker` is how to wake it from now on.
    pub(crate) fn begin(&self, waker: &Waker) {
        let mut state = self.lock();
        state.awake = true;
        if !state.waker.will_wake(waker) {
            state.waker = waker.clone();
        }
    }

    /// Moves the news into `into`, which is empty.
    pub(crate) fn take(&self, into: &mut Vec<News>) {
        std::mem::swap(&mut self.lock().news, into);
    }

    /// Forgets wake-ups up to here: what they announced is about to be looked
    /// at. News are not forgotten.
    pub(crate) fn settle(&self) {
        self.lock().notified = false;
    }

    /// Whether the task may rest; if not, there is something to do.
    pub(crate) fn rest(&self) -> bool {
        let mut state = self.lock();
        state.awake = state.notified || !state.news.is_empty();
        !state.awake
    }

    /// Brings news to the task.
    pub(crate) fn push(&self, news: News) {
        let mut state = self.lock();
        state.news.push(news);
        wake(state);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wake(mut state: MutexGuard<'_, State>) {
    state.notified = true;
    if !state.awake {
        state.awake = true;
        let waker = state.waker.clone();
        drop(state);
        waker.wake();
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        wake(self.lock());
    }
}

/// Receives the replies to one call and brings the answer to the connection.
///
/// The message is encoded here, on the thread that answers: the response is
/// in that core's cache and its parts were allocated on that thread, so one
/// buffer changes threads instead of a handful.
pub(crate) struct CallSink {
    signal: Arc<Signal>,
    call: CallKey,
    replies: Replies,
}

/// What came so far; a call has one response, which may come before the end.
enum Replies {
    None,
    One(Result<InferenceResponse, Status>),
    Many(u64),
}

impl CallSink {
    pub(crate) const fn new(signal: Arc<Signal>, call: CallKey) -> Self {
        Self { signal, call, replies: Replies::None }
    }

    fn note(&mut self, outcome: Result<InferenceResponse, Status>) {
        self.replies = match &self.replies {
            Replies::None => Replies::One(outcome),
            Replies::One(_) => Replies::Many(2),
            Replies::Many(count) => Replies::Many(count.saturating_add(1)),
        };
    }
}

impl ResponseSink for CallSink {
    fn deliver(&mut self, reply: Reply) {
        let is_final = reply.is_final();
        if let Reply::Response { outcome, .. } = reply {
            self.note(outcome);
        }
        if !is_final {
            return;
        }
        let outcome = match std::mem::replace(&mut self.replies, Replies::None) {
            Replies::One(outcome) => outcome.and_then(|response| encode_infer_response(&response)),
            Replies::None => Err(Status::internal("the model ended without a response")),
            Replies::Many(count) => {
                Err(Status::internal(format!("expected a single response, got {count}")))
            }
        };
        self.signal.push(News::Answer { call: self.call, outcome });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A signal whose task rests, and how often it was woken.
    fn resting() -> (Arc<Signal>, Arc<Count>) {
        let (signal, woken) = (Arc::new(Signal::new()), Arc::<Count>::default());
        signal.begin(&Waker::from(woken.clone()));
        assert!(signal.rest());
        (signal, woken)
    }

    fn check_woken(woken: &Count, expected: u32) {
        assert_eq!(woken.0.load(Ordering::Relaxed), expected);
    }

    #[test]
    fn a_burst_of_news_wakes_once() {
        let (signal, woken) = resting();
        for _ in 0..32 {
            signal.push(News::Stop);
        }
        check_woken(&woken, 1);
        let mut news = Vec::new();
        signal.take(&mut news);
        assert_eq!(news.len(), 32);
    }

    #[test]
    fn a_task_that_runs_is_not_woken_and_does_not_rest() {
        let (signal, woken) = resting();
        let waker = Waker::from(signal.clone());
        waker.wake_by_ref();
        waker.wake_by_ref();
        check_woken(&woken, 1);
        signal.begin(&Waker::from(woken.clone()));
        waker.wake_by_ref();
        assert!(!signal.rest());
        // What was announced is looked at now, and that was all.
        signal.settle();
        assert!(signal.rest());
        check_woken(&woken, 1);
    }

    #[test]
    fn news_outlive_settling() {
        let (signal, _woken) = resting();
        signal.begin(Waker::noop());
        let mut news = Vec::new();
        signal.take(&mut news);
        signal.push(News::Stop);
        signal.settle();
        assert!(!signal.rest());
        signal.take(&mut news);
        assert_eq!(news.len(), 1);
    }

    #[test]
    fn the_latest_waker_counts() {
        let (signal, old) = resting();
        let new = Arc::<Count>::default();
        signal.begin(&Waker::from(new.clone()));
        assert!(signal.rest());
        signal.push(News::Stop);
        check_woken(&old, 0);
        check_woken(&new, 1);
    }
}
