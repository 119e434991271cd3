//! Checks of the scheduler's status.

use galatea_policy::{InstanceId, InstanceStatus, PriorityLevelStatus, QueueWaitReason, Time};

use super::ledger::{LaneState, Ledger, LedgerLane};
use crate::check::{Check, ensure};
use crate::custom_batching::Scheduler;
use crate::dynamic_rules::{QueuedRequest, rows_of};

pub(crate) fn check_status(ledger: &Ledger, scheduler: &Scheduler) -> Check {
    let status = scheduler.status();
    let waiting: usize = status.queues.iter().map(|queue| queue.waiting).sum();
    ensure!(waiting == ledger.waiting.len(), "the status says {waiting} wait");
    let waits_for = expected_reason(ledger);
    for queue in &status.queues {
        check_level(ledger, queue)?;
        let reported = queue.waits_for;
        ensure!(
            reported == waits_for,
            "it waits for {waits_for:?}, and the status says {reported:?}"
        );
    }
    let lanes: Vec<(InstanceId, LedgerLane)> = status.lanes.iter().map(lane_of).collect();
    let known: Vec<(InstanceId, LedgerLane)> =
        ledger.lanes.iter().map(|(id, lane)| (*id, *lane)).collect();
    ensure!(lanes == known, "the status says {lanes:?} of lanes {known:?}");
    ensure!(status.draining == ledger.draining, "the status is wrong about draining");
    ensure!(status.sequences.is_none(), "the status has sequences");
    Ok(())
}

fn check_level(ledger: &Ledger, queue: &PriorityLevelStatus) -> Check {
    let level = queue.priority;
    let here = || ledger.waiting.iter().filter(|request| request.level == level);
    ensure!(queue.waiting == here().count(), "the status is wrong about level {level}");
    let oldest = here().map(|request| request.enqueued).min();
    ensure!(oldest == Some(queue.oldest), "the oldest of level {level} is of {oldest:?}");
    let is_delayed = |time: Time| time <= ledger.now;
    let delayed = here().filter(|request| request.move_back_at.is_some_and(is_delayed)).count();
    ensure!(queue.delayed == delayed, "{delayed} were moved back at level {level}");
    Ok(())
}

/// Returns the reason why all requests wait. With a free lane, they form a single batch.
fn expected_reason(ledger: &Ledger) -> QueueWaitReason {
    if ledger.held > 0 {
        return QueueWaitReason::Hold { missing: ledger.held };
    }
    if !ledger.can_run() {
        return QueueWaitReason::Lane;
    }
    let dynamic_rules = &ledger.rules.dynamic_rules;
    let pending = rows_of(&ledger.waiting.iter().collect::<Vec<_>>());
    let larger = dynamic_rules.preferred.iter().filter(|size| **size > pending);
    let small = |rows: u64| u32::try_from(rows).expect("batches are small");
    QueueWaitReason::BatchDelay {
        pending_batch_size: small(pending),
        next_preferred_batch_size: larger.min().copied().map_or(0, small),
        until: ledger
            .waiting
            .iter()
            .map(QueuedRequest::since)
            .min()
            .and_then(|at| dynamic_rules.dispatch_time(at)),
    }
}

fn lane_of(status: &InstanceStatus) -> (InstanceId, LedgerLane) {
    let (instance, state, since) = match *status {
        InstanceStatus::Free { instance, since } => (instance, LaneState::Free, since),
        InstanceStatus::Busy { instance, since } => (instance, LaneState::Busy, since),
        InstanceStatus::Removing { instance, busy_since } => {
            (instance, LaneState::Removing, busy_since)
        }
    };
    (instance, LedgerLane { state, since })
}
