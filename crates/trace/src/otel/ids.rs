//! Trace and span numbers.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// A trace number.
pub(crate) type TraceNumber = [u8; 16];

/// A span number.
pub(crate) type SpanNumber = [u8; 8];

/// Generates numbers that are unique across processes, by hashing a counter with secret keys.
#[derive(Debug, Default)]
pub(crate) struct NumberSource {
    keys: [RandomState; 2],
    counter: AtomicU64,
}

impl NumberSource {
    pub(crate) fn trace(&self) -> TraceNumber {
        let mut number = [0; 16];
        let (first, second) = number.split_at_mut(8);
        first.copy_from_slice(&self.next(0));
        second.copy_from_slice(&self.next(1));
        number
    }

    pub(crate) fn span(&self) -> SpanNumber {
        self.next(0)
    }

    fn next(&self, key: usize) -> SpanNumber {
        let count = self.counter.fetch_add(1, Ordering::Relaxed);
        let mut hasher = self.keys.get(key).unwrap_or(&self.keys[0]).build_hasher();
        hasher.write_u64(count);
        // A span number is never 0.
        hasher.finish().max(1).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn numbers_are_not_repeated() {
        let (first, second) = (NumberSource::default(), NumberSource::default());
        let spans = (0..1000).map(|_| first.span()).chain((0..1000).map(|_| second.span()));
        assert_eq!(spans.collect::<HashSet<_>>().len(), 2000);
        assert_ne!(first.trace(), first.trace());
        assert_ne!(first.trace()[..8], first.trace()[8..]);
    }
}
