//! A model version's sequences: their correlation IDs, keys and states.
//!
//! A sequence is not identified by its correlation ID, because a client may reuse an ID while the
//! previous sequence is still draining. An ID is therefore looked up only while the scheduler has
//! not closed its sequence, whereas a key identifies the sequence until its last request has been
//! dispatched. States are stored by key; the states left by a late request are dropped.
//!
//! A sequence request stays known while it is executing. The backend releases it on any thread,
//! before or after the end of its batch, as either completed or to be executed again. Only the
//! release makes the sequence's next request eligible.

use std::collections::{BTreeSet, HashMap};

use galatea_infer::{CorrelationId, SequenceFlags, StateTensor};
use galatea_policy::{ArrivalNumber, SequenceKey, SequencePosition};
use slab::Slab;

use super::keys::{index_of, key_of};

/// The sequence of a new request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct SequenceAssignment {
    pub(super) position: SequencePosition,
    /// True if the request has the START flag although its sequence has not ended.
    pub(super) restarts: bool,
}

#[derive(Debug)]
pub(super) struct Sequences {
    /// True if each request is a separate sequence.
    is_iterative: bool,
    /// Sequences that accept further requests. Clients choose the IDs, so the hasher uses random
    /// keys.
    open: HashMap<CorrelationId, SequenceKey>,
    known: Slab<OpenSequence>,
    generation: u32,
}

#[derive(Debug)]
struct OpenSequence {
    key: SequenceKey,
    correlation_id: CorrelationId,
    /// True if one of the sequence's requests had the START flag.
    is_started: bool,
    /// The states left by the last request. Empty before the first request, and while a request is
    /// executing.
    states: Vec<StateTensor>,
    replies: ReplyGuarantee,
}

/// A sequence's guarantee that its queued requests will execute. Later replies wait only for
/// requests that are certain to execute.
#[derive(Debug)]
enum ReplyGuarantee {
    /// No guarantee: the sequence may wait for a slot, and thus for clients.
    None(BTreeSet<ArrivalNumber>),
    /// All queued requests will execute, because the sequence has a slot.
    Executes,
}

impl Sequences {
    pub(super) fn new(is_iterative: bool) -> Self {
        Self { is_iterative, open: HashMap::new(), known: Slab::new(), generation: 0 }
    }

    /// Returns true if each request is a separate sequence.
    pub(super) const fn is_iterative(&self) -> bool {
        self.is_iterative
    }

    /// Assigns a request to its sequence. Returns `None` if the request lacks a required
    /// correlation ID.
    pub(super) fn assign(
        &mut self,
        id: &CorrelationId,
        flags: SequenceFlags,
    ) -> Option<SequenceAssignment> {
        if self.is_iterative {
            let sequence = self.insert(id.clone());
            let position = SequencePosition { sequence, start: true, end: false };
            return Some(SequenceAssignment { position, restarts: false });
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
            known.is_started |= start;
        }
        let position = SequencePosition { sequence, start, end };
        Some(SequenceAssignment { position, restarts: start && open.is_some() })
    }

    fn insert(&mut self, correlation_id: CorrelationId) -> SequenceKey {
        self.generation = self.generation.wrapping_add(1);
        let entry = self.known.vacant_entry();
        let key = SequenceKey(key_of(entry.key(), self.generation));
        let replies = ReplyGuarantee::None(BTreeSet::new());
        entry.insert(OpenSequence {
            key,
            correlation_id,
            is_started: false,
            states: Vec::new(),
            replies,
        });
        key
    }

    fn get(&mut self, key: SequenceKey) -> Option<&mut OpenSequence> {
        self.known.get_mut(index_of(key.0)).filter(|sequence| sequence.key == key)
    }

    /// Forgets the correlation ID of a sequence that accepts no further requests.
    pub(super) fn close(&mut self, key: SequenceKey) {
        let known = self.known.get(index_of(key.0)).filter(|sequence| sequence.key == key);
        if let Some(sequence) = known {
            self.open.remove(&sequence.correlation_id);
        }
    }

    /// Ends a sequence that has no queued requests. Returns its states, which must be dropped
    /// without holding a lock.
    pub(super) fn end(&mut self, key: SequenceKey) -> Vec<StateTensor> {
        if self.get(key).is_none() {
            return Vec::new();
        }
        self.known.remove(index_of(key.0)).states
    }

    /// Forgets all sequences. Returns their states.
    pub(super) fn clear(&mut self) -> Vec<StateTensor> {
        self.open.clear();
        self.known.drain().flat_map(|sequence| sequence.states).collect()
    }

    /// Takes the states left by the sequence's last request.
    pub(super) fn take_states(&mut self, key: SequenceKey) -> Vec<StateTensor> {
        self.get(key).map(|sequence| std::mem::take(&mut sequence.states)).unwrap_or_default()
    }

    /// Keeps the states for the sequence's next request. If no request will follow, returns the
    /// states.
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

    /// Records that a request in the sequence is queued. Returns true if it is certain to execute.
    pub(super) fn expect_reply(&mut self, key: SequenceKey, number: ArrivalNumber) -> bool {
        match self.get(key).map(|sequence| &mut sequence.replies) {
            Some(ReplyGuarantee::None(numbers)) => {
                numbers.insert(number);
                false
            }
            Some(ReplyGuarantee::Executes) => true,
            None => false,
        }
    }

    /// Records that a request in the sequence executes, which guarantees that all of them will.
    /// Returns the requests that were not guaranteed before.
    pub(super) fn guarantee_replies(&mut self, key: SequenceKey) -> BTreeSet<ArrivalNumber> {
        let Some(sequence) = self.get(key) else { return BTreeSet::new() };
        match std::mem::replace(&mut sequence.replies, ReplyGuarantee::Executes) {
            ReplyGuarantee::None(numbers) => numbers,
            ReplyGuarantee::Executes => BTreeSet::new(),
        }
    }

    /// Records that a queued request in the sequence failed without being executed.
    pub(super) fn forget_reply(&mut self, key: SequenceKey, number: ArrivalNumber) {
        if let Some(ReplyGuarantee::None(numbers)) = self.get(key).map(|known| &mut known.replies) {
            numbers.remove(&number);
        }
    }

    /// The correlation ID of the sequence, if a client has started it.
    pub(super) fn correlation_id_if_started(&self, key: SequenceKey) -> Option<&CorrelationId> {
        let known = self.known.get(index_of(key.0)).filter(|sequence| sequence.key == key);
        known.filter(|sequence| sequence.is_started).map(|sequence| &sequence.correlation_id)
    }

    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.open.len(), self.known.len())
    }
}
