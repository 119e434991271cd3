//! The rules for batches with the oldest strategy: an instance's eligible requests are batched by
//! the rules of dynamic batching, in the order in which they became eligible.

use galatea_policy::{BatchEntry, InstanceId, RequestKey};

use super::super::ledger::Ledger;
use super::super::lookups::ReadySequence;
use crate::check::{Check, ensure};
use crate::dynamic_rules::DynamicRules;

pub(super) fn check_batch(
    ledger: &Ledger,
    dynamic_rules: &DynamicRules,
    instance: InstanceId,
    entries: &[BatchEntry],
) -> Check {
    let mut ready = ledger.ready(&ledger.lanes[&instance]);
    let order = in_order_of_service(&mut ready);
    let count = entries.len();
    ensure!(count > 0 && count <= order.len(), "{count} in a batch, {} are ready", order.len());
    let first: Vec<Option<RequestKey>> =
        order[..count].iter().map(|ready| Some(ready.request.key)).collect();
    let ran: Vec<Option<RequestKey>> = entries.iter().map(BatchEntry::request).collect();
    ensure!(first == ran, "{ran:?} ran, but the first in order of service are {first:?}");
    dynamic_rules.check_batch(ledger.context(), &order, count)
}

pub(super) fn in_order_of_service<'ready, 'ledger>(
    ready: &'ready mut Vec<ReadySequence<'ledger>>,
) -> Vec<&'ready ReadySequence<'ledger>> {
    ready.sort_by_key(|ready| ready.eligibility().order);
    ready.iter().collect()
}
