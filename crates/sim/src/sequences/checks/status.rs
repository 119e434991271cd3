//! The status page tells the truth.

use galatea_policy::{BacklogStatus, InstanceId, LaneStatus, SlotStatus, SlotWaitReason};

use super::super::ledger::{Lane, Ledger, Sequence};
use super::wakeups;
use crate::batching::Scheduler;
use crate::check::{Check, ensure};

pub(crate) fn check_status(ledger: &Ledger, scheduler: &Scheduler) -> Check {
    let status = scheduler.status();
    let Some(sequences) = status.sequences else {
        return Err("the status says nothing of sequences".to_owned());
    };
    let slots = expected_slots(ledger);
    ensure!(sequences.slots == slots, "slots are {slots:?}, not {:?}", sequences.slots);
    let backlog = expected_backlog(ledger);
    let said = &sequences.backlog;
    ensure!(*said == backlog, "the backlog is {backlog:?}, not {said:?}");
    let staying = ledger.lanes.values().filter(|lane| !lane.leaving);
    let free = staying.flat_map(|lane| &lane.seats).filter(|seat| seat.is_none()).count();
    let counts = (sequences.taken_slots, sequences.backlogged);
    let is_counted = u64::try_from(slots.len()) == Ok(counts.0) && backlog.len() == counts.1;
    ensure!(is_counted, "{counts:?} slots and sequences are said to be there");
    let said = sequences.free_slots;
    ensure!(u64::try_from(free) == Ok(said), "{free} slots are free, not {said}");
    check_lanes(ledger, &status.lanes)?;
    ensure!(status.draining == ledger.draining, "the status is wrong about draining");
    Ok(())
}

fn expected_slots(ledger: &Ledger) -> Vec<SlotStatus> {
    let mut slots = Vec::new();
    for (id, lane) in ledger.lanes.iter() {
        for (slot, seat) in lane.seats.iter().enumerate() {
            let Some(key) = seat else { continue };
            let sequence = &ledger.sequences[key];
            slots.push(SlotStatus {
                instance: *id,
                slot: u32::try_from(slot).expect("few slots"),
                sequence: *key,
                waiting: sequence.queue.len(),
                waits_for: expected_wait(ledger, lane, sequence),
            });
        }
    }
    slots
}

fn expected_wait(ledger: &Ledger, lane: &Lane, sequence: &Sequence) -> SlotWaitReason {
    if sequence.executing.is_some() {
        SlotWaitReason::Execution
    } else if sequence.queue.is_empty() {
        SlotWaitReason::Request { idle_at: ledger.ends_at(sequence) }
    } else if ledger.held {
        SlotWaitReason::Hold
    } else if lane.busy {
        SlotWaitReason::Lane
    } else {
        SlotWaitReason::BatchDelay { until: wakeups::goes_at(ledger, &ledger.ready(lane)) }
    }
}

fn expected_backlog(ledger: &Ledger) -> Vec<BacklogStatus> {
    let describe = |key| {
        let sequence = &ledger.sequences[key];
        let (waiting, fails_at) = (sequence.queue.len(), ledger.ends_at(sequence));
        BacklogStatus { sequence: *key, waiting, fails_at }
    };
    ledger.backlog.iter().map(describe).collect()
}

fn check_lanes(ledger: &Ledger, said: &[LaneStatus]) -> Check {
    let describe = |(id, lane): (&InstanceId, &Lane)| {
        let (instance, since) = (*id, lane.since);
        // While it holds sequences, an instance that shall go is as any other.
        let has_left = lane.leaving && lane.seats.iter().all(Option::is_none);
        match (lane.busy, has_left) {
            (false, _) => LaneStatus::Free { instance, since },
            (true, false) => LaneStatus::Busy { instance, since },
            (true, true) => LaneStatus::Removing { instance, busy_since: since },
        }
    };
    let known: Vec<LaneStatus> = ledger.lanes.iter().map(describe).collect();
    ensure!(said == known, "the status says {said:?} of lanes {known:?}");
    Ok(())
}
