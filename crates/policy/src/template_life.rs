//! The lifecycle of a template, which is a process that forks workers so that they start almost
//! instantly.
//!
//! Workers can always be started without a template, but that takes longer.
//! [`ForkTemplateLifecycle`] decides when a template is worth another try; its driver owns the
//! process.
//!
//! - A template is started when the first worker needs it. A template that ends or hangs, or that
//!   forks a worker that doesn't respond, is given up. Workers then start without a template for a
//!   pause that doubles with each consecutive failure. A responding worker clears all failures.
//! - A template that reports that it can't fork safely is never tried again.

use crate::time::Time;

/// The maximum time until a template must be able to fork.
pub const TEMPLATE_START_NS: u64 = 10_000_000_000;
/// The maximum time that a template may take to respond.
pub const TEMPLATE_ANSWER_NS: u64 = 2_000_000_000;
/// The maximum time until a forked worker must respond.
pub const FORKED_HELLO_NS: u64 = 5_000_000_000;
/// The pause after the first failure. It doubles with each further failure.
const TEMPLATE_PAUSE_MIN_NS: u64 = 1_000_000_000;
/// The maximum pause.
const TEMPLATE_PAUSE_MAX_NS: u64 = 300_000_000_000;

/// An event in a template's lifecycle.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum ForkTemplateEvent {
    /// A worker forked by the template responds.
    Forked,
    /// The template couldn't be started, has ended or hangs, or its worker doesn't respond.
    Failed,
    /// The template reports that it can't fork safely.
    Unsuitable,
}

/// The lifecycle of the successive templates of one environment.
#[derive(Clone, Debug, Default)]
pub struct ForkTemplateLifecycle {
    failures_in_a_row: u32,
    not_before: Time,
    is_unsuitable: bool,
}

impl ForkTemplateLifecycle {
    /// Returns true if a worker may be started with a template.
    #[must_use]
    pub fn may_fork(&self, now: Time) -> bool {
        !self.is_unsuitable && now >= self.not_before
    }

    /// Handles an event.
    pub fn step(&mut self, now: Time, event: ForkTemplateEvent) {
        match event {
            ForkTemplateEvent::Forked => self.failures_in_a_row = 0,
            ForkTemplateEvent::Unsuitable => self.is_unsuitable = true,
            ForkTemplateEvent::Failed => {
                let factor = 1_u64.checked_shl(self.failures_in_a_row).unwrap_or(u64::MAX);
                let pause = TEMPLATE_PAUSE_MIN_NS.saturating_mul(factor);
                self.not_before = now.saturating_add(pause.min(TEMPLATE_PAUSE_MAX_NS));
                self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn pauses_double_until_a_worker_speaks() {
        let mut life = ForkTemplateLifecycle::default();
        let mut now = Time(0);
        assert!(life.may_fork(now));
        for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            life.step(now, ForkTemplateEvent::Failed);
            let end = now.saturating_add(seconds * SECOND);
            assert!(!life.may_fork(Time(end.0 - 1)), "{seconds}");
            assert!(life.may_fork(end), "{seconds}");
            now = end;
        }
        life.step(now, ForkTemplateEvent::Forked);
        life.step(now, ForkTemplateEvent::Failed);
        assert!(life.may_fork(now.saturating_add(SECOND)));
    }

    #[test]
    fn one_that_cannot_fork_is_never_tried_again() {
        let mut life = ForkTemplateLifecycle::default();
        life.step(Time(0), ForkTemplateEvent::Unsuitable);
        life.step(Time(0), ForkTemplateEvent::Forked);
        assert!(!life.may_fork(Time::MAX));
    }
}
