//! Connection activity: the event that a connection waits for, and the time at which the wait
//! began.
//!
//! Code that reads from or writes to a client reports the start and end of each wait
//! ([`ConnectionActivity::wait_for_client`]). That costs two memory stores and no timer: once a
//! second, a task on the I/O thread checks all of the thread's connections (`watch.rs`) and ends
//! the waits that have taken too long. The same state shows which connections can be closed when
//! there are too many.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};

use galatea_stdx::Lock;
use galatea_stdx::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A time in whole seconds since the server began to listen.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct UptimeSeconds(pub u32);

impl UptimeSeconds {
    /// Returns the seconds from `earlier` to this time. The result may be up to one second too
    /// high.
    const fn since(self, earlier: Self) -> u32 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The next step that a client must take.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum AwaitedClientStep {
    /// The client may begin a request. The connection may be closed at any time.
    Idle,
    /// The client must send the rest of a request's head.
    Head,
    /// The client must send more of a request's body.
    Body,
    /// The client must read more of a response.
    Response,
}

/// The number of seconds that a client may take; `None` means no limit.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct ClientTimeouts {
    /// The time from the end of a response to the next request.
    pub idle: Option<u32>,
    /// The time from the first byte of a head to its last one.
    pub head: Option<u32>,
    /// The time without progress on a body or a response.
    pub stall: Option<u32>,
}

impl ClientTimeouts {
    /// Returns true if a wait that began at `since` is overdue at `now`. It has then lasted for at
    /// least the permitted time and at most two seconds longer.
    #[must_use]
    pub const fn has_timed_out(
        &self,
        waiting: AwaitedClientStep,
        since: UptimeSeconds,
        now: UptimeSeconds,
    ) -> bool {
        let seconds_max = match waiting {
            AwaitedClientStep::Idle => self.idle,
            AwaitedClientStep::Head => self.head,
            AwaitedClientStep::Body | AwaitedClientStep::Response => self.stall,
        };
        match seconds_max {
            Some(seconds_max) => now.since(since) > seconds_max,
            None => false,
        }
    }
}

/// The error for a wait that took too long, or for a connection that had to make room.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ClientTimedOut;

/// The activity of a connection. It is shared with the code that may end a wait.
#[derive(Debug)]
pub struct ConnectionActivity {
    /// An [`ActivityState`], encoded in bits.
    state: AtomicU64,
    /// The time that the connection's I/O thread read last.
    now: Arc<AtomicU32>,
    /// Wakes the connection's task.
    waker: Lock<Option<Waker>>,
}

/// The states of a connection: `Serving` ⇄ `AwaitedClientStep` → `ClientTimedOut` → `Serving`, and
/// `AwaitedClientStep(Idle)` → `Evicted`, which is final.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum ActivityState {
    /// The server is working, or the connection has not reported what it waits for.
    Serving,
    Waiting(AwaitedClientStep, UptimeSeconds),
    /// The wait took too long.
    Overdue,
    /// Another connection has taken this one's place.
    Evicted,
}

impl ActivityState {
    const fn bits(self) -> u64 {
        let (kind, UptimeSeconds(since)) = match self {
            Self::Serving => (0, UptimeSeconds(0)),
            Self::Waiting(AwaitedClientStep::Idle, since) => (1, since),
            Self::Waiting(AwaitedClientStep::Head, since) => (2, since),
            Self::Waiting(AwaitedClientStep::Body, since) => (3, since),
            Self::Waiting(AwaitedClientStep::Response, since) => (4, since),
            Self::Overdue => (5, UptimeSeconds(0)),
            Self::Evicted => (6, UptimeSeconds(0)),
        };
        // No bits are lost: 32 bits and 3.
        (since as u64) << 3 | kind
    }

    fn of(bits: u64) -> Self {
        let since = UptimeSeconds(u32::try_from(bits >> 3).unwrap_or(u32::MAX));
        match bits & 7 {
            0 => Self::Serving,
            1 => Self::Waiting(AwaitedClientStep::Idle, since),
            2 => Self::Waiting(AwaitedClientStep::Head, since),
            3 => Self::Waiting(AwaitedClientStep::Body, since),
            4 => Self::Waiting(AwaitedClientStep::Response, since),
            5 => Self::Overdue,
            _ => Self::Evicted,
        }
    }
}

impl Default for ConnectionActivity {
    /// Creates the activity of an unwatched connection.
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

impl ConnectionActivity {
    /// Creates the activity of a connection in the `Serving` state, on a thread with this clock.
    pub(crate) fn new(now: Arc<AtomicU32>) -> Self {
        Self { state: AtomicU64::new(ActivityState::Serving.bits()), now, waker: Lock::new(None) }
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> UptimeSeconds {
        UptimeSeconds(self.now.load(Ordering::Relaxed))
    }

    /// Sets the waiting task, which is woken when a wait ends. A task calls this once.
    pub fn set_waker(&self, waker: &Waker) {
        *self.waker.lock("attach a task") = Some(waker.clone());
    }

    /// Begins a wait for the client. Time limits count from `since`.
    pub fn begin_wait(&self, waiting: AwaitedClientStep, since: UptimeSeconds) {
        let state = ActivityState::Waiting(waiting, since).bits();
        // An eviction is final.
        let _ = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
            (ActivityState::of(now) != ActivityState::Evicted).then_some(state)
        });
    }

    /// Ends a wait because the client has acted.
    ///
    /// # Errors
    ///
    /// Returns an error if another connection has taken this one's place in the meantime, so this
    /// one must be closed.
    pub fn end_wait(&self) -> Result<(), ClientTimedOut> {
        let served = ActivityState::Serving.bits();
        match ActivityState::of(self.state.swap(served, Ordering::AcqRel)) {
            ActivityState::Evicted => {
                self.state.store(ActivityState::Evicted.bits(), Ordering::Release);
                Err(ClientTimedOut)
            }
            ActivityState::Serving | ActivityState::Waiting(..) | ActivityState::Overdue => Ok(()),
        }
    }

    /// Returns true if the wait has been ended.
    #[must_use]
    pub fn has_expired(&self) -> bool {
        let state = ActivityState::of(self.state.load(Ordering::Acquire));
        matches!(state, ActivityState::Overdue | ActivityState::Evicted)
    }

    /// Returns the time since which the connection has been idle, if it is idle.
    pub(crate) fn idle_since(&self) -> Option<UptimeSeconds> {
        match ActivityState::of(self.state.load(Ordering::Acquire)) {
            ActivityState::Waiting(AwaitedClientStep::Idle, since) => Some(since),
            ActivityState::Serving
            | ActivityState::Waiting(..)
            | ActivityState::Overdue
            | ActivityState::Evicted => None,
        }
    }

    /// Returns true if at least `seconds` seconds have passed since `since`.
    pub(crate) fn has_passed(&self, since: UptimeSeconds, seconds: u32) -> bool {
        self.now().since(since) > seconds
    }

    /// Evicts the connection if it has been idle since `idle_since`.
    pub(crate) fn evict(&self, idle_since: UptimeSeconds) -> bool {
        self.change(
            ActivityState::Waiting(AwaitedClientStep::Idle, idle_since),
            ActivityState::Evicted,
        )
    }

    /// Ends a wait that has taken too long.
    pub(crate) fn expire(&self, timeouts: &ClientTimeouts, now: UptimeSeconds) {
        let state = ActivityState::of(self.state.load(Ordering::Acquire));
        if let ActivityState::Waiting(waiting, since) = state
            && timeouts.has_timed_out(waiting, since, now)
        {
            self.change(state, ActivityState::Overdue);
        }
    }

    fn change(&self, from: ActivityState, to: ActivityState) -> bool {
        let (ordering, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let changed = self.state.compare_exchange(from.bits(), to.bits(), ordering, failure);
        if changed.is_ok() {
            let waker = self.waker.lock("wake a task").clone();
            waker.iter().for_each(Waker::wake_by_ref);
        }
        changed.is_ok()
    }

    /// Waits for the client to act.
    ///
    /// # Errors
    ///
    /// Returns an error if that takes too long, or the connection has to make room for another one.
    pub async fn wait_for_client<T>(
        &self,
        waiting: AwaitedClientStep,
        future: impl Future<Output = T>,
    ) -> Result<T, ClientTimedOut> {
        self.wait_for_client_since(waiting, self.now(), future).await
    }

    /// Like [`Self::wait_for_client`], for an action that the client should have begun at `since`.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`ConnectionActivity::wait_for_client`].
    pub async fn wait_for_client_since<T>(
        &self,
        waiting: AwaitedClientStep,
        since: UptimeSeconds,
        future: impl Future<Output = T>,
    ) -> Result<T, ClientTimedOut> {
        let mut future = pin!(future);
        let mut has_begun = false;
        let done = poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Ok(done)),
            Poll::Pending => {
                if !std::mem::replace(&mut has_begun, true) {
                    self.begin_wait(waiting, since);
                }
                if self.has_expired() { Poll::Ready(Err(ClientTimedOut)) } else { Poll::Pending }
            }
        })
        .await?;
        if has_begun {
            self.end_wait()?;
        }
        Ok(done)
    }
}

#[cfg(all(test, loom_models))]
mod models;

#[cfg(test)]
mod tests {
    use std::task::Context;

    use super::*;

    #[test]
    fn states_survive_as_bits() {
        let waits = [
            AwaitedClientStep::Idle,
            AwaitedClientStep::Head,
            AwaitedClientStep::Body,
            AwaitedClientStep::Response,
        ];
        let waits = waits.map(|waiting| ActivityState::Waiting(waiting, UptimeSeconds(u32::MAX)));
        for state in waits.into_iter().chain([
            ActivityState::Serving,
            ActivityState::Overdue,
            ActivityState::Evicted,
        ]) {
            assert_eq!(ActivityState::of(state.bits()), state);
        }
    }

    #[test]
    fn a_wait_is_never_cut_short() {
        let timeouts = ClientTimeouts { idle: None, head: Some(60), stall: Some(5) };
        let check = |waiting, now, expected| {
            assert_eq!(
                timeouts.has_timed_out(waiting, UptimeSeconds(10), UptimeSeconds(now)),
                expected,
                "{waiting:?}"
            );
        };
        check(AwaitedClientStep::Idle, u32::MAX, false);
        // The wait may have begun at the end of second 10.
        check(AwaitedClientStep::Head, 70, false);
        check(AwaitedClientStep::Head, 71, true);
        check(AwaitedClientStep::Body, 15, false);
        check(AwaitedClientStep::Body, 16, true);
        check(AwaitedClientStep::Response, 16, true);
        check(AwaitedClientStep::Head, 3, false);
    }

    /// Polls a wait for an event, which happens if `happens` is true.
    fn wait(
        activity: &ConnectionActivity,
        happens: bool,
        meanwhile: impl FnOnce(),
    ) -> Option<bool> {
        let context = &mut Context::from_waker(Waker::noop());
        let mut is_first = true;
        let future = poll_fn(|_| {
            let is_there = happens && !std::mem::replace(&mut is_first, false);
            if is_there { Poll::Ready(()) } else { Poll::Pending }
        });
        let mut waiting = pin!(activity.wait_for_client(AwaitedClientStep::Idle, future));
        assert!(waiting.as_mut().poll(context).is_pending());
        meanwhile();
        match waiting.as_mut().poll(context) {
            Poll::Ready(done) => Some(done.is_ok()),
            Poll::Pending => None,
        }
    }

    fn activity() -> ConnectionActivity {
        ConnectionActivity::new(Arc::new(AtomicU32::new(7)))
    }

    #[test]
    fn a_wait_ends_when_it_is_overdue() {
        let timeouts = ClientTimeouts { idle: Some(1), ..ClientTimeouts::default() };
        let it = activity();
        assert_eq!(wait(&it, false, || it.expire(&timeouts, UptimeSeconds(8))), None);
        assert_eq!(wait(&it, false, || it.expire(&timeouts, UptimeSeconds(9))), Some(false));
        // An event at the last moment counts.
        assert_eq!(wait(&it, true, || it.expire(&timeouts, UptimeSeconds(9))), Some(true));
        assert!(!it.has_expired());
    }

    #[test]
    fn only_idle_connections_are_evicted_and_for_good() {
        let it = activity();
        assert_eq!(it.idle_since(), None);
        assert!(!it.evict(UptimeSeconds(7)));
        let evict = || {
            assert_eq!(it.idle_since(), Some(UptimeSeconds(7)));
            assert!(!it.evict(UptimeSeconds(6)) && it.evict(UptimeSeconds(7)) && it.has_expired());
        };
        assert_eq!(wait(&it, true, evict), Some(false));
        it.begin_wait(AwaitedClientStep::Body, UptimeSeconds(8));
        assert!(it.end_wait().is_err() && it.has_expired());
    }

    #[test]
    fn what_is_there_already_is_no_wait() {
        let it = activity();
        let context = &mut Context::from_waker(Waker::noop());
        let mut ready = pin!(it.wait_for_client(AwaitedClientStep::Idle, std::future::ready(5)));
        assert_eq!(ready.as_mut().poll(context), Poll::Ready(Ok(5)));
        assert_eq!(it.idle_since(), None);
    }
}
