//! Who must ask for a permit, and who must not.

use galatea_policy::{
    InstanceId, LaneStatus, QueueStatus, QueueWaitReason, SchedulerStatus, SequencesStatus,
    SlotWaitReason,
};

use crate::batching::Scheduler;
use crate::check::{Check, ensure};
use crate::permits::PermitBook;

/// After a step, and after whoever must wait was told so.
pub(super) fn check_asking(scheduler: &Scheduler, book: &PermitBook) -> Check {
    let status = scheduler.status();
    match &status.sequences {
        None => check_shared(&status, scheduler.queued(), book),
        Some(sequences) => check_sequences(&status, sequences, book),
    }
}

/// Requests that wait for a permit are worth one instance each that was not told
/// to wait, or all that are free.
fn check_shared(status: &SchedulerStatus, queued: usize, book: &PermitBook) -> Check {
    let waits_for_permit = |queue: &QueueStatus| queue.waits_for == QueueWaitReason::Permit;
    if !status.queues.iter().any(waits_for_permit) {
        let asked: Vec<InstanceId> = book.asked().collect();
        ensure!(asked.is_empty(), "{asked:?} asked, and no batch could close");
        return Ok(());
    }
    let silent = free(status).find(|instance| !book.has_asked(*instance));
    let all_is_tried = book.hopeful() >= queued || silent.is_none();
    ensure!(all_is_tried, "{queued} wait, and {silent:?} is free and does not ask");
    Ok(())
}

/// An instance asks for itself, if one of its own slots waits for that.
fn check_sequences(
    status: &SchedulerStatus,
    sequences: &SequencesStatus,
    book: &PermitBook,
) -> Check {
    for instance in book.asked() {
        let mut own = sequences.slots.iter().filter(|slot| slot.instance == instance);
        let has_reason = own.any(|slot| slot.waits_for == SlotWaitReason::Permit);
        ensure!(has_reason, "{instance:?} asked, and has no batch that could close");
    }
    for instance in free(status) {
        let mut own = sequences.slots.iter().filter(|slot| slot.instance == instance);
        let waits = own.any(|slot| slot.waits_for == SlotWaitReason::Lane);
        ensure!(!waits, "{instance:?} is free, has a batch and does not ask");
    }
    Ok(())
}

fn free(status: &SchedulerStatus) -> impl Iterator<Item = InstanceId> {
    status.lanes.iter().filter_map(|lane| match lane {
        LaneStatus::Free { instance, .. } => Some(*instance),
        LaneStatus::Busy { .. } | LaneStatus::Removing { .. } => None,
    })
}
