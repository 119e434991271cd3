//! The sequences of one model: from what clients call them to the keys that the
//! scheduler knows, and the states that they carry.
//!
//! A key names a sequence from its first request to its end. What a client calls
//! it may name the next sequence long before that, so a correlation ID is looked
//! up only while the scheduler has not closed its sequence.

use std::collections::{BTreeSet, HashMap};

use galatea_infer::{CorrelationId, SequenceFlags, StateTensor};
use galatea_policy::{ReplyNumber, SequenceKey, SequencePosition};
use slab::Slab;

use super::{key_of, place_of};

/// What became of a new request's correlation ID.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Marked {
    pub(super) mark: SequencePosition,
    /// Its sequence goes on although the request starts one.
    pub(super) restarts: bool,
}

#[derive(Debug)]
pub(super) struct Sequences {
    /// Each request is a sequence of its own.
    iterative: bool,
    /// Sequences that take further requests. The correlation IDs are clients', so
    /// the hasher is one that they can't know.
    open: HashMap<CorrelationId, SequenceKey>,
    known: Slab<Sequence>,
    generation: u32,
}

#[derive(Debug)]
struct Sequence {
    key: SequenceKey,
    correlation_id: CorrelationId,
    /// A request of it had the START flag.
    begun: bool,
    /// What its last request left; empty before and while a request of its is
    /// executed.
    states: Vec<StateTensor>,
    replies: Replies,
}

/// Which of a sequence's queued requests keep later replies waiting.
#[derive(Debug)]
enum Replies {
    /// It may wait for a slot, and so for what clients do: none of these.
    Unsure(BTreeSet<ReplyNumber>),
    /// It has a slot, so that each of its requests will run.
    Sure,
}

impl Sequences {
    pub(super) fn new(iterative: bool) -> Self {
        Self { iterative, open: HashMap::new(), known: Slab::new(), generation: 0 }
    }

    /// Whether each request is a sequence of its own.
    pub(super) const fn is_iterative(&self) -> bool {
        self.iterative
    }

    /// Whose request this is; `None` if it belongs to no sequence, although it
    /// has to.
    pub(super) fn mark(&mut self, id: &CorrelationId, flags: SequenceFlags) -> Option<Marked> {
        if self.iterative {
            let sequence = self.insert(id.clone());
            let mark = SequencePosition { sequence, start: true, end: false };
            return Some(Marked { mark, restarts: false });
        }
        if *id == CorrelationId::None {
            return None;
        }
        let open = self.open.get(id).copied();
        let sequence = open.unwrap_or_else(|| {
            let key = self.insert(id.clone());
            self.open.insert(id.clone(), key);
            key
        });
        let SequenceFlags { start, end } = flags;
        if let Some(known) = self.get(sequence) {
            known.begun |= start;
        }
        let mark = SequencePosition { sequence, start, end };
        Some(Marked { mark, restarts: start && open.is_some() })
    }

    fn insert(&mut self, correlation_id: CorrelationId) -> SequenceKey {
        self.generation = self.generation.wrapping_add(1);
        let entry = self.known.vacant_entry();
        let key = SequenceKey(key_of(entry.key(), self.generation));
        let replies = Replies::Unsure(BTreeSet::new());
        entry.insert(Sequence { key, correlation_id, begun: false, states: Vec::new(), replies });
        key
    }

    fn get(&mut self, key: SequenceKey) -> Option<&mut Sequence> {
        self.known.get_mut(place_of(key.0)).filter(|sequence| sequence.key == key)
    }

    /// No further request belongs to the sequence.
    pub(super) fn close(&mut self, key: SequenceKey) {
        let known = self.known.get(place_of(key.0)).filter(|sequence| sequence.key == key);
        if let Some(sequence) = known {
            self.open.remove(&sequence.correlation_id);
        }
    }

    /// Nothing of the sequence is queued any more. Its states come back, to be
    /// dropped where no lock is held.
    pub(super) fn end(&mut self, key: SequenceKey) -> Vec<StateTensor> {
        if self.get(key).is_none() {
            return Vec::new();
        }
        self.known.remove(place_of(key.0)).states
    }

    /// Forgets all of them.
    pub(super) fn clear(&mut self) -> Vec<StateTensor> {
        self.open.clear();
        self.known.drain().flat_map(|sequence| sequence.states).collect()
    }

    /// What the sequence's last request left.
    pub(super) fn take_states(&mut self, key: SequenceKey) -> Vec<StateTensor> {
        self.get(key).map(|sequence| std::mem::take(&mut sequence.states)).unwrap_or_default()
    }

    /// Keeps the states for the sequence's next request. They come back if there
    /// will be none.
    pub(super) fn put_states(
        &mut self,
        key: SequenceKey,
        states: Vec<StateTensor>,
    ) -> Vec<StateTensor> {
        match self.get(key) {
            Some(sequence) => std::mem::replace(&mut sequence.states, states),
            None => states,
        }
    }

    /// A request of the sequence is queued: whether it is sure to run.
    pub(super) fn expect_reply(&mut self, key: SequenceKey, number: ReplyNumber) -> bool {
        match self.get(key).map(|sequence| &mut sequence.replies) {
            Some(Replies::Unsure(numbers)) => {
                numbers.insert(number);
                false
            }
            Some(Replies::Sure) => true,
            None => false,
        }
    }

    /// A request of the sequence runs, so all of them will: those of which that
    /// was not known.
    pub(super) fn assure_replies(&mut self, key: SequenceKey) -> BTreeSet<ReplyNumber> {
        let Some(sequence) = self.get(key) else { return BTreeSet::new() };
        match std::mem::replace(&mut sequence.replies, Replies::Sure) {
            Replies::Unsure(numbers) => numbers,
            Replies::Sure => BTreeSet::new(),
        }
    }

    /// A queued request of the sequence does not run after all.
    pub(super) fn forget_reply(&mut self, key: SequenceKey, number: ReplyNumber) {
        if let Some(Replies::Unsure(numbers)) = self.get(key).map(|known| &mut known.replies) {
            numbers.remove(&number);
        }
    }

    /// What clients call the sequence.
    pub(super) fn correlation_id(&self, key: SequenceKey) -> CorrelationId {
        let known = self.known.get(place_of(key.0)).filter(|sequence| sequence.key == key);
        known.map(|sequence| sequence.correlation_id.clone()).unwrap_or_default()
    }

    /// What clients call the sequence, if it is one that a client began.
    pub(super) fn begun(&self, key: SequenceKey) -> Option<&CorrelationId> {
        let known = self.known.get(place_of(key.0)).filter(|sequence| sequence.key == key);
        known.filter(|sequence| sequence.begun).map(|sequence| &sequence.correlation_id)
    }

    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.open.len(), self.known.len())
    }
}
