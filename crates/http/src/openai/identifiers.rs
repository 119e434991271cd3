//! The identifiers of completions: UUIDs of version 1, as in Triton.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The time between the start of the Gregorian calendar and 1970, in units of 100 ns.
const TICKS_TO_1970: u64 = 0x01b2_1dd2_1381_4000;

/// Creates identifiers that differ from each other and, very probably, from those of other servers.
pub(super) struct IdentifierSource {
    node: u64,
    last: AtomicU64,
}

impl IdentifierSource {
    pub(super) fn new() -> Self {
        // The hashes of the standard library start from random keys.
        Self { node: RandomState::new().hash_one(0), last: AtomicU64::new(0) }
    }

    /// Returns an identifier that is created at this time since 1970.
    pub(super) fn next(&self, since_1970: Duration) -> String {
        let ticks = u64::try_from(since_1970.as_nanos() / 100).unwrap_or(u64::MAX);
        let now = ticks.saturating_add(TICKS_TO_1970);
        let after = |last: u64| Some(now.max(last.saturating_add(1)));
        let last = self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
        let time = last.map_or(now, |last| now.max(last.saturating_add(1)));
        let node = self.node & 0xffff_ffff_ffff | 0x0100_0000_0000;
        format!(
            "cmpl-{:08x}-{:04x}-1{:03x}-{:04x}-{node:012x}",
            time & 0xffff_ffff,
            time >> 32 & 0xffff,
            time >> 48 & 0xfff,
            self.node >> 48 & 0x3fff | 0x8000,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_uuids_of_version_1() {
        let source = IdentifierSource::new();
        let now = Duration::from_secs(1_700_000_000);
        let [first, second] = [source.next(now), source.next(now)];
        assert_ne!(first, second);
        for id in [first, second] {
            let parts: Vec<&str> = id.split('-').collect();
            let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
            assert_eq!(lengths, [4, 8, 4, 4, 4, 12], "{id}");
            assert!(parts[3].starts_with('1') && "89ab".contains(&parts[4][..1]), "{id}");
        }
    }
}
