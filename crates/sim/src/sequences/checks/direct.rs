//! The rules for direct batches: rows extend to the highest ready slot, and a row is padding
//! exactly if its slot has no request or one with another shape class.

use galatea_policy::{BatchEntry, InstanceId, ShapeClassId, Time};

use super::super::ledger::Ledger;
use super::super::lookups::ReadySequence;
use super::super::rules::{Strategy, later};
use crate::check::{Check, ensure};
use crate::dynamic_rules::QueuedRequest;

pub(super) fn check_batch(ledger: &Ledger, instance: InstanceId, entries: &[BatchEntry]) -> Check {
    let ready = ledger.ready(&ledger.lanes[&instance]);
    let Some(longest) = longest_waiting(&ready) else {
        return Err(format!("a batch for {instance:?}, where no slot is ready"));
    };
    let highest = ready.iter().map(|ready| ready.slot).max().unwrap_or(0);
    let rows = entries.len();
    ensure!(rows == highest + 1, "{rows} rows, but slot {highest} is the highest that is ready");
    for (row, entry) in entries.iter().enumerate() {
        let fits = fits_in_row(&ready, row, longest.shape_class());
        match entry {
            BatchEntry::Step(step) => ensure!(fits, "{:?} does not fit in row {row}", step.key),
            BatchEntry::Padding => ensure!(!fits, "padding in row {row}, whose slot is ready"),
            BatchEntry::Request(_) => return Err("a request without a sequence".to_owned()),
        }
    }
    ensure!(
        !waits(ledger, &ready),
        "a batch of {} ready slots ran, which may grow, and the delay is not over",
        ready.len()
    );
    Ok(())
}

fn fits_in_row(ready: &[ReadySequence<'_>], row: usize, shape_class: ShapeClassId) -> bool {
    ready.iter().any(|ready| ready.slot == row && ready.shape_class() == shape_class)
}

fn longest_waiting<'ready, 'ledger>(
    ready: &'ready [ReadySequence<'ledger>],
) -> Option<&'ready ReadySequence<'ledger>> {
    ready.iter().min_by_key(|ready| (ready.request.waits_since, ready.slot))
}

/// Returns true if these slots should wait for more ready slots.
pub(super) fn waits(ledger: &Ledger, ready: &[ReadySequence<'_>]) -> bool {
    let Strategy::Direct { delay_ns, minimum_ready } = ledger.rules.strategy else { return false };
    let may_wait = delay_ns != 0 && minimum_ready != 0 && !ledger.draining;
    let is_finished = longest_waiting(ready).is_some_and(|longest| {
        ledger.now.saturating_since(longest.request.waits_since) >= delay_ns
    });
    may_wait && ready.len() < minimum_ready && !is_finished
}

/// Returns the time at which waiting slots are dispatched as they are.
pub(super) fn dispatch_time(ledger: &Ledger, ready: &[ReadySequence<'_>]) -> Option<Time> {
    let Strategy::Direct { delay_ns, .. } = ledger.rules.strategy else { return None };
    later(longest_waiting(ready)?.request.waits_since, delay_ns)
}
