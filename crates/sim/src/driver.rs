//! What the server does between its clients and a scheduler: it names requests
//! and sequences. Names are places in a slab, used again as soon as they may be.

use std::collections::BTreeMap;

use galatea_policy::SequenceKey;

/// Gives out keys: a place in the low half, how often it was used in the high
/// half.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    /// For each place, the key that it has, or had last.
    last: Vec<u64>,
    vacant: Vec<usize>,
}

/// Whether a key may be the very one that was used before.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reuse {
    OtherGeneration,
    SameKey,
}

impl Keys {
    pub(crate) fn take(&mut self, reuse: Reuse) -> u64 {
        let Some(place) = self.vacant.pop() else {
            let key = u64::try_from(self.last.len()).expect("few keys");
            self.last.push(key);
            return key;
        };
        if reuse == Reuse::OtherGeneration {
            self.last[place] += 1 << 32;
        }
        self.last[place]
    }

    pub(crate) fn free(&mut self, key: u64) {
        let place = usize::try_from(key & u64::from(u32::MAX)).expect("few keys");
        assert_eq!(self.last[place], key, "a key is freed once");
        self.vacant.push(place);
    }
}

/// What clients call a sequence.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct CorrelationId(pub(crate) u64);

/// Which key a correlation ID means now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    keys: Keys,
    open: BTreeMap<CorrelationId, SequenceKey>,
}

impl Names {
    /// The ID's sequence; a new one, if the ID is not known.
    pub(crate) fn intern(&mut self, id: CorrelationId, reuse: Reuse) -> SequenceKey {
        *self.open.entry(id).or_insert_with(|| SequenceKey(self.keys.take(reuse)))
    }

    /// A sequence that no ID leads to: an iterative request.
    pub(crate) fn anonymous(&mut self, reuse: Reuse) -> SequenceKey {
        SequenceKey(self.keys.take(reuse))
    }

    /// The scheduler closed the sequence: its ID is free.
    pub(crate) fn close(&mut self, key: SequenceKey) {
        self.open.retain(|_, open| *open != key);
    }

    /// The scheduler ended the sequence: its key is free.
    pub(crate) fn end(&mut self, key: SequenceKey) {
        assert!(!self.open.values().any(|open| *open == key), "{key:?} ended while it is open");
        self.keys.free(key.0);
    }
}
