//! Checks that every wait has a reason: no slot is free while the backlog waits, and a free lane
//! has ready requests only while their batch may grow.

use super::super::ledger::Ledger;
use super::super::lookups::ReadySequence;
use super::super::rules::Strategy;
use super::{direct, oldest};
use crate::check::{Check, ensure};

pub(super) fn check_waiting(ledger: &mut Ledger) -> Check {
    ledger.fill_slots();
    ledger.release_hold();
    check_slots(ledger)?;
    for (id, lane) in ledger.free_lanes() {
        let ready = ledger.ready(lane);
        check_lane(ledger, ready).map_err(|message| format!("{id:?}: {message}"))?;
    }
    Ok(())
}

/// Checks the ledger itself, because the ledger assigns the slots.
fn check_slots(ledger: &Ledger) -> Check {
    for lane in ledger.lanes.values() {
        let free = lane.slots.iter().any(Option::is_none);
        let wanted = !ledger.backlog.is_empty() && !lane.removing;
        ensure!(!(free && wanted), "a slot is free while the backlog waits");
    }
    Ok(())
}

fn check_lane(ledger: &Ledger, mut ready: Vec<ReadySequence<'_>>) -> Check {
    if ready.is_empty() {
        return Ok(());
    }
    match &ledger.rules.strategy {
        Strategy::Direct { .. } => {
            let waits = direct::waits(ledger, &ready);
            ensure!(waits, "the lane is free and {} ready slots wait", ready.len());
            Ok(())
        }
        Strategy::Oldest(dynamic_rules) => {
            dynamic_rules.check_waiting(ledger.context(), &oldest::in_order_of_service(&mut ready))
        }
    }
}
