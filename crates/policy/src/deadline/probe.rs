//! Executions against the prediction, from which the scheduler learns that it is wrong.
//!
//! Costs are learned from executions. If the latest ones were slow, because the machine was
//! busy or a backend began, all requests may look hopeless. If all are refused, nothing
//! executes and nothing new is learned. So while nothing executes and nothing waits, one of
//! several refused requests is executed all the same. If it is answered in time, the prediction
//! was wrong, and the next one is executed at once.

use crate::tuned::{REFUSALS_MAX, REFUSALS_MIN};

/// When to execute a request that looks hopeless.
#[derive(Clone, Debug)]
pub(super) struct Probe {
    refused: u32,
    interval: u32,
    /// The latest probe was answered in time.
    succeeded: bool,
}

impl Default for Probe {
    fn default() -> Self {
        Probe { refused: 0, interval: REFUSALS_MIN, succeeded: false }
    }
}

impl Probe {
    /// A request is predicted to be answered in time.
    pub(super) fn admit(&mut self) {
        *self = Probe::default();
    }

    /// Returns true if a request is executed although it is predicted to be too late, as nothing
    /// else is executed.
    pub(super) fn tries_one(&mut self) -> bool {
        self.refused += 1;
        if self.refused <= self.interval && !self.succeeded {
            return false;
        }
        (self.refused, self.succeeded) = (0, false);
        true
    }

    /// Such a request was executed, and answered in time or not.
    pub(super) fn record_result(&mut self, is_in_time: bool) {
        self.succeeded = is_in_time;
        self.interval =
            if is_in_time { REFUSALS_MIN } else { (self.interval * 2).min(REFUSALS_MAX) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_become_rare_until_a_request_is_admitted() {
        let mut probe = Probe::default();
        let mut refusals = |is_in_time| {
            let refusals = (1..).find(|_| probe.tries_one()).unwrap();
            probe.record_result(is_in_time);
            refusals
        };
        assert_eq!([refusals(false), refusals(false), refusals(false)], [33, 65, 129]);
        assert!((0..9).all(|_| refusals(false) > 129));
        assert_eq!([refusals(true), refusals(true), refusals(false)], [1025, 1, 1]);
        assert_eq!(refusals(false), 65);
        probe.admit();
        assert_eq!((1..).find(|_| probe.tries_one()), Some(33));
    }
}
