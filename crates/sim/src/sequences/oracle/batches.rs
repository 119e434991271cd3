//! The batches of the naive sequence batcher.

use galatea_policy::{
    BatchEntry, CloseReason, InstanceId, RequestKey, SequenceStep, ShapeClassId, Time,
};

use super::{LiveSequence, Oracle, OracleStrategy};
use crate::decision::SchedulerDecision;
use crate::dynamic_rules::{QueuedRequest, sum};

/// A sequence with an eligible first request.
struct EligibleSequence {
    sequence: usize,
    slot: usize,
    key: RequestKey,
    shape_class: ShapeClassId,
    /// The sequence's position in the order of eligibility, and the time at which it became
    /// eligible.
    ready: (u64, Time),
    /// The time at which the sequence's request arrived or was rescheduled.
    waits_since: Time,
}

impl QueuedRequest for EligibleSequence {
    fn key(&self) -> RequestKey {
        self.key
    }

    fn rows(&self) -> u64 {
        1
    }

    fn shape_class(&self) -> ShapeClassId {
        self.shape_class
    }

    fn since(&self) -> Time {
        self.ready.1
    }
}

impl Oracle {
    pub(super) fn run(&mut self, decisions: &mut Vec<SchedulerDecision>) {
        if self.is_held() {
            return;
        }
        let free = self.lanes.iter().filter(|lane| !lane.busy).map(|lane| lane.id);
        for instance in free.collect::<Vec<_>>() {
            if let Some((rows, reason)) = self.batch(&self.candidates(instance)) {
                self.dispatch(instance, &rows, reason, decisions);
                self.assign_slots();
            }
        }
    }

    fn is_held(&mut self) -> bool {
        let count = |in_slots: bool| {
            let sequences = self.sequences.iter().filter(|one| one.slot.is_some() == in_slots);
            sequences.map(|sequence| sequence.waiting.len()).sum::<usize>()
        };
        if let Some((in_slots_min, in_backlog_min)) = self.hold
            && count(true) >= in_slots_min
            && count(false) >= in_backlog_min
        {
            self.hold = None;
        }
        self.hold.is_some()
    }

    fn candidates(&self, instance: InstanceId) -> Vec<EligibleSequence> {
        let look = |(index, sequence): (usize, &LiveSequence)| {
            let (slot, at) = sequence.slot?;
            let first = sequence.waiting.first()?;
            Some(EligibleSequence {
                sequence: index,
                slot: usize::try_from(slot).expect("few slots"),
                key: first.key,
                shape_class: first.shape_class,
                ready: sequence.ready.filter(|_| at == instance)?,
                waits_since: first.since,
            })
        };
        self.sequences.iter().enumerate().filter_map(look).collect()
    }

    /// Returns the sequences of the next batch, row by row, if there is one, and the reason why it
    /// ends.
    fn batch(&self, candidates: &[EligibleSequence]) -> Option<(Vec<Option<usize>>, CloseReason)> {
        match &self.strategy {
            OracleStrategy::Direct { delay_ns, minimum_ready } => {
                let longest = candidates.iter().min_by_key(|one| (one.waits_since, one.slot))?;
                let over = self.now.0 - longest.waits_since.0 >= *delay_ns;
                let enough = candidates.len() >= *minimum_ready;
                let reason = if *delay_ns == 0 {
                    CloseReason::InstanceIdle
                } else if enough {
                    CloseReason::ReadySlots
                } else if over {
                    CloseReason::Delay
                } else if self.draining {
                    CloseReason::Unloading
                } else {
                    return None;
                };
                let highest = candidates.iter().map(|one| one.slot).max()?;
                let runs = |row: usize, one: &&EligibleSequence| {
                    one.slot == row && one.shape_class == longest.shape_class
                };
                let in_row = |row: usize| {
                    candidates.iter().find(|one| runs(row, one)).map(|one| one.sequence)
                };
                Some(((0..=highest).map(in_row).collect(), reason))
            }
            OracleStrategy::Oldest(batcher) => {
                let mut order: Vec<&EligibleSequence> = candidates.iter().collect();
                order.sort_by_key(|one| one.ready);
                let (count, reason) = batcher.batch(&order, self.now, self.draining)?;
                let rows = order[..count].iter().map(|one| Some(one.sequence));
                Some((rows.collect(), reason))
            }
        }
    }

    fn dispatch(
        &mut self,
        instance: InstanceId,
        rows: &[Option<usize>],
        reason: CloseReason,
        decisions: &mut Vec<SchedulerDecision>,
    ) {
        let mut entries = Vec::new();
        let mut executed = Vec::new();
        for row in rows {
            let Some(index) = row else {
                entries.push(BatchEntry::Padding);
                continue;
            };
            let sequence = &mut self.sequences[*index];
            let request = sequence.waiting.remove(0);
            let (key, sequence_key) = (request.key, sequence.key);
            let end = request.end && !self.iterative;
            entries.push(BatchEntry::Step(SequenceStep {
                key,
                sequence: sequence_key,
                start: request.start,
                end,
            }));
            sequence.running = Some(request);
            self.executing.push((key, Some(sequence_key)));
            executed.push(sequence_key);
        }
        self.lane(instance).busy = true;
        let rows = u32::try_from(entries.len()).expect("a batch is small");
        decisions.push(SchedulerDecision::Execute { instance, entries, rows, reason });
        executed.into_iter().for_each(|sequence| self.end_if_finished(sequence, decisions));
    }

    /// Returns the times at which batches waiting to grow are dispatched as they are.
    pub(super) fn batch_dispatch_times(&self) -> impl Iterator<Item = Time> {
        let held = self.hold.is_some();
        let lanes = self.lanes.iter().filter(move |lane| !lane.busy && !held);
        lanes.filter_map(|lane| {
            let candidates = self.candidates(lane.id);
            match &self.strategy {
                OracleStrategy::Direct { delay_ns, .. } => {
                    sum(candidates.iter().map(|one| one.waits_since).min()?, *delay_ns)
                }
                OracleStrategy::Oldest(batcher) => {
                    batcher.dispatch_time(candidates.iter().map(QueuedRequest::since).min()?)
                }
            }
        })
    }
}
