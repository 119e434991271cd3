//! Termination of executions that no client is waiting for any more.
//!
//! Clients may leave during a long execution. Short executions must not pay for that case, so
//! cancellations of their requests aren't tracked. Instead, an alarm occasionally checks the
//! execution of an instance and terminates it if all of its requests are cancelled. The alarm
//! repeats as long as there are executions to check, so few executions have to set one.

use crate::time::Time;

/// The time before an execution is first checked, and between two checks.
pub const WATCH_INTERVAL_NS: u64 = 100_000_000;

/// Watches one instance's executions, one at a time.
#[derive(Debug, Default)]
pub struct CancellationWatch {
    /// The time at which the current execution began.
    begun: Option<Time>,
    /// True if the current execution was told to terminate.
    is_terminated: bool,
    /// True if an alarm is set that will lead to a check.
    has_alarm: bool,
}

/// The result of a check.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CancellationCheckResult {
    /// True if the current execution is told to terminate, perhaps repeatedly.
    pub terminates: bool,
    /// The time at which the next check is due.
    pub next: Option<Time>,
}

impl CancellationWatch {
    /// Begins an execution. Returns the time at which to check it, unless an alarm is already set.
    pub fn begin_execution(&mut self, now: Time) -> Option<Time> {
        assert!(self.begun.is_none(), "an instance executes one batch at a time");
        self.begun = Some(now);
        let has_alarm = std::mem::replace(&mut self.has_alarm, true);
        (!has_alarm).then(|| now.saturating_add(WATCH_INTERVAL_NS))
    }

    /// Ends the execution. Returns true if it was told to terminate, which must be undone.
    #[must_use]
    pub fn end_execution(&mut self) -> bool {
        self.begun = None;
        std::mem::take(&mut self.is_terminated)
    }

    /// Handles an alarm. `are_all_cancelled` refers to the requests of the current execution.
    pub fn check_cancelled(
        &mut self,
        now: Time,
        are_all_cancelled: bool,
    ) -> CancellationCheckResult {
        let Some(begun) = self.begun else {
            self.has_alarm = false;
            return CancellationCheckResult { terminates: false, next: None };
        };
        let due = begun.saturating_add(WATCH_INTERVAL_NS);
        if now < due {
            return CancellationCheckResult { terminates: false, next: Some(due) };
        }
        self.is_terminated |= are_all_cancelled;
        let next = Some(now.saturating_add(WATCH_INTERVAL_NS));
        CancellationCheckResult { terminates: are_all_cancelled, next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Time {
        Time(milliseconds * 1_000_000)
    }

    const fn look(terminates: bool, next: Option<Time>) -> CancellationCheckResult {
        CancellationCheckResult { terminates, next }
    }

    #[test]
    fn an_execution_without_clients_is_ended_until_it_is_over() {
        let mut watch = CancellationWatch::default();
        assert_eq!(watch.begin_execution(at(5)), Some(at(105)));
        assert_eq!(watch.check_cancelled(at(105), false), look(false, Some(at(205))));
        assert_eq!(watch.check_cancelled(at(210), true), look(true, Some(at(310))));
        assert_eq!(watch.check_cancelled(at(310), true), look(true, Some(at(410))));
        assert!(watch.end_execution());
        // The next execution is a different one.
        assert_eq!(watch.begin_execution(at(400)), None);
        assert!(!watch.end_execution());
    }

    #[test]
    fn a_short_execution_is_left_alone() {
        let mut watch = CancellationWatch::default();
        assert_eq!(watch.begin_execution(at(0)), Some(at(100)));
        assert!(!watch.end_execution());
        // The first execution's alarm finds another one, which hasn't run for long.
        assert_eq!(watch.begin_execution(at(60)), None);
        assert_eq!(watch.check_cancelled(at(100), true), look(false, Some(at(160))));
        assert_eq!(watch.check_cancelled(at(160), true), look(true, Some(at(260))));
    }

    #[test]
    fn an_idle_instance_has_no_alarm() {
        let mut watch = CancellationWatch::default();
        assert_eq!(watch.begin_execution(at(0)), Some(at(100)));
        assert!(!watch.end_execution());
        assert_eq!(watch.check_cancelled(at(100), true), look(false, None));
        assert_eq!(watch.begin_execution(at(150)), Some(at(250)));
    }
}
