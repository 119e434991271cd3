//! The rules that apply to every decision about sequences, with one file for each kind of rule.
//!
//! A step has three parts, in this order: the ends by deadlines, the event, and the resulting
//! decisions.

mod batches;
mod direct;
mod failures;
mod lifecycle;
mod oldest;
mod promptness;
mod status;
mod wakeups;

use galatea_policy::{SchedulerEvent, Time};

use super::ledger::{LaneRecord, Ledger, Sequence};
use crate::check::{Check, ensure};
use crate::decision::SchedulerDecision;

pub(crate) use self::status::check_status;
pub(crate) use self::wakeups::check_wakeup;

/// Records the parts of the step, then checks the remaining state.
pub(crate) fn check_step(
    ledger: &mut Ledger,
    now: Time,
    event: &SchedulerEvent,
    decisions: &[SchedulerDecision],
) -> Check {
    ledger.now = ledger.now.max(now);
    check_count(ledger, decisions)?;
    ledger.expire();
    let mut decisions = decisions.iter();
    while lifecycle::something_expires(ledger) {
        let decision =
            decisions.next().ok_or("the time of a sequence is over, and no decision reports it")?;
        record_decision(ledger, decision)?;
    }
    ledger.fill_slots();
    record_event(ledger, event);
    decisions.try_for_each(|decision| record_decision(ledger, decision))?;
    failures::check_complete(ledger)?;
    lifecycle::check_complete(ledger)?;
    promptness::check_waiting(ledger)
}

/// Checks the number of decisions in a step. It is bounded because each decision ends a request's
/// wait, closes or ends a sequence, or ends an instance or the drain.
fn check_count(ledger: &Ledger, decisions: &[SchedulerDecision]) -> Check {
    let arriving = 1;
    let requests = ledger.queued() + ledger.executing.len() + arriving;
    let sequences = ledger.sequences.len() + arriving;
    let bound = requests + 2 * sequences + ledger.lanes.len() + 1;
    ensure!(
        decisions.len() <= bound,
        "{} decisions in one step, {bound} is the most",
        decisions.len()
    );
    Ok(())
}

fn record_event(ledger: &mut Ledger, event: &SchedulerEvent) {
    match event {
        SchedulerEvent::Enqueue(info) => ledger.arrive(info),
        SchedulerEvent::Cancel(key) => ledger.cancel(*key),
        SchedulerEvent::Released { key, release } => ledger.release(*key, *release),
        SchedulerEvent::LaneFree(id) => {
            let lane = ledger.lanes.get_mut(id).expect("it has a batch");
            (lane.busy, lane.since) = (false, ledger.now);
        }
        SchedulerEvent::AddInstance(id) => {
            let slots = vec![None; ledger.rules.slots];
            ledger
                .lanes
                .insert(*id, LaneRecord { busy: false, since: ledger.now, removing: false, slots });
            ledger.fill_slots();
        }
        SchedulerEvent::RemoveInstance(id) => {
            ledger.lanes.get_mut(id).expect("it is there").removing = true;
        }
        SchedulerEvent::Drain => {
            ledger.draining = true;
            ledger.held = false;
            ledger.sequences.values_mut().for_each(Sequence::must_close);
        }
        // With permits, this is a step of the harness that no ledger records.
        SchedulerEvent::PermitGranted(_)
        | SchedulerEvent::PermitDelayed(_)
        | SchedulerEvent::Tick => {}
    }
}

fn record_decision(ledger: &mut Ledger, decision: &SchedulerDecision) -> Check {
    match decision {
        SchedulerDecision::Execute { instance, entries, rows, .. } => {
            batches::record_batch(ledger, *instance, entries, *rows)
        }
        SchedulerDecision::Fail(key, reason) => failures::record(ledger, *key, *reason),
        SchedulerDecision::SequenceClosed(sequence) => lifecycle::record_closed(ledger, *sequence),
        SchedulerDecision::SequenceEnded(sequence) => lifecycle::record_ended(ledger, *sequence),
        SchedulerDecision::InstanceRemoved(instance) => {
            lifecycle::record_removed(ledger, *instance)
        }
        SchedulerDecision::Drained => lifecycle::record_drained(ledger),
    }
}
