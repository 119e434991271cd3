//! The total waits of all requests by reason, whether explained or not.

use galatea_explain::{QueueWaitTotals, WaitReason, WaitTimes};
use galatea_policy::{CloseReason, RequestKey, Time};

use super::Observation;

/// The wait times since loading, and the current reason for waiting, which the last step set.
#[derive(Clone, Debug)]
pub(super) struct TotalWaits {
    sums: QueueWaitTotals,
    waiting: u64,
    wait: WaitReason,
}

impl Default for TotalWaits {
    fn default() -> Self {
        Self { sums: QueueWaitTotals::default(), waiting: 0, wait: WaitReason::Instance }
    }
}

impl TotalWaits {
    #[inline]
    pub(super) fn observe(&mut self, now: Time, observation: &Observation<'_>) {
        match observation {
            Observation::Closed(closing) => {
                self.pass(now);
                let is_split = closing.reason == CloseReason::Shape;
                self.sums.close_batch(if is_split { closing.left } else { 0 });
            }
            Observation::Stepped(waiting) => {
                self.pass(now);
                self.waiting = waiting.count;
                if self.waiting > 0 {
                    // The reason is the same for all requests.
                    self.wait = (waiting.wait_of)(RequestKey(0));
                }
            }
            Observation::Dropped => {
                self.pass(now);
                self.waiting = 0;
            }
            Observation::Queued(_) | Observation::Failed(..) | Observation::Freed(_) => {}
        }
    }

    /// The wait times up to `now`.
    pub(super) fn until(&self, now: Time) -> WaitTimes {
        let mut until_now = self.clone();
        until_now.pass(now);
        *until_now.sums.sums()
    }

    fn pass(&mut self, now: Time) {
        match self.waiting {
            0 => self.sums.skip_idle(now.0),
            waiting => self.sums.add_time(now.0, waiting, self.wait),
        }
    }
}
