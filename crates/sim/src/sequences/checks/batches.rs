//! The rules for every sequence batch: its lane is free, and its requests execute in order, one per
//! sequence at a time, on the sequence's instance and with the right flags.

use galatea_policy::{BatchEntry, InstanceId, SequenceStep};

use super::super::ledger::{Execution, Ledger, LedgerPlacement};
use super::super::rules::Strategy;
use super::{direct, oldest};
use crate::check::{Check, ensure};

pub(super) fn record_batch(
    ledger: &mut Ledger,
    instance: InstanceId,
    entries: &[BatchEntry],
    rows: u32,
) -> Check {
    ledger.fill_slots();
    ledger.release_hold();
    ensure!(!ledger.held, "a batch ran although the test hook holds");
    let lane = ledger.lanes.get(&instance);
    ensure!(lane.is_some_and(|lane| !lane.busy), "{instance:?} got a batch, but is not free");
    let count = entries.len();
    ensure!(u32::try_from(count) == Ok(rows), "the batch says {rows} rows and has {count} entries");
    for (row, entry) in entries.iter().enumerate() {
        match entry {
            BatchEntry::Step(step) => check_step(ledger, instance, row, step)?,
            BatchEntry::Padding => {}
            BatchEntry::Request(key) => {
                return Err(format!("{key:?} ran without its sequence"));
            }
        }
    }
    match &ledger.rules.strategy {
        Strategy::Direct { .. } => direct::check_batch(ledger, instance, entries)?,
        Strategy::Oldest(dynamic_rules) => {
            oldest::check_batch(ledger, dynamic_rules, instance, entries)?
        }
    }
    execute(ledger, instance, entries);
    Ok(())
}

fn check_step(ledger: &Ledger, instance: InstanceId, row: usize, step: &SequenceStep) -> Check {
    let SequenceStep { key, sequence: name, start, end } = step;
    let Some(sequence) = ledger.sequences.get(name) else {
        return Err(format!("{key:?} ran for {name:?}, which does not exist"));
    };
    let running = sequence.executing;
    ensure!(running.is_none(), "{key:?} ran while {running:?} of its sequence is in execution");
    let Some(front) = sequence.queue.front() else {
        return Err(format!("{key:?} ran, but nothing of {name:?} waits"));
    };
    ensure!(front.key == *key, "{key:?} ran out of order: {:?} comes first", front.key);
    match sequence.placement {
        LedgerPlacement::Slot { instance: its_own, slot } => {
            ensure!(
                its_own == instance,
                "{name:?} ran on {instance:?}, its slot is on {its_own:?}"
            );
            let is_direct = matches!(ledger.rules.strategy, Strategy::Direct { .. });
            ensure!(!is_direct || slot == row, "{name:?} ran in row {row}, its slot is {slot}");
        }
        LedgerPlacement::Backlog | LedgerPlacement::Refused => {
            return Err(format!("{name:?} ran while it was in the backlog"));
        }
    }
    ensure!(front.start == *start, "{key:?} ran with START {start}");
    ensure!(front.end == *end, "{key:?} ran with END {end}");
    Ok(())
}

fn execute(ledger: &mut Ledger, instance: InstanceId, entries: &[BatchEntry]) {
    let lane = ledger.lanes.get_mut(&instance).expect("it was free");
    (lane.busy, lane.since) = (true, ledger.now);
    for entry in entries {
        let BatchEntry::Step(step) = entry else { continue };
        let sequence = ledger.sequences.get_mut(&step.sequence).expect("it was checked");
        let request = sequence.queue.pop_front().expect("it was checked");
        sequence.executing = Some(step.key);
        sequence.eligible = None;
        let execution = Execution { incarnation: sequence.incarnation, request };
        ledger.executing.insert(step.key, execution);
    }
}
