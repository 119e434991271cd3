//! What must hold of sequences, whatever the scheduler decided: a file for each
//! kind of promise.
//!
//! A step has three parts, in this order: what time has ended by itself, the
//! event, and what follows from it.

mod batches;
mod direct;
mod failures;
mod lifecycle;
mod oldest;
mod promptness;
mod status;
mod wakeups;

use galatea_policy::{Event, Time};

use super::ledger::{Lane, Ledger, Sequence};
use crate::check::{Check, ensure};
use crate::deed::Deed;

pub(crate) use self::status::check_status;
pub(crate) use self::wakeups::check_wakeup;

/// Enters the step's parts one by one, then looks at what is left.
pub(crate) fn check_step(ledger: &mut Ledger, now: Time, event: &Event, deeds: &[Deed]) -> Check {
    ledger.now = ledger.now.max(now);
    check_count(ledger, deeds)?;
    let mut deeds = deeds.iter();
    while lifecycle::something_expires(ledger) {
        let deed = deeds.next().ok_or("time has ended a sequence, and nothing says so")?;
        enter_deed(ledger, deed)?;
    }
    ledger.fill_seats();
    enter_event(ledger, event);
    deeds.try_for_each(|deed| enter_deed(ledger, deed))?;
    failures::check_all_said(ledger)?;
    lifecycle::check_all_said(ledger)?;
    promptness::check_waiting(ledger)
}

/// Each deed ends something: a request's waiting, a sequence's time to take
/// requests or its existence, an instance, the drain. So few can follow a step.
fn check_count(ledger: &Ledger, deeds: &[Deed]) -> Check {
    let arriving = 1;
    let requests = ledger.queued() + ledger.executing.len() + arriving;
    let sequences = ledger.sequences.len() + arriving;
    let bound = requests + 2 * sequences + ledger.lanes.len() + 1;
    ensure!(deeds.len() <= bound, "{} deeds in one step, {bound} is the most", deeds.len());
    Ok(())
}

fn enter_event(ledger: &mut Ledger, event: &Event) {
    match event {
        Event::Enqueue(ticket) => ledger.arrive(ticket),
        Event::Cancel(key) => ledger.cancel(*key),
        Event::Released { key, release } => ledger.release(*key, *release),
        Event::LaneFree(id) => {
            let lane = ledger.lanes.get_mut(id).expect("it has a batch");
            (lane.busy, lane.since) = (false, ledger.now);
        }
        Event::AddInstance(id) => {
            let seats = vec![None; ledger.rules.seats];
            ledger
                .lanes
                .insert(*id, Lane { busy: false, since: ledger.now, leaving: false, seats });
            ledger.fill_seats();
        }
        Event::RemoveInstance(id) => {
            ledger.lanes.get_mut(id).expect("it is there").leaving = true;
        }
        Event::Drain => {
            ledger.draining = true;
            ledger.held = false;
            ledger.sequences.values_mut().for_each(Sequence::must_close);
        }
        // With permits it is a step of the harness, which no ledger sees.
        Event::PermitGranted(_) | Event::PermitDelayed(_) | Event::Tick => {}
    }
}

fn enter_deed(ledger: &mut Ledger, deed: &Deed) -> Check {
    match deed {
        Deed::Run { instance, entries, rows } => {
            batches::enter_run(ledger, *instance, entries, *rows)
        }
        Deed::Fail(key, reason) => failures::enter(ledger, *key, *reason),
        Deed::Closed(sequence) => lifecycle::enter_closed(ledger, *sequence),
        Deed::Ended(sequence) => lifecycle::enter_ended(ledger, *sequence),
        Deed::Removed(instance) => lifecycle::enter_removed(ledger, *instance),
        Deed::Drained => lifecycle::enter_drained(ledger),
    }
}
