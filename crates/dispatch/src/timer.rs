//! The one thread that waits for deadlines of all models.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::Dispatcher;

/// A handle to the timer's thread, which ends with the last handle.
#[derive(Clone, Debug)]
pub(crate) struct Timer {
    shared: Arc<Shared>,
    /// Only ever dropped: its last drop stops the thread.
    _thread: Arc<TimerThread>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    alarms: BinaryHeap<Reverse<Alarm>>,
    stopping: bool,
}

#[derive(Debug)]
struct Alarm {
    at: Instant,
    dispatcher: Weak<Dispatcher>,
}

#[derive(Debug)]
struct TimerThread {
    shared: Arc<Shared>,
    handle: Option<JoinHandle<()>>,
}

impl Timer {
    pub(crate) fn start() -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let worker = shared.clone();
        let handle = std::thread::Builder::new()
            .name(String::from("galatea-timer"))
            .spawn(move || worker.run())?;
        let thread = TimerThread { shared: shared.clone(), handle: Some(handle) };
        Ok(Self { shared, _thread: Arc::new(thread) })
    }

    /// A timer whose alarms never go off: what they would bring is left to
    /// other events.
    #[cfg(test)]
    pub(crate) fn stopped() -> Self {
        let shared = Arc::new(Shared::default());
        let thread = TimerThread { shared: shared.clone(), handle: None };
        Self { shared, _thread: Arc::new(thread) }
    }

    /// Calls the dispatcher's [`Dispatcher::tick`] at `at`, unless it is gone
    /// by then or sets another alarm before.
    ///
    /// A dispatcher's earlier alarm is taken back: it would tick, find nothing
    /// to do and set the next one a second time, so that alarms became more
    /// and more as long as requests wait. There are as many alarms as loaded
    /// models at most, so looking at all of them is cheap.
    pub(crate) fn set(&self, at: Instant, dispatcher: Weak<Dispatcher>) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.alarms.retain(|Reverse(alarm)| !alarm.dispatcher.ptr_eq(&dispatcher));
        let is_earliest = state.alarms.peek().is_none_or(|Reverse(first)| at < first.at);
        state.alarms.push(Reverse(Alarm { at, dispatcher }));
        drop(state);
        if is_earliest {
            self.shared.changed.notify_one();
        }
    }
}

impl Shared {
    fn run(&self) {
        while let Some(dispatcher) = self.next_due() {
            if let Some(dispatcher) = dispatcher.upgrade() {
                // A model whose scheduler fails must not take the clock of
                // all others with it.
                let _ = catch_unwind(AssertUnwindSafe(|| dispatcher.tick()));
            }
        }
    }

    /// Waits for the next alarm; `None` when the timer stops.
    fn next_due(&self) -> Option<Weak<Dispatcher>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if state.stopping {
                return None;
            }
            let now = Instant::now();
            let wait = match state.alarms.peek() {
                Some(Reverse(alarm)) if alarm.at <= now => {
                    return state.alarms.pop().map(|Reverse(alarm)| alarm.dispatcher);
                }
                Some(Reverse(alarm)) => Some(alarm.at.saturating_duration_since(now)),
                None => None,
            };
            state = match wait {
                Some(wait) => {
                    let waited = self.changed.wait_timeout(state, wait);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl Drop for TimerThread {
    fn drop(&mut self) {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).stopping = true;
        self.shared.changed.notify_one();
        // The timer's own thread may hold the last dispatcher and so the last
        // handle; a thread can't wait for itself.
        if let Some(handle) = self.handle.take()
            && handle.thread().id() != std::thread::current().id()
        {
            let _ = handle.join();
        }
    }
}

impl PartialEq for Alarm {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Alarm {}

impl PartialOrd for Alarm {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Alarm {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_dispatcher_has_one_alarm_and_the_latest_set_counts() {
        let timer = Timer::start().unwrap();
        let far = Instant::now() + Duration::from_hours(1);
        // Stands for one dispatcher that is gone, so that nothing is called.
        let dispatcher = Weak::new();
        for seconds in [30, 10, 20] {
            timer.set(far + Duration::from_secs(seconds), dispatcher.clone());
        }
        let state = timer.shared.state.lock().unwrap();
        let alarms: Vec<Instant> = state.alarms.iter().map(|Reverse(alarm)| alarm.at).collect();
        assert_eq!(alarms, [far + Duration::from_secs(20)]);
    }
}
