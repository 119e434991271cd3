//! Who runs together, naively.

use galatea_policy::{BatchEntry, BatchKey, InstanceId, RequestKey, SequenceStep, Time};

use super::{Member, Oracle, Strategy};
use crate::deed::Deed;
use crate::forming::Waiting;
use crate::naive::sum;

/// A member whose first request may run.
struct Candidate {
    member: usize,
    slot: usize,
    key: RequestKey,
    batch_key: BatchKey,
    /// Since when it may run, and after whom.
    ready: (u64, Time),
    /// Since when its request waits.
    waits_since: Time,
}

impl Waiting for Candidate {
    fn key(&self) -> RequestKey {
        self.key
    }

    fn rows(&self) -> u64 {
        1
    }

    fn batch_key(&self) -> BatchKey {
        self.batch_key
    }

    fn since(&self) -> Time {
        self.ready.1
    }
}

impl Oracle {
    pub(super) fn run(&mut self, deeds: &mut Vec<Deed>) {
        if self.is_held() {
            return;
        }
        let free = self.lanes.iter().filter(|lane| !lane.busy).map(|lane| lane.id);
        for instance in free.collect::<Vec<_>>() {
            if let Some(rows) = self.batch(&self.candidates(instance)) {
                self.dispatch(instance, &rows, deeds);
                self.seat();
            }
        }
    }

    fn is_held(&mut self) -> bool {
        let count = |seated: bool| {
            let members = self.members.iter().filter(|one| one.seat.is_some() == seated);
            members.map(|member| member.waiting.len()).sum::<usize>()
        };
        if let Some((in_seats, in_backlog)) = self.hold
            && count(true) >= in_seats
            && count(false) >= in_backlog
        {
            self.hold = None;
        }
        self.hold.is_some()
    }

    fn candidates(&self, instance: InstanceId) -> Vec<Candidate> {
        let look = |(index, member): (usize, &Member)| {
            let (slot, at) = member.seat?;
            let first = member.waiting.first()?;
            Some(Candidate {
                member: index,
                slot: usize::try_from(slot).expect("few slots"),
                key: first.key,
                batch_key: first.batch_key,
                ready: member.ready.filter(|_| at == instance)?,
                waits_since: first.since,
            })
        };
        self.members.iter().enumerate().filter_map(look).collect()
    }

    /// The members that run now, row by row, if any do.
    fn batch(&self, candidates: &[Candidate]) -> Option<Vec<Option<usize>>> {
        match &self.strategy {
            Strategy::Direct { delay_ns, minimum_ready } => {
                let longest = candidates.iter().min_by_key(|one| (one.waits_since, one.slot))?;
                let over = self.now.0 - longest.waits_since.0 >= *delay_ns;
                let enough = candidates.len() >= *minimum_ready;
                if !(over || enough || self.draining) {
                    return None;
                }
                let highest = candidates.iter().map(|one| one.slot).max()?;
                let runs = |row: usize, one: &&Candidate| {
                    one.slot == row && one.batch_key == longest.batch_key
                };
                let in_row =
                    |row: usize| candidates.iter().find(|one| runs(row, one)).map(|one| one.member);
                Some((0..=highest).map(in_row).collect())
            }
            Strategy::Oldest(former) => {
                let mut order: Vec<&Candidate> = candidates.iter().collect();
                order.sort_by_key(|one| one.ready);
                let count = former.batch(&order, self.now, self.draining)?;
                Some(order[..count].iter().map(|one| Some(one.member)).collect())
            }
        }
    }

    fn dispatch(&mut self, instance: InstanceId, rows: &[Option<usize>], deeds: &mut Vec<Deed>) {
        let mut entries = Vec::new();
        let mut ran = Vec::new();
        for row in rows {
            let Some(index) = row else {
                entries.push(BatchEntry::Padding);
                continue;
            };
            let member = &mut self.members[*index];
            let request = member.waiting.remove(0);
            let (key, sequence) = (request.key, member.key);
            let end = request.end && !self.iterative;
            entries.push(BatchEntry::Step(SequenceStep {
                key,
                sequence,
                start: request.start,
                end,
            }));
            member.running = Some(request);
            self.executing.push((key, Some(sequence)));
            ran.push(sequence);
        }
        self.lane(instance).busy = true;
        let rows = u32::try_from(entries.len()).expect("a batch is small");
        deeds.push(Deed::Run { instance, entries, rows });
        ran.into_iter().for_each(|sequence| self.end_if_over(sequence, deeds));
    }

    /// When batches that wait to grow go as they are.
    pub(super) fn batches_go_at(&self) -> impl Iterator<Item = Time> {
        let held = self.hold.is_some();
        let lanes = self.lanes.iter().filter(move |lane| !lane.busy && !held);
        lanes.filter_map(|lane| {
            let candidates = self.candidates(lane.id);
            match &self.strategy {
                Strategy::Direct { delay_ns, .. } => {
                    sum(candidates.iter().map(|one| one.waits_since).min()?, *delay_ns)
                }
                Strategy::Oldest(former) => {
                    former.goes_at(candidates.iter().map(Waiting::since).min()?)
                }
            }
        })
    }
}
