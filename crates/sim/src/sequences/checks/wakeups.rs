//! The wake-up comes neither late nor for nothing.

use galatea_policy::Time;

use super::super::ledger::Ledger;
use super::super::lookups::Ready;
use super::super::rules::Strategy;
use super::direct;
use crate::check::{Check, ensure};
use crate::forming::Waiting;

pub(crate) fn check_wakeup(ledger: &Ledger, wakeup: Option<Time>) -> Check {
    let ends = ledger.sequences.values().filter_map(|sequence| ledger.ends_at(sequence));
    let goes = ledger.free_lanes().filter_map(|(_, lane)| goes_at(ledger, &ledger.ready(lane)));
    let next = ends.chain(goes).min();
    ensure!(wakeup == next, "wakes at {wakeup:?}, but something can happen at {next:?}");
    let is_ahead = wakeup.is_none_or(|wakeup| wakeup > ledger.now);
    ensure!(is_ahead, "wakes at {wakeup:?}, which has passed");
    Ok(())
}

/// When what waits on a free lane goes as it is.
pub(super) fn goes_at(ledger: &Ledger, ready: &[Ready<'_>]) -> Option<Time> {
    match &ledger.rules.strategy {
        Strategy::Direct { .. } => direct::goes_at(ledger, ready),
        Strategy::Oldest(forming) => {
            forming.goes_at(ready.iter().map(|ready| ready.since()).min()?)
        }
    }
}
