//! The rules that apply to every decision. A check's message names the broken rule.

use galatea_policy::{BatchEntry, FailReason, InstanceId, RequestKey, SchedulerEvent, Time};

use super::ledger::{LaneState, Ledger};
use crate::check::{Check, ensure};
use crate::decision::SchedulerDecision;
use crate::dynamic_rules::rows_of;

/// Records the event and each decision, then checks the remaining state.
pub(crate) fn check_step(
    ledger: &mut Ledger,
    now: Time,
    event: &SchedulerEvent,
    decisions: &[SchedulerDecision],
) -> Check {
    ledger.now = ledger.now.max(now);
    let before = ledger.waiting.len();
    let required = record_event(ledger, event);
    for decision in decisions {
        record_decision(ledger, event, decision)?;
    }
    if let Some(required) = required {
        ensure!(decisions.contains(&required), "{required:?} was due and is missing");
    }
    // Each decision ends the wait of a request, an instance or the drain.
    let bound = before + 3;
    ensure!(
        decisions.len() <= bound,
        "{} decisions in one step, {bound} is the most",
        decisions.len()
    );
    check_nothing_is_late(ledger)?;
    check_waiting_has_a_reason(ledger)
}

/// Records the event and returns the decision that it requires.
fn record_event(ledger: &mut Ledger, event: &SchedulerEvent) -> Option<SchedulerDecision> {
    match event {
        SchedulerEvent::Enqueue(info) if ledger.draining => {
            return Some(SchedulerDecision::Fail(info.key, FailReason::Draining));
        }
        SchedulerEvent::Enqueue(info) if ledger.is_full_for(info) => {
            return Some(SchedulerDecision::Fail(info.key, FailReason::QueueFull));
        }
        SchedulerEvent::Enqueue(info) => ledger.arrive(info),
        SchedulerEvent::Cancel(key) => {
            let request = &ledger.waiting[ledger.find(*key)?];
            let reason = if request.is_rejected_by(ledger.now) {
                FailReason::TimeoutExpired
            } else {
                FailReason::Cancelled
            };
            return Some(SchedulerDecision::Fail(*key, reason));
        }
        SchedulerEvent::LaneFree(id) => match ledger.state(*id) {
            Some(LaneState::Busy) => ledger.set_state(*id, LaneState::Free),
            Some(LaneState::Removing | LaneState::Free) | None => {
                return Some(SchedulerDecision::InstanceRemoved(*id));
            }
        },
        SchedulerEvent::AddInstance(id) => ledger.set_state(*id, LaneState::Free),
        SchedulerEvent::RemoveInstance(id) => match ledger.state(*id) {
            Some(LaneState::Free) => return Some(SchedulerDecision::InstanceRemoved(*id)),
            Some(LaneState::Busy) => {
                // The instance continues its batch.
                ledger.lanes.get_mut(id).expect("it is busy").state = LaneState::Removing;
            }
            Some(LaneState::Removing) | None => {}
        },
        SchedulerEvent::Drain => {
            ledger.draining = true;
            ledger.held = 0;
        }
        // This event is sent only for requests of sequences.
        SchedulerEvent::Released { .. } => {}
        // With permits, this is a step of the harness that no ledger records.
        SchedulerEvent::PermitGranted(_)
        | SchedulerEvent::PermitDelayed(_)
        | SchedulerEvent::Tick => {}
    }
    None
}

fn record_decision(
    ledger: &mut Ledger,
    event: &SchedulerEvent,
    decision: &SchedulerDecision,
) -> Check {
    match decision {
        SchedulerDecision::Execute { instance, entries, rows, .. } => {
            record_batch(ledger, *instance, &requests(entries)?, u64::from(*rows))
        }
        SchedulerDecision::Fail(key, reason) => record_failure(ledger, event, *key, *reason),
        SchedulerDecision::InstanceRemoved(id) => {
            let caused = match (event, ledger.state(*id)) {
                (SchedulerEvent::LaneFree(freed), Some(LaneState::Removing)) => freed == id,
                (SchedulerEvent::RemoveInstance(removed), Some(LaneState::Free)) => removed == id,
                _ => false,
            };
            ensure!(caused, "{id:?} was removed without cause");
            ledger.lanes.remove(id);
            Ok(())
        }
        SchedulerDecision::SequenceClosed(sequence)
        | SchedulerDecision::SequenceEnded(sequence) => {
            Err(format!("{sequence:?} without a sequence batcher"))
        }
        SchedulerDecision::Drained => {
            ensure!(ledger.draining && !ledger.drained, "drained without a drain, or twice");
            ensure!(ledger.is_quiet(), "drained while requests wait or run");
            ledger.drained = true;
            Ok(())
        }
    }
}

fn record_failure(
    ledger: &mut Ledger,
    event: &SchedulerEvent,
    key: RequestKey,
    reason: FailReason,
) -> Check {
    let arriving = matches!(event, SchedulerEvent::Enqueue(info) if info.key == key);
    let Some(index) = ledger.find(key) else {
        ensure!(
            arriving,
            "{key:?} fails with {reason:?}, but it does not wait: it failed or finished before"
        );
        let refused = matches!(reason, FailReason::QueueFull | FailReason::Draining);
        ensure!(refused, "{key:?} fails with {reason:?} on arrival");
        return Ok(());
    };
    let due = match reason {
        FailReason::TimeoutExpired => ledger.waiting[index].is_rejected_by(ledger.now),
        FailReason::Cancelled => *event == SchedulerEvent::Cancel(key),
        FailReason::QueueFull
        | FailReason::Draining
        | FailReason::NoSequence
        | FailReason::MissingStart
        | FailReason::SequenceTimeoutExpired
        | FailReason::RescheduledTooLate
        | FailReason::TooLate { .. } => false,
    };
    ensure!(due, "{key:?} fails with {reason:?} without cause");
    ledger.waiting.remove(index);
    Ok(())
}

fn record_batch(
    ledger: &mut Ledger,
    instance: InstanceId,
    keys: &[RequestKey],
    rows: u64,
) -> Check {
    ensure!(ledger.held == 0, "a batch ran although the test hook holds for {} more", ledger.held);
    ensure!(
        ledger.state(instance) == Some(LaneState::Free),
        "{instance:?} got a batch, but it is not free"
    );
    let order = ledger.in_order_of_service();
    let count = keys.len();
    ensure!(count > 0 && count <= order.len(), "a batch of {count} while {} wait", order.len());
    let first: Vec<RequestKey> = order[..count].iter().map(|request| request.key).collect();
    ensure!(first == keys, "{keys:?} ran, but the first in order of service are {first:?}");
    let batch = &order[..count];
    ensure!(
        rows == rows_of(batch),
        "the batch says {rows} rows, its requests have {}",
        rows_of(batch)
    );
    for request in batch {
        ensure!(!request.is_rejected_by(ledger.now), "{:?} ran past its deadline", request.key);
    }
    ledger.rules.dynamic_rules.check_batch(ledger.context(), &order, count)?;
    ledger.set_state(instance, LaneState::Busy);
    ledger.waiting.retain(|request| !keys.contains(&request.key));
    Ok(())
}

/// Returns the requests of a batch, which has no other kinds of entries here.
fn requests(entries: &[BatchEntry]) -> Result<Vec<RequestKey>, String> {
    let request = |entry: &BatchEntry| match entry {
        BatchEntry::Request(key) => Ok(*key),
        BatchEntry::Step(_) | BatchEntry::Padding => Err(format!("{entry:?} in a stateless batch")),
    };
    entries.iter().map(request).collect()
}

fn check_nothing_is_late(ledger: &Ledger) -> Check {
    for request in &ledger.waiting {
        ensure!(
            !request.is_rejected_by(ledger.now),
            "{:?} still waits after its deadline",
            request.key
        );
    }
    let quiet = ledger.draining && ledger.is_quiet();
    ensure!(!quiet || ledger.drained, "no request is left, but drained was not reported");
    Ok(())
}

fn check_waiting_has_a_reason(ledger: &Ledger) -> Check {
    if !ledger.can_run() || ledger.waiting.is_empty() {
        return Ok(());
    }
    ledger.rules.dynamic_rules.check_waiting(ledger.context(), &ledger.in_order_of_service())
}

/// Checks that the wake-up is neither late nor without effect.
pub(crate) fn check_wakeup(ledger: &Ledger, wakeup: Option<Time>) -> Check {
    let rejection = ledger.waiting.iter().filter_map(|request| request.reject_at).min();
    if !ledger.can_run() || ledger.waiting.is_empty() {
        ensure!(
            wakeup == rejection,
            "wakes at {wakeup:?}, but only the rejection at {rejection:?} can happen"
        );
        return Ok(());
    }
    let oldest = ledger.waiting.iter().map(|request| request.enqueued).min().unwrap_or_default();
    let dispatch = ledger.rules.dynamic_rules.dispatch_time(oldest);
    let is_ahead = |time: &Time| *time > ledger.now;
    let moves =
        ledger.waiting.iter().filter_map(|request| request.move_back_at).filter(is_ahead).min();
    let next = [rejection, dispatch, moves].into_iter().flatten().min();
    ensure!(wakeup == next, "wakes at {wakeup:?}, but something can happen at {next:?}");
    ensure!(
        wakeup.is_none_or(|wakeup| wakeup > ledger.now),
        "wakes at {wakeup:?}, which has passed"
    );
    Ok(())
}
