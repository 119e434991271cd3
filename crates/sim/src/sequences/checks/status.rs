//! Checks of the scheduler's status.

use galatea_policy::{
    InstanceId, InstanceStatus, SequenceSlotStatus, SequenceSlotWaitReason, WaitingSequenceStatus,
};

use super::super::ledger::{LaneRecord, Ledger, Sequence};
use super::wakeups;
use crate::check::{Check, ensure};
use crate::custom_batching::Scheduler;

pub(crate) fn check_status(ledger: &Ledger, scheduler: &Scheduler) -> Check {
    let status = scheduler.status();
    let Some(sequences) = status.sequences else {
        return Err("the status has no sequences".to_owned());
    };
    let slots = expected_slots(ledger);
    ensure!(sequences.slots == slots, "slots are {slots:?}, not {:?}", sequences.slots);
    let backlog = expected_backlog(ledger);
    let reported = &sequences.backlog;
    ensure!(*reported == backlog, "the backlog is {backlog:?}, not {reported:?}");
    let staying = ledger.lanes.values().filter(|lane| !lane.removing);
    let free = staying.flat_map(|lane| &lane.slots).filter(|occupant| occupant.is_none()).count();
    let counts = (sequences.taken_slots, sequences.backlogged);
    let is_counted = u64::try_from(slots.len()) == Ok(counts.0) && backlog.len() == counts.1;
    ensure!(is_counted, "the status counts {counts:?} slots and sequences");
    let reported = sequences.free_slots;
    ensure!(u64::try_from(free) == Ok(reported), "{free} slots are free, not {reported}");
    check_lanes(ledger, &status.lanes)?;
    ensure!(status.draining == ledger.draining, "the status is wrong about draining");
    Ok(())
}

fn expected_slots(ledger: &Ledger) -> Vec<SequenceSlotStatus> {
    let mut slots = Vec::new();
    for (id, lane) in ledger.lanes.iter() {
        for (slot, occupant) in lane.slots.iter().enumerate() {
            let Some(key) = occupant else { continue };
            let sequence = &ledger.sequences[key];
            slots.push(SequenceSlotStatus {
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

fn expected_wait(
    ledger: &Ledger,
    lane: &LaneRecord,
    sequence: &Sequence,
) -> SequenceSlotWaitReason {
    if sequence.executing.is_some() {
        SequenceSlotWaitReason::Execution
    } else if sequence.queue.is_empty() {
        SequenceSlotWaitReason::Request { idle_at: ledger.ends_at(sequence) }
    } else if ledger.held {
        SequenceSlotWaitReason::Hold
    } else if lane.busy {
        SequenceSlotWaitReason::Lane
    } else {
        SequenceSlotWaitReason::BatchDelay {
            until: wakeups::dispatch_time(ledger, &ledger.ready(lane)),
        }
    }
}

fn expected_backlog(ledger: &Ledger) -> Vec<WaitingSequenceStatus> {
    let describe = |key| {
        let sequence = &ledger.sequences[key];
        let (waiting, fails_at) = (sequence.queue.len(), ledger.ends_at(sequence));
        WaitingSequenceStatus { sequence: *key, waiting, fails_at }
    };
    ledger.backlog.iter().map(describe).collect()
}

fn check_lanes(ledger: &Ledger, reported: &[InstanceStatus]) -> Check {
    let describe = |(id, lane): (&InstanceId, &LaneRecord)| {
        let (instance, since) = (*id, lane.since);
        // An instance that is being removed is treated like any other while it has sequences.
        let is_removing = lane.removing && lane.slots.iter().all(Option::is_none);
        match (lane.busy, is_removing) {
            (false, _) => InstanceStatus::Free { instance, since },
            (true, false) => InstanceStatus::Busy { instance, since },
            (true, true) => InstanceStatus::Removing { instance, busy_since: since },
        }
    };
    let known: Vec<InstanceStatus> = ledger.lanes.iter().map(describe).collect();
    ensure!(reported == known, "the status says {reported:?} of lanes {known:?}");
    Ok(())
}
