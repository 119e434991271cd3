//! What must hold, whatever the scheduler decided. Each check names the promise
//! that was broken.

use galatea_policy::{BatchEntry, Event, FailReason, InstanceId, RequestKey, Time};

use super::ledger::{LaneState, Ledger};
use crate::check::{Check, ensure};
use crate::deed::Deed;
use crate::forming::rows_of;

/// Enters the event, then the deeds one by one, then looks at what is left.
pub(crate) fn check_step(ledger: &mut Ledger, now: Time, event: &Event, deeds: &[Deed]) -> Check {
    ledger.now = ledger.now.max(now);
    let before = ledger.waiting.len();
    let owed = enter_event(ledger, event);
    for deed in deeds {
        enter_deed(ledger, event, deed)?;
    }
    if let Some(owed) = owed {
        ensure!(deeds.contains(&owed), "{owed:?} was due and did not come");
    }
    // Each deed ends the waiting of a request, or of an instance, or the drain.
    let bound = before + 3;
    ensure!(deeds.len() <= bound, "{} deeds in one step, {bound} is the most", deeds.len());
    check_nothing_is_late(ledger)?;
    check_waiting_has_a_reason(ledger)
}

/// Enters the event and returns the deed that must follow from it alone.
fn enter_event(ledger: &mut Ledger, event: &Event) -> Option<Deed> {
    match event {
        Event::Enqueue(ticket) if ledger.draining => {
            return Some(Deed::Fail(ticket.key, FailReason::Draining));
        }
        Event::Enqueue(ticket) if ledger.is_full_for(ticket) => {
            return Some(Deed::Fail(ticket.key, FailReason::QueueFull));
        }
        Event::Enqueue(ticket) => ledger.arrive(ticket),
        Event::Cancel(key) => {
            let fact = &ledger.waiting[ledger.find(*key)?];
            let reason = if fact.is_rejected_by(ledger.now) {
                FailReason::TimeoutExpired
            } else {
                FailReason::Cancelled
            };
            return Some(Deed::Fail(*key, reason));
        }
        Event::LaneFree(id) => match ledger.state(*id) {
            Some(LaneState::Busy) => ledger.set_state(*id, LaneState::Free),
            Some(LaneState::Leaving | LaneState::Free) | None => return Some(Deed::Removed(*id)),
        },
        Event::AddInstance(id) => ledger.set_state(*id, LaneState::Free),
        Event::RemoveInstance(id) => match ledger.state(*id) {
            Some(LaneState::Free) => return Some(Deed::Removed(*id)),
            Some(LaneState::Busy) => {
                // It goes on with what it does.
                ledger.lanes.get_mut(id).expect("it is busy").state = LaneState::Leaving;
            }
            Some(LaneState::Leaving) | None => {}
        },
        Event::Drain => {
            ledger.draining = true;
            ledger.held = 0;
        }
        // Nobody says it of a request without a sequence.
        Event::Released { .. } => {}
        // With permits it is a step of the harness, which no ledger sees.
        Event::PermitGranted(_) | Event::PermitDelayed(_) | Event::Tick => {}
    }
    None
}

fn enter_deed(ledger: &mut Ledger, event: &Event, deed: &Deed) -> Check {
    match deed {
        Deed::Run { instance, entries, rows } => {
            enter_run(ledger, *instance, &requests(entries)?, u64::from(*rows))
        }
        Deed::Fail(key, reason) => enter_failure(ledger, event, *key, *reason),
        Deed::Removed(id) => {
            let caused = match (event, ledger.state(*id)) {
                (Event::LaneFree(freed), Some(LaneState::Leaving)) => freed == id,
                (Event::RemoveInstance(removed), Some(LaneState::Free)) => removed == id,
                _ => false,
            };
            ensure!(caused, "{id:?} was removed without cause");
            ledger.lanes.remove(id);
            Ok(())
        }
        Deed::Closed(sequence) | Deed::Ended(sequence) => {
            Err(format!("{sequence:?} without a sequence batcher"))
        }
        Deed::Drained => {
            ensure!(ledger.draining && !ledger.drained, "drained without a drain, or twice");
            ensure!(ledger.is_quiet(), "drained while requests wait or run");
            ledger.drained = true;
            Ok(())
        }
    }
}

fn enter_failure(ledger: &mut Ledger, event: &Event, key: RequestKey, reason: FailReason) -> Check {
    let arriving = matches!(event, Event::Enqueue(ticket) if ticket.key == key);
    let Some(index) = ledger.find(key) else {
        ensure!(arriving, "{key:?} fails with {reason:?}, but it does not wait: a second outcome");
        let refused = matches!(reason, FailReason::QueueFull | FailReason::Draining);
        ensure!(refused, "{key:?} fails with {reason:?} on arrival");
        return Ok(());
    };
    let due = match reason {
        FailReason::TimeoutExpired => ledger.waiting[index].is_rejected_by(ledger.now),
        FailReason::Cancelled => *event == Event::Cancel(key),
        FailReason::QueueFull
        | FailReason::Draining
        | FailReason::NoSequence
        | FailReason::MissingStart
        | FailReason::SequenceTimeoutExpired => false,
    };
    ensure!(due, "{key:?} fails with {reason:?} without cause");
    ledger.waiting.remove(index);
    Ok(())
}

fn enter_run(ledger: &mut Ledger, instance: InstanceId, keys: &[RequestKey], rows: u64) -> Check {
    ensure!(ledger.held == 0, "a batch ran although the test hook holds for {} more", ledger.held);
    ensure!(
        ledger.state(instance) == Some(LaneState::Free),
        "{instance:?} got a batch, but it is not free"
    );
    let order = ledger.in_order_of_service();
    let count = keys.len();
    ensure!(count > 0 && count <= order.len(), "a batch of {count} while {} wait", order.len());
    let first: Vec<RequestKey> = order[..count].iter().map(|fact| fact.key).collect();
    ensure!(first == keys, "{keys:?} ran, but the first in order of service are {first:?}");
    let batch = &order[..count];
    ensure!(
        rows == rows_of(batch),
        "the batch says {rows} rows, its requests have {}",
        rows_of(batch)
    );
    for fact in batch {
        ensure!(!fact.is_rejected_by(ledger.now), "{:?} ran past its deadline", fact.key);
    }
    ledger.rules.forming.check_batch(ledger.moment(), &order, count)?;
    ledger.set_state(instance, LaneState::Busy);
    ledger.waiting.retain(|fact| !keys.contains(&fact.key));
    Ok(())
}

/// A batch is made of whole requests here.
fn requests(entries: &[BatchEntry]) -> Result<Vec<RequestKey>, String> {
    let request = |entry: &BatchEntry| match entry {
        BatchEntry::Request(key) => Ok(*key),
        BatchEntry::Step(_) | BatchEntry::Padding => Err(format!("{entry:?} in a stateless batch")),
    };
    entries.iter().map(request).collect()
}

fn check_nothing_is_late(ledger: &Ledger) -> Check {
    for fact in &ledger.waiting {
        ensure!(!fact.is_rejected_by(ledger.now), "{:?} still waits after its deadline", fact.key);
    }
    let quiet = ledger.draining && ledger.is_quiet();
    ensure!(!quiet || ledger.drained, "everything is over, but drained was not said");
    Ok(())
}

fn check_waiting_has_a_reason(ledger: &Ledger) -> Check {
    if !ledger.can_run() || ledger.waiting.is_empty() {
        return Ok(());
    }
    ledger.rules.forming.check_waiting(ledger.moment(), &ledger.in_order_of_service())
}

/// The wake-up comes neither late nor for nothing.
pub(crate) fn check_wakeup(ledger: &Ledger, wakeup: Option<Time>) -> Check {
    let rejection = ledger.waiting.iter().filter_map(|fact| fact.reject_at).min();
    if !ledger.can_run() || ledger.waiting.is_empty() {
        ensure!(
            wakeup == rejection,
            "wakes at {wakeup:?}, but only the rejection at {rejection:?} can happen"
        );
        return Ok(());
    }
    let oldest = ledger.waiting.iter().map(|fact| fact.enqueued).min().unwrap_or_default();
    let go = ledger.rules.forming.goes_at(oldest);
    let is_ahead = |time: &Time| *time > ledger.now;
    let moves = ledger.waiting.iter().filter_map(|fact| fact.move_back_at).filter(is_ahead).min();
    let next = [rejection, go, moves].into_iter().flatten().min();
    ensure!(wakeup == next, "wakes at {wakeup:?}, but something can happen at {next:?}");
    ensure!(
        wakeup.is_none_or(|wakeup| wakeup > ledger.now),
        "wakes at {wakeup:?}, which has passed"
    );
    Ok(())
}
