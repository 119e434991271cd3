//! Limits how much a batch may delay the waiting requests.
//!
//! Companions chosen by length overtake older requests, and all requests of a batch complete when
//! the batch ends. If batches save little time, these delays are their only effect. Each request
//! therefore has a due time: the time at which it would complete if the requests before it were
//! executed one by one, in arrival order. A batch may delay a request past its due time by a share
//! of the request's wait, and this share grows with the gain of the batch. The saved time benefits
//! later requests: they get ahead of their due times, so larger batches may follow.
//!
//! A batch size that was never executed has no known gain, so its duration is assumed to be that of
//! its requests one by one. Such a batch may delay its own requests, like a batch that pays off. If
//! it couldn't, no larger batch would ever be tried if each execution costs the same.

use super::choice::PaddedChoice;
use crate::cost::PaddedCosts;
use crate::time::Time;
use crate::tuned::{GRACE, GRACE_FOR_GAIN, PAYS};

/// The time at which a request would complete if requests were executed one by one, in arrival
/// order.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct DueTime {
    pub(super) arrived: Time,
    /// [`Time::MAX`] if the time wasn't known on arrival.
    pub(super) due: Time,
    /// The duration of the request's execution alone.
    pub(super) alone_ns: u64,
}

/// Compares a batch with the due times of the waiting requests.
pub(super) struct DelayLimit {
    now: Time,
    /// The duration of the batch, as far as it is known.
    takes_ns: u64,
    /// The share of its wait by which a request may be delayed.
    grace: f64,
    /// True if the batch may delay its own requests, because it pays off or its size is unknown.
    favors_own: bool,
    instances: u64,
    /// The total time of the requests so far, executed one by one.
    ahead_ns: u64,
    /// The total time of the requests that the batch leaves out.
    left_out_ns: u64,
    /// The largest amount by which the batch exceeds the permitted delay of a request.
    excess_ns: u64,
}

impl DelayLimit {
    /// Creates a limit for a batch that begins now on one of `instances`.
    pub(super) fn new(
        now: Time,
        costs: &PaddedCosts,
        choice: &PaddedChoice,
        instances: usize,
    ) -> Self {
        let is_known = costs.knows(choice.rows, choice.length);
        let takes_ns =
            if is_known { choice.takes_ns() } else { choice.work.one_by_one_ns() as u64 };
        let pays = is_known && choice.speed >= PAYS;
        let gain = if pays { choice.speed.gain() } else { 0.0 };
        DelayLimit {
            now,
            takes_ns,
            grace: GRACE + GRACE_FOR_GAIN * gain,
            favors_own: pays || !is_known,
            instances: instances.max(1) as u64,
            ahead_ns: 0,
            left_out_ns: 0,
            excess_ns: 0,
        }
    }

    /// Adds the next waiting request in service order.
    pub(super) fn add_waiting(&mut self, due_time: &DueTime, is_chosen: bool) {
        if due_time.due == Time::MAX {
            return;
        }
        let wait_ns = due_time.due.saturating_since(due_time.arrived);
        let latest = due_time.due.saturating_add((wait_ns as f64 * self.grace) as u64);
        // A request that is already late can't complete sooner than one by one from now on.
        self.ahead_ns = self.ahead_ns.saturating_add(due_time.alone_ns);
        let latest = latest.max(self.now.saturating_add(self.ahead_ns / self.instances));
        let excess_ns = if !is_chosen {
            self.left_out_ns = self.left_out_ns.saturating_add(due_time.alone_ns);
            let behind = self.takes_ns.saturating_add(self.left_out_ns) / self.instances;
            self.now.saturating_add(behind).saturating_since(latest)
        } else if self.favors_own {
            0
        } else {
            self.now.saturating_add(self.takes_ns).saturating_since(latest)
        };
        self.excess_ns = self.excess_ns.max(excess_ns);
    }

    /// Returns the time by which a batch must end so as not to delay any of the requests too much;
    /// `None` if this batch already ends early enough.
    pub(super) fn ends_by(&self) -> Option<Time> {
        let shorter_ns = self.takes_ns.saturating_sub(self.excess_ns);
        let allowed_ns = shorter_ns.min(self.takes_ns / 10 * 9);
        (self.excess_ns > 0).then(|| self.now.saturating_add(allowed_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::padding::choice::ChoiceEnd;
    use crate::units::{Length, Rows, Speed, Work};

    /// Returns the time by which a batch of the first two requests must end if its size is unknown.
    /// Each request takes 10 alone and was due at some time before 1,000.
    fn ends_by(due: [u64; 3]) -> Option<Time> {
        let choice = PaddedChoice {
            first: 0,
            last: 1,
            rows: Rows(2),
            length: Length(4),
            earliest: Time::MAX,
            work: Work::alone(20.0),
            speed: Speed(1.2),
            end: ChoiceEnd::All,
        };
        let mut patience = DelayLimit::new(Time(1_000), &PaddedCosts::new(), &choice, 1);
        for (place, due) in due.into_iter().enumerate() {
            let due_time = DueTime { arrived: Time(0), due: Time(due), alone_ns: 10 };
            patience.add_waiting(&due_time, place < 2);
        }
        patience.ends_by()
    }

    /// On a real machine, requests fall behind their due times. If larger batches had to meet them,
    /// none would ever be tried.
    #[test]
    fn a_batch_of_an_unknown_size_is_tried_though_it_is_late() {
        assert_eq!(ends_by([10, 20, 30]), None);
    }

    #[test]
    fn younger_requests_are_not_put_off_by_those_before_them() {
        assert_eq!(ends_by([1_010, 1_020, 1_030]), None);
    }
}
