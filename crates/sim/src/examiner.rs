//! The checks and the naive scheduler of one kind of scheduler, as one.

use galatea_policy::{Event, Time};

use crate::batching::Scheduler;
use crate::check::Check;
use crate::deed::Deed;
use crate::setup::Setup;
use crate::stateless::ledger::LaneState;
use crate::{sequences, stateless};

/// What judges a scheduler.
#[derive(Clone, Debug)]
pub(crate) enum Examiner {
    Stateless(stateless::ledger::Ledger),
    Sequences(sequences::ledger::Ledger),
}

impl Examiner {
    pub(crate) fn new(setup: &Setup) -> Self {
        if setup.is_sequential() {
            Examiner::Sequences(sequences::ledger::Ledger::new(setup))
        } else {
            Examiner::Stateless(stateless::ledger::Ledger::new(setup))
        }
    }

    pub(crate) fn check_step(&mut self, now: Time, event: &Event, deeds: &[Deed]) -> Check {
        match self {
            Examiner::Stateless(ledger) => stateless::checks::check_step(ledger, now, event, deeds),
            Examiner::Sequences(ledger) => sequences::checks::check_step(ledger, now, event, deeds),
        }
    }

    pub(crate) fn check_wakeup(&self, wakeup: Option<Time>) -> Check {
        match self {
            Examiner::Stateless(ledger) => stateless::checks::check_wakeup(ledger, wakeup),
            Examiner::Sequences(ledger) => sequences::checks::check_wakeup(ledger, wakeup),
        }
    }

    pub(crate) fn check_status(&self, scheduler: &Scheduler) -> Check {
        match self {
            Examiner::Stateless(ledger) => stateless::status::check_status(ledger, scheduler),
            Examiner::Sequences(ledger) => sequences::checks::check_status(ledger, scheduler),
        }
    }

    /// Requests that wait.
    pub(crate) fn queued(&self) -> usize {
        match self {
            Examiner::Stateless(ledger) => ledger.waiting.len(),
            Examiner::Sequences(ledger) => ledger.queued(),
        }
    }

    /// Whether a well-behaved driver can say this at that time.
    pub(crate) fn allows(&self, now: Time, event: &Event) -> bool {
        match self {
            Examiner::Stateless(ledger) => ledger.allows(event),
            Examiner::Sequences(ledger) => ledger.allows(now, event),
        }
    }

    pub(crate) fn now(&self) -> Time {
        match self {
            Examiner::Stateless(ledger) => ledger.now,
            Examiner::Sequences(ledger) => ledger.now,
        }
    }

    pub(crate) fn is_drained(&self) -> bool {
        match self {
            Examiner::Stateless(ledger) => ledger.drained,
            Examiner::Sequences(ledger) => ledger.drained,
        }
    }

    /// Whether some instance could run something now.
    pub(crate) fn can_run(&self) -> bool {
        match self {
            Examiner::Stateless(ledger) => ledger.can_run(),
            Examiner::Sequences(ledger) => ledger.free_lanes().next().is_some(),
        }
    }

    /// Whether some instance takes whatever comes.
    pub(crate) fn has_staying_lane(&self) -> bool {
        match self {
            Examiner::Stateless(ledger) => {
                ledger.lanes.values().any(|lane| lane.state != LaneState::Leaving)
            }
            Examiner::Sequences(ledger) => ledger.lanes.values().any(|lane| !lane.leaving),
        }
    }
}

/// A scheduler that is obviously right, and too slow to serve.
#[derive(Clone, Debug)]
pub(crate) enum Oracle {
    Stateless(stateless::oracle::Oracle),
    Sequences(sequences::oracle::Oracle),
}

impl Oracle {
    pub(crate) fn new(setup: &Setup) -> Self {
        if setup.is_sequential() {
            Oracle::Sequences(sequences::oracle::Oracle::new(setup))
        } else {
            Oracle::Stateless(stateless::oracle::Oracle::new(setup))
        }
    }

    pub(crate) fn step(&mut self, now: Time, event: Event) -> Vec<Deed> {
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
