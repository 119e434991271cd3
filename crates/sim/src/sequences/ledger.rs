//! What is known of sequences from outside, from events and deeds alone: which
//! there are, who sits where, who waits in the backlog, what is in execution.
//!
//! A seat is free where the scheduler says `Ended`. Free seats go to the backlog
//! when everything that ends together has ended: after time has ended something,
//! after the event, after each batch. So the order in which a step ends several
//! sequences is the scheduler's to choose, and nothing else is.

use std::collections::VecDeque;

use galatea_policy::{
    BatchKey, FailReason, InstanceId, Release, RequestInfo, RequestKey, SequenceKey,
    SequencePosition, Time,
};

use super::roll::Roll;
use super::rules::{Rules, later};
use crate::setup::Setup;

#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    pub(crate) rules: Rules,
    /// From the first request until the sequence has ended.
    pub(crate) sequences: Roll<SequenceKey, Sequence>,
    /// In order.
    pub(crate) backlog: VecDeque<SequenceKey>,
    pub(crate) lanes: Roll<InstanceId, Lane>,
    /// From dispatch to release, which may be after all else is forgotten.
    pub(crate) executing: Roll<RequestKey, Execution>,
    /// A request that must be refused on arrival, and its sequence, if it has one.
    pub(crate) refused: Option<(RequestKey, FailReason)>,
    pub(crate) held: bool,
    pub(crate) draining: bool,
    pub(crate) drained: bool,
    pub(crate) now: Time,
    /// Counts whatever needs an order: arrivals, turns, incarnations.
    pub(crate) count: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    /// Tells apart the sequences that had the same key one after the other.
    pub(crate) incarnation: u64,
    pub(crate) place: Place,
    /// Requests that wait, in order.
    pub(crate) queue: VecDeque<Fact>,
    pub(crate) executing: Option<RequestKey>,
    /// Since when and in which order its next request could run.
    pub(crate) turn: Option<Turn>,
    /// The last arrival or release.
    pub(crate) quiet_since: Time,
    pub(crate) closing: Closing,
    /// Cancelled while in execution; answered when it would run again.
    pub(crate) cancelled_in_execution: bool,
}

/// Where a sequence is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// It was refused with its first request.
    Nowhere,
    Backlog,
    Seat {
        instance: InstanceId,
        slot: usize,
    },
}

/// Open → due → closed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Closing {
    /// It takes further requests.
    Open,
    /// It must be closed in this step.
    Due,
    Closed,
}

#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Turn {
    pub(crate) order: u64,
    pub(crate) since: Time,
}

/// A request that waits.
#[derive(Clone, Debug)]
pub(crate) struct Fact {
    pub(crate) key: RequestKey,
    pub(crate) batch_key: BatchKey,
    /// When it arrived, or was rescheduled.
    pub(crate) waits_since: Time,
    pub(crate) start: bool,
    pub(crate) end: bool,
    /// When its sequence fails if it is still in the backlog.
    pub(crate) expires: Option<Time>,
    /// It must fail in this step.
    pub(crate) doom: Option<FailReason>,
}

/// A request in execution.
#[derive(Clone, Debug)]
pub(crate) struct Execution {
    /// Of its sequence.
    pub(crate) incarnation: u64,
    /// What it was when it waited, as it may run again.
    pub(crate) fact: Fact,
}

#[derive(Clone, Debug)]
pub(crate) struct Lane {
    pub(crate) busy: bool,
    /// Since when it is busy, or not.
    pub(crate) since: Time,
    pub(crate) leaving: bool,
    pub(crate) seats: Vec<Option<SequenceKey>>,
}

impl Lane {
    pub(crate) fn is_vacant(&self) -> bool {
        !self.busy && self.seats.iter().all(Option::is_none)
    }
}

impl Sequence {
    fn new(incarnation: u64, place: Place, now: Time) -> Self {
        Sequence {
            incarnation,
            place,
            queue: VecDeque::new(),
            executing: None,
            turn: None,
            quiet_since: now,
            closing: Closing::Open,
            cancelled_in_execution: false,
        }
    }

    /// No further request joins it; that must be said in this step.
    pub(crate) fn must_close(&mut self) {
        if self.closing == Closing::Open {
            self.closing = Closing::Due;
        }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.queue.is_empty() && self.executing.is_none()
    }
}

impl Ledger {
    pub(crate) fn new(setup: &Setup) -> Self {
        let rules = Rules::new(setup);
        Ledger {
            held: rules.hold_seated > 0 || rules.hold_backlogged > 0,
            rules,
            sequences: Roll::default(),
            backlog: VecDeque::new(),
            lanes: Roll::default(),
            executing: Roll::default(),
            refused: None,
            draining: false,
            drained: false,
            now: Time(0),
            count: 0,
        }
    }

    pub(crate) fn next_count(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// A request arrives: it joins its sequence, begins one, or is refused.
    pub(crate) fn arrive(&mut self, ticket: &RequestInfo) {
        let Some(mark) = ticket.sequence else {
            self.refused = Some((ticket.key, FailReason::NoSequence));
            return;
        };
        self.refused = self.refusal(mark).map(|reason| (ticket.key, reason));
        if !self.sequences.contains_key(&mark.sequence) {
            self.begin(mark);
        }
        if self.refused.is_some() {
            return;
        }
        let (now, iterative) = (self.now, self.rules.iterative);
        let sequence = self.sequences.get_mut(&mark.sequence).expect("it has begun");
        assert_eq!(sequence.closing, Closing::Open, "the driver forgets what is closed");
        sequence.queue.push_back(Fact {
            key: ticket.key,
            batch_key: ticket.batch_key,
            waits_since: now,
            start: mark.start,
            end: mark.end,
            expires: later(now, ticket.timeout_ns),
            doom: None,
        });
        sequence.quiet_since = now;
        if mark.end || iterative {
            sequence.must_close();
        }
        self.take_turn(mark.sequence);
    }

    /// Why a request can't be taken, if it can't. An unloading model takes nothing.
    fn refusal(&self, mark: SequencePosition) -> Option<FailReason> {
        let is_known = self.sequences.contains_key(&mark.sequence);
        if self.draining {
            Some(FailReason::Draining)
        } else if !is_known && !mark.start {
            Some(FailReason::MissingStart)
        } else {
            None
        }
    }

    /// A sequence begins; refused, it also ends at once.
    fn begin(&mut self, mark: SequencePosition) {
        let (incarnation, now) = (self.next_count(), self.now);
        let mut sequence = Sequence::new(incarnation, Place::Backlog, now);
        if self.refused.is_some() {
            sequence.place = Place::Nowhere;
            sequence.must_close();
        } else {
            self.backlog.push_back(mark.sequence);
        }
        self.sequences.insert(mark.sequence, sequence);
        self.fill_seats();
    }

    /// Gives free seats to the backlog: the lowest slot first, and among these
    /// the lowest instance.
    pub(crate) fn fill_seats(&mut self) {
        while !self.backlog.is_empty() {
            let Some((slot, instance)) = self.best_free_seat() else { return };
            let sequence = self.backlog.pop_front().expect("it is not empty");
            self.lanes.get_mut(&instance).expect("it has the seat").seats[slot] = Some(sequence);
            let seated = self.sequences.get_mut(&sequence).expect("it waited");
            seated.place = Place::Seat { instance, slot };
            self.take_turn(sequence);
        }
    }

    fn best_free_seat(&self) -> Option<(usize, InstanceId)> {
        let staying = self.lanes.iter().filter(|(_, lane)| !lane.leaving);
        let first_free = |(id, lane): (&InstanceId, &Lane)| {
            Some((lane.seats.iter().position(Option::is_none)?, *id))
        };
        staying.filter_map(first_free).min()
    }

    /// If its next request can run from now on, it has its turn after everyone
    /// who could before.
    pub(crate) fn take_turn(&mut self, key: SequenceKey) {
        let order = self.next_count();
        let turn = Turn { order, since: self.now };
        let sequence = self.sequences.get_mut(&key).expect("it exists");
        let is_seated = matches!(sequence.place, Place::Seat { .. });
        if !is_seated || sequence.queue.is_empty() || sequence.executing.is_some() {
            sequence.turn = None;
        } else if sequence.turn.is_none() {
            sequence.turn = Some(turn);
        }
    }

    /// The client gives up a request. It takes the later ones with it.
    pub(crate) fn cancel(&mut self, request: RequestKey) {
        let iterative = self.rules.iterative;
        for sequence in self.sequences.values_mut() {
            if iterative && sequence.executing == Some(request) {
                sequence.cancelled_in_execution = true;
            }
            let position = sequence.queue.iter().position(|fact| fact.key == request);
            let Some(position) = position else { continue };
            for fact in sequence.queue.range_mut(position..) {
                fact.doom = Some(FailReason::Cancelled);
            }
            sequence.must_close();
        }
    }

    /// The backend gives a request back.
    pub(crate) fn release(&mut self, request: RequestKey, release: Release) {
        let Execution { incarnation, fact } =
            self.executing.remove(&request).expect("it is in execution");
        let is_its_own =
            |(_, sequence): &(&SequenceKey, &mut Sequence)| sequence.incarnation == incarnation;
        let Some((key, sequence)) = self.sequences.iter_mut().find(is_its_own) else { return };
        let key = *key;
        sequence.executing = None;
        sequence.quiet_since = self.now;
        match release {
            Release::Done => {}
            Release::Reschedule => {
                let doom = sequence.cancelled_in_execution.then_some(FailReason::Cancelled);
                let again = Fact { start: false, doom, waits_since: self.now, ..fact };
                sequence.queue.push_front(again);
            }
        }
        self.take_turn(key);
    }

    /// A sequence has ended: its seat is free.
    pub(crate) fn end(&mut self, key: SequenceKey) {
        let Some(sequence) = self.sequences.remove(&key) else { return };
        match sequence.place {
            Place::Nowhere => {}
            Place::Backlog => self.backlog.retain(|waiting| *waiting != key),
            Place::Seat { instance, slot } => {
                self.lanes.get_mut(&instance).expect("it had the seat").seats[slot] = None;
            }
        }
    }
}
