//! Checks that the wake-up is neither late nor without effect.

use galatea_policy::Time;

use super::super::ledger::Ledger;
use super::super::lookups::ReadySequence;
use super::super::rules::Strategy;
use super::direct;
use crate::check::{Check, ensure};
use crate::dynamic_rules::QueuedRequest;

pub(crate) fn check_wakeup(ledger: &Ledger, wakeup: Option<Time>) -> Check {
    let ends = ledger.sequences.values().filter_map(|sequence| ledger.ends_at(sequence));
    let goes =
        ledger.free_lanes().filter_map(|(_, lane)| dispatch_time(ledger, &ledger.ready(lane)));
    let next = ends.chain(goes).min();
    ensure!(wakeup == next, "wakes at {wakeup:?}, but something can happen at {next:?}");
    let is_ahead = wakeup.is_none_or(|wakeup| wakeup > ledger.now);
    ensure!(is_ahead, "wakes at {wakeup:?}, which has passed");
    Ok(())
}

/// Returns the time at which the waiting requests of a free lane are dispatched as they are.
pub(super) fn dispatch_time(ledger: &Ledger, ready: &[ReadySequence<'_>]) -> Option<Time> {
    match &ledger.rules.strategy {
        Strategy::Direct { .. } => direct::dispatch_time(ledger, ready),
        Strategy::Oldest(dynamic_rules) => {
            dynamic_rules.dispatch_time(ready.iter().map(|ready| ready.since()).min()?)
        }
    }
}
