//! Termination of executions whose clients have all disconnected.
//!
//! [`CancellationWatch`](galatea_policy::CancellationWatch) decides, and this module is its driver.
//! The timer's thread checks an executing lane, and asks the instance to terminate a long execution
//! whose requests are all cancelled.
//!
//! The lock is held during that request to the instance, and the lane's thread takes the lock after
//! each execution. `infer/cancel.rs` describes the cancellation protocol and its races.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use galatea_backend::ExecutionTerminator;
use galatea_infer::{CancelToken, PendingRequest};
use galatea_policy::{CancellationWatch, Time};
use galatea_stdx::Lock;

use crate::timer::{AlarmHandler, Timer};

/// Watches a lane's executions.
pub(super) struct LaneWatch {
    terminator: Arc<dyn ExecutionTerminator>,
    timer: Timer,
    /// The zero point of the watch's time.
    epoch: Instant,
    /// A reference to this watch, for alarms.
    this: Weak<Self>,
    state: Lock<WatchState>,
}

#[derive(Default)]
struct WatchState {
    decision: CancellationWatch,
    /// The cancellation tokens of the execution in progress. The vector is kept to reuse its
    /// memory.
    tokens: Vec<CancelToken>,
}

/// An execution in progress, which ends on drop.
pub(super) struct WatchedExecution<'w> {
    watch: &'w LaneWatch,
}

impl LaneWatch {
    pub(super) fn new(terminator: Arc<dyn ExecutionTerminator>, timer: Timer) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            terminator,
            timer,
            epoch: Instant::now(),
            this: this.clone(),
            state: Lock::default(),
        })
    }

    /// Watches the execution of these requests, which begins at `start`. Returns `None` if the
    /// execution must not be terminated. That is the case if a request can't be cancelled, or
    /// belongs to a sequence, whose state it changes even if its client is no longer waiting.
    pub(super) fn watch_execution(
        &self,
        start: Instant,
        requests: &[PendingRequest],
    ) -> Option<WatchedExecution<'_>> {
        let may_end = |one: &PendingRequest| {
            one.request().cancel.can_be_cancelled() && one.sequence().is_none()
        };
        if !requests.iter().all(may_end) {
            return None;
        }
        let mut state = self.state.lock("watch an execution");
        state.tokens.extend(requests.iter().map(|one| one.request().cancel.clone()));
        let alarm = state.decision.begin_execution(self.time_at(start));
        drop(state);
        self.set_alarm(alarm);
        Some(WatchedExecution { watch: self })
    }

    fn end(&self) {
        let mut state = self.state.lock("end an execution");
        state.tokens.clear();
        if state.decision.end_execution() {
            self.terminator.reset();
        }
    }

    fn set_alarm(&self, alarm: Option<Time>) {
        if let Some(at) = alarm {
            self.timer.set(self.epoch + Duration::from_nanos(at.0), self.this.clone());
        }
    }

    fn time_at(&self, instant: Instant) -> Time {
        let nanoseconds = instant.saturating_duration_since(self.epoch).as_nanos();
        Time(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

impl AlarmHandler for LaneWatch {
    fn alarm_fired(&self) {
        let now = self.time_at(Instant::now());
        let mut state = self.state.lock("look at an execution");
        let are_all_cancelled = state.tokens.iter().all(CancelToken::is_cancelled);
        let look = state.decision.check_cancelled(now, are_all_cancelled);
        if look.terminates {
            self.terminator.terminate();
        }
        drop(state);
        self.set_alarm(look.next);
    }
}

impl Drop for WatchedExecution<'_> {
    fn drop(&mut self) {
        self.watch.end();
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
