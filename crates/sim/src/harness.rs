//! The one way to step a scheduler here: compared with the naive one, checked,
//! counted and hashed.

use std::collections::VecDeque;

use galatea_policy::{Actions, Event, Time};

use crate::batching::{Scheduler, has_open_batch};
use crate::check::{Check, ensure};
use crate::deed::Deed;
use crate::examiner::{Examiner, Oracle};
use crate::hash::TraceHash;
use crate::permits::{PermitBook, is_about_permits};
use crate::setup::Setup;

/// What decisions are compared with.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Reference {
    /// The naive scheduler, action by action, and the checks.
    #[default]
    Oracle,
    /// The checks alone.
    ChecksOnly,
    /// As `Oracle`, with a rate limiter that grants each permit at once: that
    /// must make no difference.
    OracleWithPermits,
}

/// A scheduler under examination.
#[derive(Clone, Debug)]
pub struct Harness {
    scheduler: Scheduler,
    oracle: Option<Oracle>,
    examiner: Examiner,
    actions: Actions,
    /// If there is a rate limiter.
    permits: Option<PermitBook>,
    has_own_rule: bool,
    hash: TraceHash,
    steps: u64,
}

impl Harness {
    /// A new scheduler.
    pub fn new(setup: &Setup, reference: Reference) -> Self {
        let (scheduler, permits) = match reference {
            Reference::Oracle | Reference::ChecksOnly => (setup.scheduler(), None),
            Reference::OracleWithPermits => {
                (setup.scheduler().with_permits(), Some(PermitBook::default()))
            }
        };
        Harness {
            scheduler,
            permits,
            oracle: match reference {
                Reference::Oracle | Reference::OracleWithPermits => Some(Oracle::new(setup)),
                Reference::ChecksOnly => None,
            },
            examiner: Examiner::new(setup),
            actions: Actions::default(),
            has_own_rule: setup.custom.is_some(),
            hash: TraceHash::default(),
            steps: 0,
        }
    }

    /// Steps the scheduler and says what it did, or which promise it broke.
    pub fn step(&mut self, now: Time, event: Event) -> Result<Vec<Deed>, String> {
        let deeds = self.step_with_permits(now, event)?;
        self.steps += 1;
        self.hash.event(now.0, &event);
        deeds.iter().for_each(|deed| self.hash.deed(deed));
        self.examiner.check_step(now, &event, &deeds)?;
        let wakeup = self.scheduler.next_wakeup();
        self.examiner.check_wakeup(wakeup)?;
        let (said, waiting) = (self.scheduler.queued(), self.examiner.queued());
        ensure!(said == waiting, "{said} queued, {waiting} wait");
        if self.steps.is_multiple_of(4) {
            self.examiner.check_status(&self.scheduler)?;
        }
        self.compare(now, event, &deeds, wakeup)?;
        self.check_closed(&deeds)?;
        Ok(deeds)
    }

    /// Steps, and grants what is asked for until nobody asks.
    fn step_with_permits(&mut self, now: Time, event: Event) -> Result<Vec<Deed>, String> {
        let mut deeds = Vec::new();
        let mut asked = VecDeque::new();
        let mut next = Some(event);
        while let Some(event) = next {
            self.scheduler.step(now, event, &mut self.actions);
            for action in self.actions.drain() {
                match &mut self.permits {
                    Some(permits) => asked.extend(permits.enter(&event, &action)?),
                    None => ensure!(!is_about_permits(&action), "{action:?} without permits"),
                }
                deeds.extend(Deed::of(action));
            }
            next = None;
            if let Some(permits) = &mut self.permits {
                permits.check_nobody_sits_on_one()?;
                asked.retain(|instance| permits.has_asked(*instance));
                if let Some(instance) = asked.pop_front() {
                    permits.grant(instance)?;
                    next = Some(Event::PermitGranted(instance));
                }
            }
        }
        Ok(deeds)
    }

    fn compare(&mut self, now: Time, event: Event, deeds: &[Deed], wakeup: Option<Time>) -> Check {
        let Some(oracle) = &mut self.oracle else { return Ok(()) };
        let expected = oracle.step(now, event);
        let is_same = arranged(deeds) == arranged(&expected);
        ensure!(is_same, "it did {deeds:?}, the naive scheduler {expected:?}");
        let expected = oracle.next_wakeup();
        ensure!(wakeup == expected, "it wakes at {wakeup:?}, the naive scheduler at {expected:?}");
        Ok(())
    }

    /// The model's own rule hears of the end of a batch when it goes, or when
    /// nobody is left in it.
    fn check_closed(&self, deeds: &[Deed]) -> Check {
        if !self.has_own_rule || self.scheduler.queued() > 0 {
            return Ok(());
        }
        let ran = deeds.iter().any(|deed| matches!(deed, Deed::Run { .. }));
        let is_open = (ran || self.examiner.can_run()) && has_open_batch(&self.scheduler);
        ensure!(!is_open, "nobody waits, but the model's own rule has a batch open");
        Ok(())
    }

    /// Whether a well-behaved driver can say this at that time.
    pub fn allows(&self, now: Time, event: &Event) -> bool {
        self.examiner.allows(now, event)
    }

    /// When the scheduler wants to be woken.
    pub fn next_wakeup(&self) -> Option<Time> {
        self.scheduler.next_wakeup()
    }

    /// The latest time of a step.
    pub fn now(&self) -> Time {
        self.examiner.now()
    }

    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Requests that wait.
    pub fn queued(&self) -> usize {
        self.examiner.queued()
    }

    /// A hash of all events and deeds so far.
    pub fn trace_hash(&self) -> u64 {
        self.hash.0
    }

    /// Whether `Drained` was said.
    pub fn is_drained(&self) -> bool {
        self.examiner.is_drained()
    }

    /// Whether some instance takes whatever comes.
    pub fn has_staying_lane(&self) -> bool {
        self.examiner.has_staying_lane()
    }

    /// The scheduler's state in full, for whoever looks for what it forgot to
    /// forget.
    pub fn state(&self) -> String {
        format!("{:?}", self.scheduler)
    }

    /// After everything is over nothing may be left anywhere.
    pub fn check_empty(&self) -> Check {
        let status = self.scheduler.status();
        let no_sequences = status
            .sequences
            .as_ref()
            .is_none_or(|sequences| sequences.slots.is_empty() && sequences.backlog.is_empty());
        let empty = self.scheduler.queued() == 0
            && status.queues.is_empty()
            && no_sequences
            && self.scheduler.next_wakeup().is_none();
        ensure!(empty, "it is quiet, but something is left: {status:?}");
        ensure!(self.is_drained(), "it is quiet after a drain, but drained was not said");
        Ok(())
    }
}

/// The deeds with what says that an instance is gone behind all others, by id:
/// where it comes means nothing to anybody.
fn arranged(deeds: &[Deed]) -> Vec<&Deed> {
    let mut arranged: Vec<&Deed> = deeds.iter().collect();
    arranged.sort_by_key(|deed| match deed {
        Deed::Removed(instance) => Some(*instance),
        Deed::Run { .. } | Deed::Fail(..) | Deed::Closed(_) | Deed::Ended(_) | Deed::Drained => {
            None
        }
    });
    arranged
}
