//! Questions to the ledger. Each looks at everything anew: it is to be believed,
//! not fast.

use galatea_policy::{
    BatchKey, Event, InstanceId, Release, RequestKey, SequenceKey, SequencePosition, Time,
};

use super::ledger::{Closing, Fact, Lane, Ledger, Place, Sequence, Turn};
use crate::forming::{Moment, Waiting};

/// A sequence whose next request could run now.
pub(crate) struct Ready<'ledger> {
    pub(crate) slot: usize,
    pub(crate) sequence: &'ledger Sequence,
    pub(crate) fact: &'ledger Fact,
}

impl Waiting for Ready<'_> {
    fn key(&self) -> RequestKey {
        self.fact.key
    }

    fn rows(&self) -> u64 {
        1
    }

    fn batch_key(&self) -> BatchKey {
        self.fact.batch_key
    }

    /// Since when it could run, under `oldest`.
    fn since(&self) -> Time {
        self.turn().since
    }
}

impl Ready<'_> {
    /// Since when it could run, and after whom.
    pub(crate) fn turn(&self) -> Turn {
        self.sequence.turn.expect("who is ready has a turn")
    }
}

impl Ledger {
    /// Whether a well-behaved driver can say this at that time.
    pub(crate) fn allows(&self, now: Time, event: &Event) -> bool {
        match event {
            Event::Enqueue(ticket) => {
                self.is_new(ticket.key)
                    && ticket.sequence.is_none_or(|mark| self.may_go_on(now.max(self.now), mark))
            }
            Event::Released { key, release: Release::Done } => self.executing.contains_key(key),
            Event::Released { key, release: Release::Reschedule } => {
                self.rules.iterative && self.executing.contains_key(key)
            }
            Event::LaneFree(id) => self.lanes.get(id).is_some_and(|lane| lane.busy),
            Event::AddInstance(id) => !self.lanes.contains_key(id),
            Event::RemoveInstance(id) => self.lanes.contains_key(id),
            // The harness says it, where it is said.
            Event::PermitGranted(_) | Event::PermitDelayed(_) => false,
            Event::Cancel(_) | Event::Drain | Event::Tick => true,
        }
    }

    /// No request that waits or runs has the same place in the driver's slab.
    fn is_new(&self, request: RequestKey) -> bool {
        let queues = self.sequences.values().flat_map(|sequence| &sequence.queue);
        let mut used = queues.map(|fact| fact.key).chain(self.executing.keys().copied());
        used.all(|other| low_half(other.0) != low_half(request.0))
    }

    /// The sequence takes requests, or is new and has a place of its own in the
    /// driver's slab.
    fn may_go_on(&self, now: Time, mark: SequencePosition) -> bool {
        match self.sequences.get(&mark.sequence) {
            Some(sequence) => {
                sequence.closing == Closing::Open
                    && !self.rules.iterative
                    && self.ends_at(sequence).is_none_or(|end| end > now)
            }
            None => {
                let place = low_half(mark.sequence.0);
                self.sequences.keys().all(|other| low_half(other.0) != place)
            }
        }
    }

    /// When the sequence ends unless something happens before.
    pub(crate) fn ends_at(&self, sequence: &Sequence) -> Option<Time> {
        match sequence.place {
            Place::Nowhere => None,
            Place::Backlog => sequence.queue.iter().filter_map(|fact| fact.expires).min(),
            Place::Seat { .. } if sequence.is_quiet() => self.rules.idle_at(sequence.quiet_since),
            Place::Seat { .. } => None,
        }
    }

    pub(crate) fn is_overdue(&self, sequence: &Sequence) -> bool {
        self.ends_at(sequence).is_some_and(|end| end <= self.now)
    }

    /// Nothing more will run of it, so that it must end at once.
    pub(crate) fn is_over(&self, sequence: &Sequence) -> bool {
        let may_run_again = self.rules.iterative && sequence.executing.is_some();
        sequence.closing == Closing::Closed && sequence.queue.is_empty() && !may_run_again
    }

    /// Nothing is queued, nothing is in execution, and no lane has a batch.
    pub(crate) fn is_quiet(&self) -> bool {
        self.queued() == 0
            && self.executing.is_empty()
            && self.lanes.values().all(|lane| !lane.busy)
    }

    pub(crate) fn queued(&self) -> usize {
        self.sequences.values().map(|sequence| sequence.queue.len()).sum()
    }

    fn queued_in_backlog(&self) -> usize {
        self.backlog.iter().map(|key| self.sequences[key].queue.len()).sum()
    }

    /// Lets go of the test hook if what it waits for is there.
    pub(crate) fn loosen_hold(&mut self) {
        if !self.held {
            return;
        }
        let backlogged = self.queued_in_backlog();
        let seated = self.queued() - backlogged;
        if seated >= self.rules.hold_seated && backlogged >= self.rules.hold_backlogged {
            self.held = false;
        }
    }

    /// Sequences of an instance whose next request could run, by slot.
    pub(crate) fn ready(&self, lane: &Lane) -> Vec<Ready<'_>> {
        let look = |(slot, seat): (usize, &Option<SequenceKey>)| {
            let sequence = &self.sequences[seat.as_ref()?];
            let is_free = sequence.executing.is_none();
            let fact = sequence.queue.front().filter(|_| is_free)?;
            Some(Ready { slot, sequence, fact })
        };
        lane.seats.iter().enumerate().filter_map(look).collect()
    }

    pub(crate) fn sequence_of(&self, request: RequestKey) -> Option<SequenceKey> {
        let holds = |sequence: &Sequence| sequence.queue.iter().any(|fact| fact.key == request);
        let (key, _) = self.sequences.iter().find(|(_, sequence)| holds(sequence))?;
        Some(*key)
    }

    pub(crate) fn moment(&self) -> Moment {
        Moment { now: self.now, draining: self.draining }
    }

    /// Instances that could run something now.
    pub(crate) fn free_lanes(&self) -> impl Iterator<Item = (InstanceId, &Lane)> {
        let lanes = self.lanes.iter().filter(|(_, lane)| !lane.busy && !self.held);
        lanes.map(|(id, lane)| (*id, lane))
    }
}

/// The place in the driver's slab.
fn low_half(key: u64) -> u64 {
    key & u64::from(u32::MAX)
}
