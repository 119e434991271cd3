//! The checks and the naive scheduler for both kinds of schedulers.

use galatea_policy::{SchedulerEvent, Time};

use crate::check::Check;
use crate::custom_batching::Scheduler;
use crate::decision::SchedulerDecision;
use crate::setup::SchedulerSetup;
use crate::stateless::ledger::LaneState;
use crate::{sequences, stateless};

/// The checks of a scheduler, together with their ledger.
#[derive(Clone, Debug)]
pub(crate) enum Checker {
    Stateless(stateless::ledger::Ledger),
    Sequences(sequences::ledger::Ledger),
}

impl Checker {
    pub(crate) fn new(setup: &SchedulerSetup) -> Self {
        if setup.is_sequential() {
            Checker::Sequences(sequences::ledger::Ledger::new(setup))
        } else {
            Checker::Stateless(stateless::ledger::Ledger::new(setup))
        }
    }

    pub(crate) fn check_step(
        &mut self,
        now: Time,
        event: &SchedulerEvent,
        decisions: &[SchedulerDecision],
    ) -> Check {
        match self {
            Checker::Stateless(ledger) => {
                stateless::checks::check_step(ledger, now, event, decisions)
            }
            Checker::Sequences(ledger) => {
                sequences::checks::check_step(ledger, now, event, decisions)
            }
        }
    }

    pub(crate) fn check_wakeup(&self, wakeup: Option<Time>) -> Check {
        match self {
            Checker::Stateless(ledger) => stateless::checks::check_wakeup(ledger, wakeup),
            Checker::Sequences(ledger) => sequences::checks::check_wakeup(ledger, wakeup),
        }
    }

    pub(crate) fn check_status(&self, scheduler: &Scheduler) -> Check {
        match self {
            Checker::Stateless(ledger) => stateless::status::check_status(ledger, scheduler),
            Checker::Sequences(ledger) => sequences::checks::check_status(ledger, scheduler),
        }
    }

    /// Returns the number of waiting requests.
    pub(crate) fn queued(&self) -> usize {
        match self {
            Checker::Stateless(ledger) => ledger.waiting.len(),
            Checker::Sequences(ledger) => ledger.queued(),
        }
    }

    /// Returns true if a correct driver can send this event at that time.
    pub(crate) fn allows(&self, now: Time, event: &SchedulerEvent) -> bool {
        match self {
            Checker::Stateless(ledger) => ledger.allows(event),
            Checker::Sequences(ledger) => ledger.allows(now, event),
        }
    }

    pub(crate) fn now(&self) -> Time {
        match self {
            Checker::Stateless(ledger) => ledger.now,
            Checker::Sequences(ledger) => ledger.now,
        }
    }

    pub(crate) fn is_drained(&self) -> bool {
        match self {
            Checker::Stateless(ledger) => ledger.drained,
            Checker::Sequences(ledger) => ledger.drained,
        }
    }

    /// Returns true if some instance could execute a batch now.
    pub(crate) fn can_run(&self) -> bool {
        match self {
            Checker::Stateless(ledger) => ledger.can_run(),
            Checker::Sequences(ledger) => ledger.free_lanes().next().is_some(),
        }
    }

    /// Returns true if some instance remains and accepts batches.
    pub(crate) fn has_staying_lane(&self) -> bool {
        match self {
            Checker::Stateless(ledger) => {
                ledger.lanes.values().any(|lane| lane.state != LaneState::Removing)
            }
            Checker::Sequences(ledger) => ledger.lanes.values().any(|lane| !lane.removing),
        }
    }
}

/// A naive scheduler: simple enough to be trusted, but too slow for serving.
#[derive(Clone, Debug)]
pub(crate) enum Oracle {
    Stateless(stateless::oracle::Oracle),
    Sequences(sequences::oracle::Oracle),
}

impl Oracle {
    pub(crate) fn new(setup: &SchedulerSetup) -> Self {
        if setup.is_sequential() {
            Oracle::Sequences(sequences::oracle::Oracle::new(setup))
        } else {
            Oracle::Stateless(stateless::oracle::Oracle::new(setup))
        }
    }

    pub(crate) fn step(&mut self, now: Time, event: SchedulerEvent) -> Vec<SchedulerDecision> {
        match self {
            Oracle::Stateless(oracle) => oracle.step(now, event),
            Oracle::Sequences(oracle) => oracle.step(now, event),
        }
    }

    pub(crate) fn next_wakeup(&self) -> Option<Time> {
        match self {
            Oracle::Stateless(oracle) => oracle.next_wakeup(),
            Oracle::Sequences(oracle) => oracle.next_wakeup(),
        }
    }
}
