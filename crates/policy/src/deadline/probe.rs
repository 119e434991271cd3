//! Probes: executions of requests that are predicted to be late. They reveal wrong predictions to
//! the scheduler.
//!
//! Costs are learned from executions. If the latest executions were slow because the machine was
//! busy or a backend was starting, all requests may look hopeless. If the scheduler refused all of
//! them, nothing would execute and nothing new would be learned. Therefore, while no request is
//! executing or waiting, the scheduler executes one out of several requests that it would otherwise
//! refuse. If it completes in time, the prediction was wrong, and the next such request is executed
//! immediately.

use crate::ids::InstanceId;
use crate::time::Time;
use crate::tuned::{REFUSALS_MAX, REFUSALS_MIN};

/// A probe that hasn't ended.
#[derive(Copy, Clone, Debug)]
pub(super) struct ActiveProbe {
    /// The deadline that the request is predicted to miss.
    pub(super) deadline: Time,
    /// The request's number among all arrivals.
    pub(super) arrival: u64,
    /// The instance that executes the request; `None` while it waits.
    pub(super) instance: Option<InstanceId>,
}

/// Decides when to execute a request that looks hopeless.
#[derive(Clone, Debug)]
pub(super) struct Probe {
    refused: u32,
    interval: u32,
    /// True if the latest probe completed in time.
    succeeded: bool,
}

impl Default for Probe {
    fn default() -> Self {
        Probe { refused: 0, interval: REFUSALS_MIN, succeeded: false }
    }
}

impl Probe {
    /// Records a request that is predicted to complete in time.
    pub(super) fn admit(&mut self) {
        *self = Probe::default();
    }

    /// Returns true if a request should be executed although it is predicted to be too late,
    /// because nothing else is executing.
    pub(super) fn tries_one(&mut self) -> bool {
        self.refused += 1;
        if self.refused <= self.interval && !self.succeeded {
            return false;
        }
        (self.refused, self.succeeded) = (0, false);
        true
    }

    /// Records whether a probe completed in time.
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
