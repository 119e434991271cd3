//! One terminal outcome per request, and a failure only with its cause: refused
//! on arrival, cancelled, or too long in the backlog.

use galatea_policy::{FailReason, RequestKey, SequenceKey};

use super::super::ledger::{Ledger, Place};
use crate::check::{Check, ensure};

pub(super) fn enter(ledger: &mut Ledger, request: RequestKey, reason: FailReason) -> Check {
    if ledger.refused == Some((request, reason)) {
        ledger.refused = None;
        return Ok(());
    }
    let Some(key) = ledger.sequence_of(request) else {
        return Err(format!(
            "{request:?} fails with {reason:?}, but does not wait: a second outcome, or refused without cause"
        ));
    };
    if reason == FailReason::SequenceTimeoutExpired {
        doom_if_expired(ledger, key);
    }
    let queue = &mut ledger.sequences.get_mut(&key).expect("it was found").queue;
    let Some(first) = queue.iter().position(|fact| fact.doom.is_some()) else {
        return Err(format!("{request:?} fails with {reason:?} without cause"));
    };
    let fact = &queue[first];
    ensure!(fact.key == request, "{request:?} fails, but {:?} comes first", fact.key);
    ensure!(fact.doom == Some(reason), "{request:?} fails with {reason:?}, not {:?}", fact.doom);
    queue.remove(first);
    ledger.take_turn(key);
    Ok(())
}

/// The earliest expiry in the backlog takes the whole sequence with it.
fn doom_if_expired(ledger: &mut Ledger, key: SequenceKey) {
    let sequence = ledger.sequences.get_mut(&key).expect("it was found");
    let expires = sequence.queue.iter().filter_map(|fact| fact.expires).min();
    if sequence.place != Place::Backlog || expires.is_none_or(|expires| expires > ledger.now) {
        return;
    }
    for fact in &mut sequence.queue {
        fact.doom = Some(FailReason::SequenceTimeoutExpired);
    }
    sequence.must_close();
}

/// After a step nothing that must fail is left.
pub(super) fn check_all_said(ledger: &Ledger) -> Check {
    ensure!(ledger.refused.is_none(), "{:?} was due and did not come", ledger.refused);
    for fact in ledger.sequences.values().flat_map(|sequence| &sequence.queue) {
        ensure!(fact.doom.is_none(), "{:?} must fail with {:?}, but waits", fact.key, fact.doom);
    }
    Ok(())
}
