//! The only way to step a scheduler in this crate: each step is compared with the naive scheduler,
//! checked, counted and hashed.

use std::collections::VecDeque;

use galatea_policy::{SchedulerActions, SchedulerEvent, Time};

use crate::check::{Check, ensure};
use crate::checker::{Checker, Oracle};
use crate::custom_batching::{Scheduler, has_open_batch};
use crate::decision::SchedulerDecision;
use crate::hash::TraceHash;
use crate::permit_ledger::{PermitLedger, is_permit_action};
use crate::setup::SchedulerSetup;

/// The reference for decisions.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum OracleMode {
    /// The naive scheduler, compared decision by decision, and the checks.
    #[default]
    Oracle,
    /// Only the checks.
    ChecksOnly,
    /// The same as `Oracle`, with a rate limiter that grants each permit immediately. This must
    /// make no difference.
    OracleWithPermits,
}

/// A scheduler under test.
#[derive(Clone, Debug)]
pub struct Harness {
    scheduler: Scheduler,
    oracle: Option<Oracle>,
    checker: Checker,
    actions: SchedulerActions,
    /// The permits, if there is a rate limiter.
    permits: Option<PermitLedger>,
    has_strategy: bool,
    hash: TraceHash,
    steps: u64,
}

impl Harness {
    /// Creates a scheduler.
    pub fn new(setup: &SchedulerSetup, reference: OracleMode) -> Self {
        let (scheduler, permits) = match reference {
            OracleMode::Oracle | OracleMode::ChecksOnly => (setup.scheduler(), None),
            OracleMode::OracleWithPermits => {
                (setup.scheduler().with_permits(), Some(PermitLedger::default()))
            }
        };
        Harness {
            scheduler,
            permits,
            oracle: match reference {
                OracleMode::Oracle | OracleMode::OracleWithPermits => Some(Oracle::new(setup)),
                OracleMode::ChecksOnly => None,
            },
            checker: Checker::new(setup),
            actions: SchedulerActions::default(),
            has_strategy: setup.custom.is_some(),
            hash: TraceHash::default(),
            steps: 0,
        }
    }

    /// Steps the scheduler and returns its decisions, or the rule that it broke.
    pub fn step(
        &mut self,
        now: Time,
        event: SchedulerEvent,
    ) -> Result<Vec<SchedulerDecision>, String> {
        let decisions = self.step_with_permits(now, event)?;
        self.steps += 1;
        self.hash.event(now.0, &event);
        decisions.iter().for_each(|decision| self.hash.decision(decision));
        self.checker.check_step(now, &event, &decisions)?;
        let wakeup = self.scheduler.next_wakeup();
        self.checker.check_wakeup(wakeup)?;
        let (reported, waiting) = (self.scheduler.queued(), self.checker.queued());
        ensure!(reported == waiting, "{reported} queued, {waiting} wait");
        if self.steps.is_multiple_of(4) {
            self.checker.check_status(&self.scheduler)?;
        }
        self.compare(now, event, &decisions, wakeup)?;
        self.check_closed(&decisions)?;
        Ok(decisions)
    }

    /// Steps the scheduler and grants permits until none are requested.
    fn step_with_permits(
        &mut self,
        now: Time,
        event: SchedulerEvent,
    ) -> Result<Vec<SchedulerDecision>, String> {
        let mut decisions = Vec::new();
        let mut requested = VecDeque::new();
        let mut next = Some(event);
        while let Some(event) = next {
            self.scheduler.step(now, event, &mut self.actions);
            for action in self.actions.drain() {
                match &mut self.permits {
                    Some(permits) => requested.extend(permits.record(&event, &action)?),
                    None => ensure!(!is_permit_action(&action), "{action:?} without permits"),
                }
                decisions.extend(SchedulerDecision::of(action));
            }
            next = None;
            if let Some(permits) = &mut self.permits {
                permits.check_no_permit_is_held()?;
                requested.retain(|instance| permits.has_requested(*instance));
                if let Some(instance) = requested.pop_front() {
                    permits.grant(instance)?;
                    next = Some(SchedulerEvent::PermitGranted(instance));
                }
            }
        }
        Ok(decisions)
    }

    fn compare(
        &mut self,
        now: Time,
        event: SchedulerEvent,
        decisions: &[SchedulerDecision],
        wakeup: Option<Time>,
    ) -> Check {
        let Some(oracle) = &mut self.oracle else { return Ok(()) };
        let expected = oracle.step(now, event);
        let is_same = normalized(decisions) == normalized(&expected);
        ensure!(is_same, "it decided {decisions:?}, the naive scheduler {expected:?}");
        let expected = oracle.next_wakeup();
        ensure!(wakeup == expected, "it wakes at {wakeup:?}, the naive scheduler at {expected:?}");
        Ok(())
    }

    /// Checks that the strategy's batch is closed when it is dispatched or when its last request
    /// leaves.
    fn check_closed(&self, decisions: &[SchedulerDecision]) -> Check {
        if !self.has_strategy || self.scheduler.queued() > 0 {
            return Ok(());
        }
        let has_executed =
            decisions.iter().any(|decision| matches!(decision, SchedulerDecision::Execute { .. }));
        let is_open = (has_executed || self.checker.can_run()) && has_open_batch(&self.scheduler);
        ensure!(!is_open, "no request waits, but the batch strategy has a batch open");
        Ok(())
    }

    /// Returns true if a correct driver can send this event at that time.
    pub fn allows(&self, now: Time, event: &SchedulerEvent) -> bool {
        self.checker.allows(now, event)
    }

    /// Returns the scheduler's next wake-up.
    pub fn next_wakeup(&self) -> Option<Time> {
        self.scheduler.next_wakeup()
    }

    /// Returns the time of the latest step.
    pub fn now(&self) -> Time {
        self.checker.now()
    }

    /// Returns the number of steps so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the number of waiting requests.
    pub fn queued(&self) -> usize {
        self.checker.queued()
    }

    /// Returns a hash of all events and decisions so far.
    pub fn trace_hash(&self) -> u64 {
        self.hash.0
    }

    /// Returns true if `Drained` has been reported.
    pub fn is_drained(&self) -> bool {
        self.checker.is_drained()
    }

    /// Returns true if some instance remains and accepts batches.
    pub fn has_accepting_lane(&self) -> bool {
        self.checker.has_staying_lane()
    }

    /// Returns the scheduler's entire state as text, for finding leaks.
    pub fn state(&self) -> String {
        format!("{:?}", self.scheduler)
    }

    /// Checks that no state remains if no requests do.
    pub fn check_no_leaks(&self) -> Check {
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
        ensure!(self.is_drained(), "it is quiet after a drain, but drained was not reported");
        Ok(())
    }
}

/// Returns the decisions with instance removals moved to the end and sorted by id, because their
/// position has no meaning.
fn normalized(decisions: &[SchedulerDecision]) -> Vec<&SchedulerDecision> {
    let mut normalized: Vec<&SchedulerDecision> = decisions.iter().collect();
    normalized.sort_by_key(|decision| match decision {
        SchedulerDecision::InstanceRemoved(instance) => Some(*instance),
        SchedulerDecision::Execute { .. }
        | SchedulerDecision::Fail(..)
        | SchedulerDecision::SequenceClosed(_)
        | SchedulerDecision::SequenceEnded(_)
        | SchedulerDecision::Drained => None,
    });
    normalized
}
