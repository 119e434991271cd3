//! Ends of executions that no client waits for any more.
//!
//! An execution may take long, and its clients may leave meanwhile. Short executions must
//! pay nothing for that, so nothing follows the cancellations of their requests. Instead an
//! alarm looks at the execution of an instance now and then, and ends it if each of its
//! requests is cancelled. The alarm goes on while there are executions to look at, so that
//! few executions set one.

use crate::time::Time;

/// So long an execution is left alone, and so much time passes between two looks.
pub const WATCH_INTERVAL_NS: u64 = 100_000_000;

/// Watches the executions of one instance, one at a time.
#[derive(Debug, Default)]
pub struct CancellationWatch {
    /// When the execution in progress began.
    begun: Option<Time>,
    /// True if it was told to end.
    is_terminated: bool,
    /// True if an alarm will lead to a look.
    has_alarm: bool,
}

/// The result of a look.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct WatchResult {
    /// True if the execution in progress is told to end, perhaps once more.
    pub terminates: bool,
    /// When the next look is due.
    pub next: Option<Time>,
}

impl CancellationWatch {
    /// An execution begins. Returns when to look at it, unless an alarm is set already.
    pub fn begin_execution(&mut self, now: Time) -> Option<Time> {
        assert!(self.begun.is_none(), "an instance executes one batch at a time");
        self.begun = Some(now);
        let has_alarm = std::mem::replace(&mut self.has_alarm, true);
        (!has_alarm).then(|| now.saturating_add(WATCH_INTERVAL_NS))
    }

    /// The execution is over. Returns whether it was told to end, which must be taken back.
    #[must_use]
    pub fn end_execution(&mut self) -> bool {
        self.begun = None;
        std::mem::take(&mut self.is_terminated)
    }

    /// The alarm fired. `are_all_cancelled` is about the requests of the execution in
    /// progress.
    pub fn check_cancelled(&mut self, now: Time, are_all_cancelled: bool) -> WatchResult {
        let Some(begun) = self.begun else {
            self.has_alarm = false;
            return WatchResult { terminates: false, next: None };
        };
        let due = begun.saturating_add(WATCH_INTERVAL_NS);
        if now < due {
            return WatchResult { terminates: false, next: Some(due) };
        }
        self.is_terminated |= are_all_cancelled;
        let next = Some(now.saturating_add(WATCH_INTERVAL_NS));
        WatchResult { terminates: are_all_cancelled, next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Time {
        Time(milliseconds * 1_000_000)
    }

    const fn look(terminates: bool, next: Option<Time>) -> WatchResult {
        WatchResult { terminates, next }
    }

    #[test]
    fn an_execution_without_clients_is_ended_until_it_is_over() {
        let mut watch = CancellationWatch::default();
        assert_eq!(watch.begin_execution(at(5)), Some(at(105)));
        assert_eq!(watch.check_cancelled(at(105), false), look(false, Some(at(205))));
        assert_eq!(watch.check_cancelled(at(210), true), look(true, Some(at(310))));
        assert_eq!(watch.check_cancelled(at(310), true), look(true, Some(at(410))));
        assert!(watch.end_execution());
        // The next execution is another one.
        assert_eq!(watch.begin_execution(at(400)), None);
        assert!(!watch.end_execution());
    }

    #[test]
    fn a_short_execution_is_left_alone() {
        let mut watch = CancellationWatch::default();
        assert_eq!(watch.begin_execution(at(0)), Some(at(100)));
        assert!(!watch.end_execution());
        // The alarm of the first one finds another, which has not lasted long.
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
