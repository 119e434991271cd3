//! Checks of which instances must request a permit and which must not.

use galatea_policy::{
    InstanceId, InstanceStatus, PriorityLevelStatus, QueueWaitReason, SchedulerStatus,
    SequenceBatcherStatus, SequenceSlotWaitReason,
};

use crate::check::{Check, ensure};
use crate::custom_batching::Scheduler;
use crate::permit_ledger::PermitLedger;

/// Checks the permit requests after a step and its delays.
pub(super) fn check_permit_requests(scheduler: &Scheduler, book: &PermitLedger) -> Check {
    let status = scheduler.status();
    match &status.sequences {
        None => check_shared(&status, scheduler.queued(), book),
        Some(sequences) => check_sequences(&status, sequences, book),
    }
}

/// Checks that for each inference request that waits for a permit, an instance has an undelayed
/// permit request, unless all free instances have requested one.
fn check_shared(status: &SchedulerStatus, queued: usize, book: &PermitLedger) -> Check {
    let waits_for_permit = |queue: &PriorityLevelStatus| queue.waits_for == QueueWaitReason::Permit;
    if !status.queues.iter().any(waits_for_permit) {
        let requested: Vec<InstanceId> = book.requested().collect();
        ensure!(requested.is_empty(), "{requested:?} requested, and no batch could close");
        return Ok(());
    }
    let without_request = free(status).find(|instance| !book.has_requested(*instance));
    let is_complete = book.undelayed_requests() >= queued || without_request.is_none();
    ensure!(is_complete, "{queued} wait, and {without_request:?} is free and has no request");
    Ok(())
}

/// Checks that an instance requests a permit if and only if one of its slots waits for it.
fn check_sequences(
    status: &SchedulerStatus,
    sequences: &SequenceBatcherStatus,
    book: &PermitLedger,
) -> Check {
    for instance in book.requested() {
        let mut own = sequences.slots.iter().filter(|slot| slot.instance == instance);
        let has_reason = own.any(|slot| slot.waits_for == SequenceSlotWaitReason::Permit);
        ensure!(has_reason, "{instance:?} requested, and has no batch that could close");
    }
    for instance in free(status) {
        let mut own = sequences.slots.iter().filter(|slot| slot.instance == instance);
        let waits = own.any(|slot| slot.waits_for == SequenceSlotWaitReason::Lane);
        ensure!(!waits, "{instance:?} is free, has a batch and no request");
    }
    Ok(())
}

fn free(status: &SchedulerStatus) -> impl Iterator<Item = InstanceId> {
    status.lanes.iter().filter_map(|lane| match lane {
        InstanceStatus::Free { instance, .. } => Some(*instance),
        InstanceStatus::Busy { .. } | InstanceStatus::Removing { .. } => None,
    })
}
