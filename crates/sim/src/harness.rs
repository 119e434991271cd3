//! The one way to step a scheduler here: compared with the naive one, checked,
//! counted and hashed.

use galatea_policy::{Actions, Event, Scheduler, SchedulingSpec, Time};

use crate::checks::{check_status, check_step, check_wakeup};
use crate::deed::{Deed, TraceHash};
use crate::ledger::{Lane, Ledger};
use crate::oracle::Oracle;

/// What decisions are compared with.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Reference {
    /// The naive scheduler, action by action, and the checks.
    #[default]
    Oracle,
    /// The checks alone.
    ChecksOnly,
}

/// A scheduler under examination.
#[derive(Clone, Debug)]
pub struct Harness {
    scheduler: Scheduler,
    oracle: Option<Oracle>,
    ledger: Ledger,
    actions: Actions,
    hash: TraceHash,
    steps: u64,
}

impl Harness {
    /// A new scheduler.
    pub fn new(spec: &SchedulingSpec, reference: Reference) -> Self {
        Harness {
            scheduler: Scheduler::new(spec.clone()),
            oracle: match reference {
                Reference::Oracle => Some(Oracle::new(spec)),
                Reference::ChecksOnly => None,
            },
            ledger: Ledger::new(spec),
            actions: Actions::default(),
            hash: TraceHash::default(),
            steps: 0,
        }
    }

    /// Steps the scheduler and says what it did, or which promise it broke.
    pub fn step(&mut self, now: Time, event: Event) -> Result<Vec<Deed>, String> {
        self.scheduler.step(now, event, &mut self.actions);
        let deeds: Vec<Deed> = self.actions.drain().map(Deed::from).collect();
        self.steps += 1;
        self.hash.event(now.0, &event);
        deeds.iter().for_each(|deed| self.hash.deed(deed));
        check_step(&mut self.ledger, now, &event, &deeds)?;
        let wakeup = self.scheduler.next_wakeup();
        check_wakeup(&self.ledger, wakeup)?;
        if self.scheduler.queued() != self.ledger.waiting.len() {
            return Err(format!(
                "{} queued, {} wait",
                self.scheduler.queued(),
                self.ledger.waiting.len()
            ));
        }
        if self.steps.is_multiple_of(4) {
            check_status(&self.ledger, &self.scheduler)?;
        }
        self.compare(now, event, &deeds, wakeup)?;
        Ok(deeds)
    }

    fn compare(
        &mut self,
        now: Time,
        event: Event,
        deeds: &[Deed],
        wakeup: Option<Time>,
    ) -> Result<(), String> {
        let Some(oracle) = &mut self.oracle else { return Ok(()) };
        let expected = oracle.step(now, event);
        if deeds != expected {
            return Err(format!("it did {deeds:?}, the naive scheduler {expected:?}"));
        }
        if wakeup != oracle.next_wakeup() {
            return Err(format!(
                "it wakes at {wakeup:?}, the naive scheduler at {:?}",
                oracle.next_wakeup()
            ));
        }
        Ok(())
    }

    /// Whether a well-behaved driver can say this now.
    pub fn allows(&self, event: &Event) -> bool {
        self.ledger.allows(event)
    }

    /// When the scheduler wants to be woken.
    pub fn next_wakeup(&self) -> Option<Time> {
        self.scheduler.next_wakeup()
    }

    /// The latest time of a step.
    pub fn now(&self) -> Time {
        self.ledger.now
    }

    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// A hash of all events and deeds so far.
    pub fn trace_hash(&self) -> u64 {
        self.hash.0
    }

    /// Whether `Drained` was said.
    pub fn is_drained(&self) -> bool {
        self.ledger.drained
    }

    /// Whether some instance takes batches.
    pub fn has_staying_lane(&self) -> bool {
        self.ledger.lanes.values().any(|lane| *lane != Lane::Leaving)
    }

    /// After everything is over nothing may be left anywhere.
    pub fn check_empty(&self) -> Result<(), String> {
        let status = self.scheduler.status();
        let empty = self.scheduler.queued() == 0
            && status.queues.is_empty()
            && self.scheduler.next_wakeup().is_none();
        if !empty {
            return Err(format!("it is quiet, but something is left: {status:?}"));
        }
        if !self.is_drained() {
            return Err("it is quiet after a drain, but drained was not said".to_owned());
        }
        Ok(())
    }
}
