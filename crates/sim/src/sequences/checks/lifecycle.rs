//! Checks that sequences are closed once and then ended once, each in the step that causes it, that
//! an instance being removed is deleted when its slots are empty, and that a drain always ends.

use galatea_policy::{InstanceId, SequenceKey};

use super::super::ledger::{ClosingState, Ledger};
use crate::check::{Check, ensure};

/// Returns true if a deadline must still end a sequence in this step.
pub(super) fn something_expires(ledger: &Ledger) -> bool {
    ledger.sequences.values().any(|sequence| {
        ledger.is_overdue(sequence)
            || sequence.queue.iter().any(|request| request.due_failure.is_some())
            || sequence.closing == ClosingState::Due
            || ledger.is_finished(sequence)
    })
}

pub(super) fn record_closed(ledger: &mut Ledger, key: SequenceKey) -> Check {
    let Some(sequence) = ledger.sequences.get(&key) else {
        return Err(format!("{key:?} was closed, but does not exist"));
    };
    ensure!(sequence.closing != ClosingState::Closed, "{key:?} was closed twice");
    let caused = sequence.closing == ClosingState::Due || ledger.is_idle(sequence);
    ensure!(caused, "{key:?} was closed without cause");
    ledger.sequences.get_mut(&key).expect("it is there").closing = ClosingState::Closed;
    Ok(())
}

pub(super) fn record_ended(ledger: &mut Ledger, key: SequenceKey) -> Check {
    let Some(sequence) = ledger.sequences.get(&key) else {
        return Err(format!("{key:?} ended, but does not exist: perhaps it ended before"));
    };
    ensure!(sequence.closing == ClosingState::Closed, "{key:?} ended before it was closed");
    ensure!(sequence.queue.is_empty(), "{key:?} ended while requests of it wait");
    ensure!(ledger.is_finished(sequence), "{key:?} ended, but its request may run again");
    ledger.end(key);
    Ok(())
}

pub(super) fn record_removed(ledger: &mut Ledger, id: InstanceId) -> Check {
    let may_be_removed =
        ledger.lanes.get(&id).is_some_and(|lane| lane.removing && lane.is_vacant());
    ensure!(may_be_removed, "{id:?} was removed without cause, or with a batch or a sequence");
    ledger.lanes.remove(&id);
    Ok(())
}

pub(super) fn record_drained(ledger: &mut Ledger) -> Check {
    ensure!(ledger.draining && !ledger.drained, "drained without a drain, or twice");
    ensure!(ledger.is_quiet(), "drained while requests wait or run");
    let left: Vec<_> = ledger.sequences.keys().collect();
    ensure!(left.is_empty(), "drained, but {left:?} have not ended");
    ledger.drained = true;
    Ok(())
}

/// Checks after a step that no sequence or instance that must be closed, ended or removed remains.
pub(super) fn check_complete(ledger: &Ledger) -> Check {
    for (key, sequence) in ledger.sequences.iter() {
        ensure!(
            sequence.closing != ClosingState::Due,
            "{key:?} accepts no request, but was not closed"
        );
        ensure!(!ledger.is_finished(sequence), "{key:?} is finished, but has not ended");
        ensure!(!ledger.is_overdue(sequence), "{key:?} outlived its time");
    }
    for (id, lane) in ledger.lanes.iter() {
        ensure!(!lane.removing || !lane.is_vacant(), "{id:?} may be removed, but is still there");
    }
    let is_drained = ledger.draining && ledger.is_quiet();
    ensure!(!is_drained || ledger.drained, "no request is left, but drained was not reported");
    Ok(())
}
