//! The single thread that waits for all models' deadlines.
//!
//! A scheduler never reads a clock: its next deadline follows from its state. The scheduler's
//! dispatcher requests one alarm for that time from the timer, and steps the scheduler when the
//! alarm fires.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use galatea_stdx::{Condvar, Lock};

/// The owner of an alarm: a dispatcher or an executing lane.
pub(crate) trait AlarmHandler: Send + Sync {
    /// Called when the alarm fires.
    fn alarm_fired(&self);
}

/// A handle to the timer's thread, which ends with the last handle.
#[derive(Clone, Debug)]
pub(crate) struct Timer {
    shared: Arc<TimerShared>,
    /// The thread, which is stopped when the last reference to it is dropped.
    _thread: Arc<TimerThread>,
}

#[derive(Debug, Default)]
struct TimerShared {
    state: Lock<TimerState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct TimerState {
    alarms: BinaryHeap<Reverse<Alarm>>,
    is_stopping: bool,
}

struct Alarm {
    at: Instant,
    handler: Weak<dyn AlarmHandler>,
}

impl std::fmt::Debug for Alarm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Alarm").field("at", &self.at).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct TimerThread {
    shared: Arc<TimerShared>,
    handle: Option<JoinHandle<()>>,
}

impl Timer {
    /// Starts the thread.
    pub(crate) fn start() -> std::io::Result<Self> {
        let shared = Arc::new(TimerShared::default());
        let worker = shared.clone();
        let handle = std::thread::Builder::new()
            .name(String::from("galatea-timer"))
            .spawn(move || worker.run())?;
        let thread = TimerThread { shared: shared.clone(), handle: Some(handle) };
        Ok(Self { shared, _thread: Arc::new(thread) })
    }

    /// A timer whose alarms never fire.
    #[cfg(test)]
    pub(crate) fn stopped() -> Self {
        let shared = Arc::new(TimerShared::default());
        let thread = TimerThread { shared: shared.clone(), handle: None };
        Self { shared, _thread: Arc::new(thread) }
    }

    /// Calls the handler at `at`, unless the handler has been dropped by then or sets another alarm
    /// in the meantime.
    ///
    /// A handler's earlier alarm is removed. Otherwise it would fire, find nothing to do, and be
    /// set again, so the number of alarms would grow while requests wait. There is at most one
    /// alarm per loaded model and one per executing instance, so scanning all alarms is cheap.
    pub(crate) fn set(&self, at: Instant, handler: Weak<dyn AlarmHandler>) {
        let mut state = self.shared.state.lock("set an alarm");
        state.alarms.retain(|Reverse(alarm)| !alarm.handler.ptr_eq(&handler));
        let is_earliest = state.alarms.peek().is_none_or(|Reverse(first)| at < first.at);
        state.alarms.push(Reverse(Alarm { at, handler }));
        drop(state);
        if is_earliest {
            self.shared.changed.notify_one();
        }
    }
}

impl TimerShared {
    fn run(&self) {
        while let Some(handler) = self.next_due() {
            if let Some(handler) = handler.upgrade() {
                // A model whose scheduler fails must not stop the clock for all others.
                let _ = catch_unwind(AssertUnwindSafe(|| handler.alarm_fired()));
            }
        }
    }

    /// Waits for the next alarm; returns `None` when the timer stops.
    fn next_due(&self) -> Option<Weak<dyn AlarmHandler>> {
        let mut state = self.state.lock("wait for the next alarm");
        loop {
            if state.is_stopping {
                return None;
            }
            let now = Instant::now();
            let wait = match state.alarms.peek() {
                Some(Reverse(alarm)) if alarm.at <= now => {
                    return state.alarms.pop().map(|Reverse(alarm)| alarm.handler);
                }
                Some(Reverse(alarm)) => Some(alarm.at.saturating_duration_since(now)),
                None => None,
            };
            state = match wait {
                Some(wait) => self.changed.wait_timeout(state, wait),
                None => self.changed.wait(state),
            };
        }
    }
}

impl Drop for TimerThread {
    fn drop(&mut self) {
        self.shared.state.lock("stop the timer").is_stopping = true;
        self.shared.changed.notify_one();
        // The timer's own thread may drop the last dispatcher and with it the last handle. A thread
        // can't wait for itself.
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

    struct Unused;

    impl AlarmHandler for Unused {
        fn alarm_fired(&self) {}
    }

    #[test]
    fn a_handler_has_one_alarm_which_was_set_last() {
        let timer = Timer::start().unwrap();
        let far = Instant::now() + Duration::from_hours(1);
        // This stands for a dropped handler.
        let handler = Weak::<Unused>::new();
        for seconds in [30, 10, 20] {
            timer.set(far + Duration::from_secs(seconds), handler.clone());
        }
        let state = timer.shared.state.lock("look at the alarms");
        let alarms: Vec<Instant> = state.alarms.iter().map(|Reverse(alarm)| alarm.at).collect();
        assert_eq!(alarms, [far + Duration::from_secs(20)]);
    }
}
