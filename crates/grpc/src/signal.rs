//! How news reaches a connection's task.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use galatea_stdx::wake_batch;

use crate::answer::Failure;
use crate::stream::Place;
use crate::unwritten::Outgoing;

/// Something that happened outside a connection's task.
#[derive(Debug)]
pub(crate) enum News {
    /// A call has its answer.
    Answer {
        /// The call.
        call: CallKey,
        /// The message, or why there is none.
        outcome: Result<Outgoing, Failure>,
    },
    /// A request of a stream has a reply.
    Reply {
        /// The stream.
        call: CallKey,
        /// The request.
        place: Place,
        /// The message, or the failure that ends the stream. There is none if
        /// the request ended without a further response.
        answer: Option<Result<Outgoing, Failure>>,
        /// Whether it is the last.
        is_final: bool,
    },
    /// A stream has a reply that there is no room for.
    Overrun {
        /// The stream.
        call: CallKey,
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
    /// What is unwritten for single calls.
    call_bytes: AtomicUsize,
    /// What is unwritten for streams.
    stream_bytes: AtomicUsize,
    /// What unwritten answers keep alive beside their bytes.
    beside_bytes: AtomicUsize,
    /// What the requests of single calls take that are in progress.
    call_request_bytes: AtomicUsize,
    /// The same of streams.
    stream_request_bytes: AtomicUsize,
    /// What is there of messages that are not whole.
    arriving_bytes: AtomicUsize,
    limits: Limits,
}

/// How much of a connection's answers may be unwritten, and how much of its
/// requests unanswered.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Limits {
    /// From so much for single calls on, none is read. What streams have
    /// unwritten doesn't count here: a client may well leave a stream alone
    /// while it waits for the answer to a call.
    pub(crate) call_bytes_max: usize,
    /// From so much in all on, nothing is read.
    pub(crate) bytes_max: usize,
    /// From so much in all on, further answers are dropped.
    pub(crate) bytes_dropped: usize,
    /// What unwritten answers may keep alive beside their bytes.
    pub(crate) beside_bytes_max: usize,
    /// From so much in progress for single calls on, none is read, and from so
    /// much for streams on, no request of theirs is. They count apart: a request
    /// on a stream may wait until the client reads the stream, which may well
    /// wait for the answer to a call.
    pub(crate) request_bytes_max: usize,
    /// From so much of several messages on that are not whole, the one that
    /// brings more is refused.
    pub(crate) arriving_bytes_max: usize,
}

/// What an answer or a request is for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// A call with one answer.
    Call,
    /// A stream.
    Stream,
}

struct State {
    news: Vec<News>,
    /// Streams that can go on.
    streams: Vec<CallKey>,
    /// Whether the task is gone, so that nobody takes news.
    closed: bool,
    waker: Waker,
    /// Whether the task runs or is about to.
    awake: bool,
    /// Whether someone wanted it to while it did.
    notified: bool,
}

impl Signal {
    pub(crate) fn new(limits: Limits) -> Self {
        let state = State {
            news: Vec::new(),
            streams: Vec::new(),
            closed: false,
            waker: Waker::noop().clone(),
            awake: true,
            notified: false,
        };
        Self {
            state: Mutex::new(state),
            call_bytes: AtomicUsize::new(0),
            stream_bytes: AtomicUsize::new(0),
            beside_bytes: AtomicUsize::new(0),
            call_request_bytes: AtomicUsize::new(0),
            stream_request_bytes: AtomicUsize::new(0),
            arriving_bytes: AtomicUsize::new(0),
            limits,
        }
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

    /// Moves the streams that can go on into `into`.
    pub(crate) fn take_streams(&self, into: &mut Vec<CallKey>) {
        into.append(&mut self.lock().streams);
    }

    /// Forgets wake-ups up to here: what they announced is about to be looked
    /// at. News are not forgotten.
    pub(crate) fn settle(&self) {
        self.lock().notified = false;
    }

    /// Whether the task may rest; if not, there is something to do.
    pub(crate) fn rest(&self) -> bool {
        let mut state = self.lock();
        state.awake = state.notified || !state.news.is_empty() || !state.streams.is_empty();
        !state.awake
    }

    /// Brings news to the task.
    ///
    /// A thread in a turn wakes the task later. Until it really does, the task counts
    /// as resting, so that others who have something for it wake it at once.
    pub(crate) fn push(self: &Arc<Self>, news: News) {
        let mut state = self.lock();
        if state.closed {
            // An answer that is dropped lets go of this connection, so the
            // lock comes first.
            drop(state);
            return;
        }
        state.news.push(news);
        state.notified = true;
        let is_awake = state.awake;
        drop(state);
        if !is_awake {
            wake_batch::defer(Waker::from(self.clone()));
        }
    }

    /// Has the task look at a stream. A task that runs does so on its way:
    /// `h2` says such things while the task polls it.
    pub(crate) fn push_stream(&self, call: CallKey) {
        let mut state = self.lock();
        if !state.closed {
            state.streams.push(call);
            wake(state);
        }
    }

    /// The task is gone: drops the news, and those that are still to come.
    pub(crate) fn close(&self) {
        let news = {
            let mut state = self.lock();
            state.closed = true;
            std::mem::take(&mut state.news)
        };
        drop(news);
    }

    /// Counts an answer; returns whether there is room for it.
    pub(crate) fn hold(&self, bytes: usize, used_for: Use) -> bool {
        let has_room = self.unwritten_bytes() < self.limits.bytes_dropped;
        if has_room {
            self.count(used_for).fetch_add(bytes, Ordering::Relaxed);
        }
        has_room
    }

    /// Forgets an answer.
    pub(crate) fn let_go(&self, bytes: usize, used_for: Use) {
        self.count(used_for).fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts what an answer keeps alive beside its bytes; returns whether there is
    /// room for that.
    pub(crate) fn hold_beside(&self, bytes: usize) -> bool {
        let before = self.beside_bytes.fetch_add(bytes, Ordering::Relaxed);
        let has_room = before.saturating_add(bytes) <= self.limits.beside_bytes_max;
        if !has_room {
            self.let_go_beside(bytes);
        }
        has_room
    }

    /// Forgets what an answer kept alive.
    pub(crate) fn let_go_beside(&self, bytes: usize) {
        self.beside_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts a request that somebody works on from now on.
    pub(crate) fn begin_request(&self, bytes: usize, used_for: Use) {
        self.request_count(used_for).fetch_add(bytes, Ordering::Relaxed);
    }

    /// Nobody works on the request any more. If that makes room, the task looks
    /// for who waits for it.
    pub(crate) fn end_request(&self, bytes: usize, used_for: Use) {
        let before = self.request_count(used_for).fetch_sub(bytes, Ordering::Relaxed);
        let after = before.saturating_sub(bytes);
        let limit = self.limits.request_bytes_max;
        if after < limit && before >= limit {
            let mut state = self.lock();
            state.notified = true;
            wake(state);
        }
    }

    const fn request_count(&self, used_for: Use) -> &AtomicUsize {
        match used_for {
            Use::Call => &self.call_request_bytes,
            Use::Stream => &self.stream_request_bytes,
        }
    }

    /// A message that is not whole has `after` bytes instead of `before`; returns
    /// whether it may, beside the others. Only the task counts these.
    pub(crate) fn count_arriving(&self, before: usize, after: usize) -> bool {
        let all = self.arriving_bytes.load(Ordering::Relaxed);
        let others = all.saturating_sub(before);
        let now = others.saturating_add(after);
        self.arriving_bytes.store(now, Ordering::Relaxed);
        others == 0 || now <= self.limits.arriving_bytes_max
    }

    /// What requests take that are arriving or in progress.
    pub(crate) fn request_bytes(&self) -> usize {
        let counts = [&self.call_request_bytes, &self.stream_request_bytes, &self.arriving_bytes];
        counts.into_iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    const fn count(&self, used_for: Use) -> &AtomicUsize {
        match used_for {
            Use::Call => &self.call_bytes,
            Use::Stream => &self.stream_bytes,
        }
    }

    /// Whether so much is unwritten, or in progress, that no further request is
    /// read.
    pub(crate) fn is_full(&self, used_for: Use) -> bool {
        let is_full_for_it = match used_for {
            Use::Call => self.call_bytes.load(Ordering::Relaxed) >= self.limits.call_bytes_max,
            Use::Stream => false,
        };
        let in_progress = self.request_count(used_for).load(Ordering::Relaxed);
        is_full_for_it
            || in_progress >= self.limits.request_bytes_max
            || self.unwritten_bytes() >= self.limits.bytes_max
    }

    /// What the answers take that are not written.
    pub(crate) fn unwritten_bytes(&self) -> usize {
        let calls = self.call_bytes.load(Ordering::Relaxed);
        calls.saturating_add(self.stream_bytes.load(Ordering::Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wake(mut state: MutexGuard<'_, State>) {
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
        let mut state = self.lock();
        state.notified = true;
        wake(state);
    }
}

impl std::fmt::Debug for Signal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Signal({} bytes unwritten)", self.unwritten_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use galatea_stdx::WakeBatch;

    use super::*;
    use crate::in_progress::{Arriving, InProgress};
    use crate::stream::{Errors, StreamLimits, StreamSignal};
    use crate::unwritten::Holder;

    const LIMITS: Limits = Limits {
        call_bytes_max: 2000,
        bytes_max: 3000,
        bytes_dropped: 5000,
        beside_bytes_max: 1000,
        request_bytes_max: 1000,
        arriving_bytes_max: 500,
    };

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A signal whose task rests, and how often it was woken.
    fn resting() -> (Arc<Signal>, Arc<Count>) {
        let (signal, woken) = (Arc::new(Signal::new(LIMITS)), Arc::<Count>::default());
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
    fn news_of_a_batch_wake_when_all_are_there() {
        let (signal, woken) = resting();
        let turn = WakeBatch::begin();
        for _ in 0..8 {
            signal.push(News::Stop);
        }
        check_woken(&woken, 0);
        drop(turn);
        check_woken(&woken, 1);
    }

    #[test]
    fn news_that_wait_for_a_turn_hold_nobody_else_back() {
        let (signal, woken) = resting();
        let turn = WakeBatch::begin();
        signal.push(News::Stop);
        check_woken(&woken, 0);
        let other = signal.clone();
        std::thread::spawn(move || other.push(News::Stop)).join().unwrap();
        check_woken(&woken, 1);
        // The task runs, so there is nobody to wake at the end.
        drop(turn);
        check_woken(&woken, 1);
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

    fn answer_of(holder: Holder, text_bytes: usize) -> Option<Outgoing> {
        let text = "x".repeat(text_bytes);
        let message =
            galatea_protocol::inference::ModelConfigRequest { name: text, ..Default::default() };
        Outgoing::new(galatea_codec::grpc::frame_message(&message).unwrap(), holder)
    }

    fn answer(signal: &Arc<Signal>, text_bytes: usize) -> Option<Outgoing> {
        answer_of(Holder::Call(signal.clone()), text_bytes)
    }

    #[test]
    fn answers_are_counted_until_they_are_dropped() {
        let signal = Arc::new(Signal::new(LIMITS));
        let first = answer(&signal, 1000).unwrap();
        assert!(signal.unwritten_bytes() > 1000 && !signal.is_full(Use::Call));
        let second = answer(&signal, 1000).unwrap();
        assert!(signal.is_full(Use::Call));
        // One answer may be larger than the limit; behind it there is no room.
        let third = answer(&signal, 100_000).unwrap();
        assert!(answer(&signal, 1).is_none());
        drop(third);
        drop(first);
        assert!(!signal.is_full(Use::Call));
        drop(second);
        assert_eq!(signal.unwritten_bytes(), 0);
    }

    #[test]
    fn streams_fill_the_connection_and_not_the_part_of_calls() {
        let signal = Arc::new(Signal::new(LIMITS));
        let call = CallKey { place: 0, serial: 0 };
        let limits = StreamLimits { messages_max: 10, bytes_max: 10_000 };
        let stream = StreamSignal::new(signal.clone(), call, Errors::AsMessages, limits);
        let stream = Arc::new(stream);
        let first = answer_of(Holder::Stream(stream.clone()), 2000).unwrap();
        assert!(!signal.is_full(Use::Call) && !signal.is_full(Use::Stream));
        let second = answer_of(Holder::Stream(stream), 1000).unwrap();
        assert!(signal.is_full(Use::Call) && signal.is_full(Use::Stream));
        drop(first);
        let third = answer(&signal, 2000).unwrap();
        assert!(signal.is_full(Use::Call) && signal.is_full(Use::Stream));
        drop(second);
        assert!(signal.is_full(Use::Call) && !signal.is_full(Use::Stream));
        drop(third);
        assert_eq!(signal.unwritten_bytes(), 0);
    }

    #[test]
    fn requests_are_counted_until_nobody_works_on_them() {
        let (signal, woken) = resting();
        let begin = |bytes, used_for| InProgress::new(signal.clone(), bytes, used_for);
        let first = begin(600, Use::Call);
        assert!(!signal.is_full(Use::Call));
        let second = begin(600, Use::Call);
        assert!(signal.is_full(Use::Call) && !signal.is_full(Use::Stream));
        check_woken(&woken, 0);
        drop(first);
        // Whoever waits for room is told that there is some.
        check_woken(&woken, 1);
        assert!(!signal.is_full(Use::Call));
        drop(second);
        check_woken(&woken, 1);
        let streamed = begin(5000, Use::Stream);
        assert!(!signal.is_full(Use::Call) && signal.is_full(Use::Stream));
        drop(streamed);
        assert_eq!(signal.request_bytes(), 0);
    }

    #[test]
    fn messages_that_arrive_are_bounded_together_and_not_alone() {
        let signal = Arc::new(Signal::new(LIMITS));
        let (mut first, mut second) =
            (Arriving::new(signal.clone()), Arriving::new(signal.clone()));
        assert!(first.add(400).is_ok() && first.add(400).is_ok());
        assert!(second.add(100).is_err());
        assert_eq!(signal.request_bytes(), 900);
        drop(second);
        assert!(first.add(100).is_ok());
        assert!(first.set(0).is_ok());
        let mut third = Arriving::new(signal.clone());
        assert!(third.add(300).is_ok() && first.add(200).is_ok() && first.add(1).is_err());
        drop((first, third));
        assert_eq!(signal.request_bytes(), 0);
    }

    /// Answers hold the signal, and the signal holds answers.
    #[test]
    fn nothing_stays_in_a_closed_signal() {
        let signal = Arc::new(Signal::new(LIMITS));
        let call = CallKey { place: 0, serial: 0 };
        let news = |signal: &Arc<Signal>| News::Answer {
            call,
            outcome: answer(signal, 10).ok_or_else(crate::sink::overrun),
        };
        signal.push(news(&signal));
        signal.close();
        signal.push(news(&signal));
        signal.push_stream(call);
        assert_eq!(signal.unwritten_bytes(), 0);
        assert_eq!(Arc::strong_count(&signal), 1);
    }

    /// What `h2` says while the task polls it is looked at in the same turn.
    #[test]
    fn a_stream_that_can_go_on_keeps_the_task_from_resting() {
        let (signal, woken) = resting();
        let call = CallKey { place: 3, serial: 4 };
        signal.push_stream(call);
        check_woken(&woken, 1);
        signal.begin(&Waker::from(woken.clone()));
        signal.push_stream(call);
        assert!(!signal.rest());
        let mut streams = Vec::new();
        signal.take_streams(&mut streams);
        assert_eq!(streams, [call, call]);
        assert!(signal.rest());
        check_woken(&woken, 1);
    }
}
