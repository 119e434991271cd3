//! Checks that a request ends exactly once and fails only for a reason: it was refused on arrival,
//! cancelled, or in the backlog for too long.

use galatea_policy::{FailReason, RequestKey, SequenceKey};

use super::super::ledger::{Ledger, LedgerPlacement};
use crate::check::{Check, ensure};

pub(super) fn record(ledger: &mut Ledger, request: RequestKey, reason: FailReason) -> Check {
    if ledger.refused == Some((request, reason)) {
        ledger.refused = None;
        return Ok(());
    }
    let Some(key) = ledger.sequence_of(request) else {
        return Err(format!(
            "{request:?} fails with {reason:?}, but does not wait: it ended before, or was refused without cause"
        ));
    };
    if reason == FailReason::SequenceTimeoutExpired {
        fail_if_expired(ledger, key);
    }
    let queue = &mut ledger.sequences.get_mut(&key).expect("it was found").queue;
    let Some(first) = queue.iter().position(|request| request.due_failure.is_some()) else {
        return Err(format!("{request:?} fails with {reason:?} without cause"));
    };
    let failing = &queue[first];
    ensure!(failing.key == request, "{request:?} fails, but {:?} is first", failing.key);
    ensure!(
        failing.due_failure == Some(reason),
        "{request:?} fails with {reason:?}, not {:?}",
        failing.due_failure
    );
    queue.remove(first);
    ledger.update_eligibility(key);
    Ok(())
}

/// Fails a sequence in the backlog as a whole at the earliest timeout of its requests.
fn fail_if_expired(ledger: &mut Ledger, key: SequenceKey) {
    let sequence = ledger.sequences.get_mut(&key).expect("it was found");
    let expires = sequence.queue.iter().filter_map(|request| request.expires).min();
    if sequence.placement != LedgerPlacement::Backlog
        || expires.is_none_or(|expires| expires > ledger.now)
    {
        return;
    }
    for request in &mut sequence.queue {
        request.due_failure = Some(FailReason::SequenceTimeoutExpired);
    }
    sequence.must_close();
}

/// Checks after a step that no request that must fail remains.
pub(super) fn check_complete(ledger: &Ledger) -> Check {
    ensure!(ledger.refused.is_none(), "{:?} was due and is missing", ledger.refused);
    for request in ledger.sequences.values().flat_map(|sequence| &sequence.queue) {
        ensure!(
            request.due_failure.is_none(),
            "{:?} must fail with {:?}, but waits",
            request.key,
            request.due_failure
        );
    }
    Ok(())
}
