//! The server's role between clients and a scheduler: it assigns keys to requests and sequences. A
//! key is a slab index that is reused as soon as the rules allow.

use std::collections::BTreeMap;

use galatea_policy::SequenceKey;

/// Assigns keys. The low half is the index, and the high half the number of earlier uses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    /// The current or latest key of each index.
    last: Vec<u64>,
    vacant: Vec<usize>,
}

/// The way in which an index is reused: with a new generation or with the same key as before.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reuse {
    OtherGeneration,
    SameKey,
}

impl Keys {
    pub(crate) fn allocate(&mut self, reuse: Reuse) -> u64 {
        let Some(index) = self.vacant.pop() else {
            let key = u64::try_from(self.last.len()).expect("few keys");
            self.last.push(key);
            return key;
        };
        if reuse == Reuse::OtherGeneration {
            self.last[index] += 1 << 32;
        }
        self.last[index]
    }

    pub(crate) fn free(&mut self, key: u64) {
        let index = usize::try_from(key & u64::from(u32::MAX)).expect("few keys");
        assert_eq!(self.last[index], key, "a key is freed once");
        self.vacant.push(index);
    }
}

/// A client's name for a sequence.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct CorrelationId(pub(crate) u64);

/// The sequence keys, by correlation ID.
#[derive(Clone, Debug, Default)]
pub(crate) struct CorrelationIds {
    keys: Keys,
    open: BTreeMap<CorrelationId, SequenceKey>,
}

impl CorrelationIds {
    /// Returns the ID's sequence, or a new one if the ID is unknown.
    pub(crate) fn intern(&mut self, id: CorrelationId, reuse: Reuse) -> SequenceKey {
        *self.open.entry(id).or_insert_with(|| SequenceKey(self.keys.allocate(reuse)))
    }

    /// Assigns a key to a sequence without an ID, which is an iterative request.
    pub(crate) fn anonymous(&mut self, reuse: Reuse) -> SequenceKey {
        SequenceKey(self.keys.allocate(reuse))
    }

    /// Frees the ID of a sequence that the scheduler has closed.
    pub(crate) fn close(&mut self, key: SequenceKey) {
        self.open.retain(|_, open| *open != key);
    }

    /// Frees the key of a sequence that the scheduler has ended.
    pub(crate) fn end(&mut self, key: SequenceKey) {
        assert!(!self.open.values().any(|open| *open == key), "{key:?} ended while it is open");
        self.keys.free(key.0);
    }
}
