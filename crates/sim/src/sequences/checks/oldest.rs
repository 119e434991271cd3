//! Batches of the next requests of an instance's sequences, by the dynamic rules:
//! who could run first goes first.

use galatea_policy::{BatchEntry, InstanceId, RequestKey};

use super::super::ledger::Ledger;
use super::super::lookups::Ready;
use crate::check::{Check, ensure};
use crate::forming::Forming;

pub(super) fn check_batch(
    ledger: &Ledger,
    forming: &Forming,
    instance: InstanceId,
    entries: &[BatchEntry],
) -> Check {
    let mut ready = ledger.ready(&ledger.lanes[&instance]);
    let order = in_order_of_service(&mut ready);
    let count = entries.len();
    ensure!(count > 0 && count <= order.len(), "{count} in a batch, {} are ready", order.len());
    let first: Vec<Option<RequestKey>> =
        order[..count].iter().map(|ready| Some(ready.fact.key)).collect();
    let ran: Vec<Option<RequestKey>> = entries.iter().map(BatchEntry::request).collect();
    ensure!(first == ran, "{ran:?} ran, but the first in order of service are {first:?}");
    forming.check_batch(ledger.moment(), &order, count)
}

pub(super) fn in_order_of_service<'ready, 'ledger>(
    ready: &'ready mut Vec<Ready<'ledger>>,
) -> Vec<&'ready Ready<'ledger>> {
    ready.sort_by_key(|ready| ready.turn().order);
    ready.iter().collect()
}
