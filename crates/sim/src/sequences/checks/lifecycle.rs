//! Sequences are closed once and then ended once, at the very step that gives
//! the cause; a leaving instance goes when its seats are empty; a drain ends.

use galatea_policy::{InstanceId, SequenceKey};

use super::super::ledger::{Closing, Ledger};
use crate::check::{Check, ensure};

/// Whether time alone still has something to end in this step.
pub(super) fn something_expires(ledger: &Ledger) -> bool {
    ledger.sequences.values().any(|sequence| {
        ledger.is_overdue(sequence)
            || sequence.queue.iter().any(|fact| fact.doom.is_some())
            || sequence.closing == Closing::Due
            || ledger.is_over(sequence)
    })
}

pub(super) fn enter_closed(ledger: &mut Ledger, key: SequenceKey) -> Check {
    let Some(sequence) = ledger.sequences.get(&key) else {
        return Err(format!("{key:?} was closed, but there is no such sequence"));
    };
    ensure!(sequence.closing != Closing::Closed, "{key:?} was closed twice");
    let is_idle = sequence.is_quiet() && ledger.is_overdue(sequence);
    let caused = sequence.closing == Closing::Due || is_idle;
    ensure!(caused, "{key:?} was closed without cause");
    ledger.sequences.get_mut(&key).expect("it is there").closing = Closing::Closed;
    Ok(())
}

pub(super) fn enter_ended(ledger: &mut Ledger, key: SequenceKey) -> Check {
    let Some(sequence) = ledger.sequences.get(&key) else {
        return Err(format!("{key:?} ended, but there is no such sequence: perhaps it did before"));
    };
    ensure!(sequence.closing == Closing::Closed, "{key:?} ended before it was closed");
    ensure!(sequence.queue.is_empty(), "{key:?} ended while requests of it wait");
    ensure!(ledger.is_over(sequence), "{key:?} ended, but its request may run again");
    ledger.end(key);
    Ok(())
}

pub(super) fn enter_removed(ledger: &mut Ledger, id: InstanceId) -> Check {
    let may_go = ledger.lanes.get(&id).is_some_and(|lane| lane.leaving && lane.is_vacant());
    ensure!(may_go, "{id:?} was removed without cause, or with a batch or a sequence");
    ledger.lanes.remove(&id);
    Ok(())
}

pub(super) fn enter_drained(ledger: &mut Ledger) -> Check {
    ensure!(ledger.draining && !ledger.drained, "drained without a drain, or twice");
    ensure!(ledger.is_quiet(), "drained while requests wait or run");
    let left: Vec<_> = ledger.sequences.keys().collect();
    ensure!(left.is_empty(), "drained, but {left:?} have not ended");
    ledger.drained = true;
    Ok(())
}

/// After a step nothing that must be closed, ended or removed is left.
pub(super) fn check_all_said(ledger: &Ledger) -> Check {
    for (key, sequence) in ledger.sequences.iter() {
        ensure!(sequence.closing != Closing::Due, "{key:?} takes no more, but was not closed");
        ensure!(!ledger.is_over(sequence), "{key:?} is over, but has not ended");
        ensure!(!ledger.is_overdue(sequence), "{key:?} outlived its time");
    }
    for (id, lane) in ledger.lanes.iter() {
        ensure!(!lane.leaving || !lane.is_vacant(), "{id:?} may leave, but is still there");
    }
    let over = ledger.draining && ledger.is_quiet();
    ensure!(!over || ledger.drained, "everything is over, but drained was not said");
    Ok(())
}
