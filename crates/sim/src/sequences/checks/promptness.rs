//! Nobody waits without a reason: no seat is free while the backlog waits, and
//! a free lane has ready requests only while their batch may grow.

use super::super::ledger::Ledger;
use super::super::lookups::Ready;
use super::super::rules::Strategy;
use super::{direct, oldest};
use crate::check::{Check, ensure};

pub(super) fn check_waiting(ledger: &mut Ledger) -> Check {
    ledger.fill_seats();
    ledger.loosen_hold();
    check_seats(ledger)?;
    for (id, lane) in ledger.free_lanes() {
        let ready = ledger.ready(lane);
        check_lane(ledger, ready).map_err(|message| format!("{id:?}: {message}"))?;
    }
    Ok(())
}

/// The ledger hands seats over by itself; that it can't be wrong is worth a look.
fn check_seats(ledger: &Ledger) -> Check {
    for lane in ledger.lanes.values() {
        let free = lane.seats.iter().any(Option::is_none);
        let wanted = !ledger.backlog.is_empty() && !lane.leaving;
        ensure!(!(free && wanted), "a seat is free while the backlog waits");
    }
    Ok(())
}

fn check_lane(ledger: &Ledger, mut ready: Vec<Ready<'_>>) -> Check {
    if ready.is_empty() {
        return Ok(());
    }
    match &ledger.rules.strategy {
        Strategy::Direct { .. } => {
            let waits = direct::waits(ledger, &ready);
            ensure!(waits, "the lane is free and {} ready slots wait", ready.len());
            Ok(())
        }
        Strategy::Oldest(forming) => {
            forming.check_waiting(ledger.moment(), &oldest::in_order_of_service(&mut ready))
        }
    }
}
