//! The rules for failing and for waiting requests.

use galatea_policy::{FailReason, RequestKey, SchedulerEvent, Time, TimeoutAction};

use super::{TimedRequest, World};
use crate::check::{Check, ensure};

impl World {
    pub(super) fn check_refusal(
        &mut self,
        event: &SchedulerEvent,
        key: RequestKey,
        reason: FailReason,
    ) -> Check {
        let Some(waiting) = self.waiting.remove(&key) else {
            return Err(format!("{key:?} fails with {reason:?} after its end"));
        };
        let is_arriving = matches!(event, SchedulerEvent::Enqueue(info) if info.key == key);
        let policy = &self.queue.default_queue_policy;
        let is_right = match reason {
            FailReason::Cancelled => *event == SchedulerEvent::Cancel(key),
            FailReason::TimeoutExpired => {
                waiting.expires <= self.timed.now && policy.timeout_action == TimeoutAction::Reject
            }
            FailReason::Draining => is_arriving && self.is_draining,
            FailReason::QueueFull => is_arriving && self.level_is_full(waiting.place.0),
            FailReason::TooLate { retry_after_ns } => {
                ensure!(waiting.deadline < Time::MAX, "{key:?} has no deadline to miss");
                ensure!(retry_after_ns > 0, "{key:?} could have been answered in time");
                self.refused += u64::from(is_arriving);
                self.refused_late += u64::from(!is_arriving);
                self.is_refused_rightly(&waiting, is_arriving)
            }
            _ => false,
        };
        ensure!(is_right, "{key:?} fails with {reason:?} without cause");
        Ok(())
    }

    fn level_is_full(&self, level: u64) -> bool {
        let there = self.waiting.values().filter(|waiting| waiting.place.0 == level).count();
        let limit = u64::from(self.queue.default_queue_policy.max_queue_size);
        limit != 0 && there as u64 >= limit
    }

    /// Returns true if a request that is refused as too late would have been late, as far as the
    /// scheduler can know. On arrival, others may be served before it.
    fn is_refused_rightly(&self, waiting: &TimedRequest, is_arriving: bool) -> bool {
        let is_known = self.is_known(waiting.info.batch_size, waiting.info.length);
        let has_company = is_arriving && !self.waiting.is_empty();
        if !is_known || has_company || self.knowledge.has_unpredicted() {
            return true;
        }
        let now = self.timed.now;
        let free = self.timed.lanes.values().map(|end| end.unwrap_or(now)).min();
        let busy_ns = free.unwrap_or(now).saturating_since(now);
        self.predictable(busy_ns + self.alone_ns(waiting)) > waiting.deadline
    }

    /// Performs the checks that apply after each step.
    pub(super) fn check_rest(&mut self, event: &SchedulerEvent) -> Check {
        let (reported, waiting) = (self.timed.scheduler.queued(), self.waiting.len());
        ensure!(reported == waiting, "{reported} queued, {waiting} wait after {event:?}");
        let wakeup = self.timed.scheduler.next_wakeup();
        let first = self.waiting.values().map(|waiting| waiting.deadline).min();
        if let Some(first) = first.filter(|first| *first < Time::MAX) {
            let last = first.saturating_add(1);
            ensure!(wakeup.is_some_and(|time| time <= last), "it sleeps through a deadline");
        }
        if waiting == 0 || self.timed.lanes.values().all(Option::is_some) {
            return Ok(());
        }
        let delay_ns = self.queue.max_queue_delay_ns;
        let may_wait = self.kind.has_deadlines() || delay_ns > 0;
        let has_window = may_wait && !self.is_draining && wakeup.is_some();
        ensure!(has_window, "requests wait and an instance is free");
        if self.kind.has_deadlines() {
            return Ok(());
        }
        let order = self.in_order();
        let (list, class) = (self.list_of(&order[0]), order[0].info.shape_class);
        let front = order.iter().take_while(|one| self.list_of(one) == list);
        let until = front.clone().map(|one| one.arrived).min().unwrap_or_default();
        let until = until.saturating_add(delay_ns);
        ensure!(wakeup.is_some_and(|time| time <= until), "it waits longer than the delay");
        let is_alike = front.clone().all(|one| one.info.shape_class == class);
        ensure!(is_alike, "it waits although another class can't join");
        Ok(())
    }
}
