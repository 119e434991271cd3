//! Object times that change whenever the objects do.
//!
//! Triton only compares object times. It misses an object that is removed, or that is replaced
//! within the same second or by an older object. Here, such a change gets a time newer than all
//! previous times, so a comparison of times detects it.

use std::collections::BTreeMap;

use galatea_policy::ModificationTimes;

use super::ObjectVersion;
use super::listing::ModelListing;
use crate::version::version_number;

/// The times of a model's objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectTimes {
    files: BTreeMap<String, (ObjectVersion, i64)>,
    /// The removal times, by the first part of the path.
    removals: BTreeMap<String, i64>,
}

impl ObjectTimes {
    /// Computes the next times, for the current listing.
    pub(crate) fn next(&self, listing: &ModelListing) -> Self {
        let newer = self.newest().saturating_add(1);
        let is_first = self.files.is_empty();
        let stamp = |(path, state): (&String, &ObjectVersion)| {
            let time = match self.files.get(path) {
                Some((before, time)) if before == state => *time,
                Some(_) => state.modified_ns.max(newer),
                None if is_first => state.modified_ns,
                None => state.modified_ns.max(newer),
            };
            (path.clone(), (state.clone(), time))
        };
        let mut removals = self.removals.clone();
        for path in self.files.keys().filter(|path| !listing.files.contains_key(*path)) {
            removals.insert(first(path).to_owned(), newer);
        }
        Self { files: listing.files.iter().map(stamp).collect(), removals }
    }

    fn newest(&self) -> i64 {
        let files = self.files.values().map(|(_, time)| *time);
        files.chain(self.removals.values().copied()).max().unwrap_or(0)
    }

    /// The model's times. `config` is its configuration file.
    pub(crate) fn model_times(&self, config: Option<&str>) -> ModificationTimes {
        let mut times = ModificationTimes { newest: self.newest(), ..ModificationTimes::default() };
        let files = self.files.iter().map(|(path, (_, time))| (path.as_str(), *time));
        let removals = self.removals.iter().map(|(path, time)| (path.as_str(), *time));
        for (path, time) in files.chain(removals) {
            match version_number(first(path)) {
                Ok(number) => {
                    let version = times.versions.entry(number).or_default();
                    *version = time.max(*version);
                }
                Err(_) if config == Some(path) => {}
                Err(_) => times.shared = times.shared.max(time),
            }
        }
        times
    }
}

fn first(path: &str) -> &str {
    path.split_once('/').map_or(path, |(first, _)| first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(files: &[(&str, &str, i64)]) -> ModelListing {
        let file = |(path, etag, modified_ns): &(&str, &str, i64)| {
            let state = ObjectVersion {
                byte_size: 1,
                etag: Some((*etag).to_owned()),
                modified_ns: *modified_ns,
            };
            ((*path).to_owned(), state)
        };
        ModelListing { files: files.iter().map(file).collect(), ..ModelListing::default() }
    }

    #[test]
    fn every_change_is_newer_and_nothing_else_is() {
        let first = listing(&[("1/m", "a", 10), ("config.pbtxt", "c", 20), ("2/m", "b", 5)]);
        let stamps = ObjectTimes::default().next(&first);
        let before = stamps.model_times(Some("config.pbtxt"));
        assert_eq!((before.newest, before.shared), (20, 0));
        assert_eq!(before.versions, [(1, 10), (2, 5)].into());
        let same = stamps.next(&first);
        assert_eq!(same, stamps);

        // The object is replaced within the same second, and by an older object.
        for time in [10, 3] {
            let changed = [("1/m", "z", time), ("config.pbtxt", "c", 20), ("2/m", "b", 5)];
            let after = stamps.next(&listing(&changed)).model_times(Some("config.pbtxt"));
            assert!(after.is_newer_than(&before));
            assert!(after.version_is_newer_than(1, &before));
            assert!(!after.version_is_newer_than(2, &before));
        }
        let removed = stamps.next(&listing(&[("config.pbtxt", "c", 20), ("2/m", "b", 5)]));
        let after = removed.model_times(Some("config.pbtxt"));
        assert!(after.is_newer_than(&before) && after.version_is_newer_than(1, &before));
        let back = removed.next(&first).model_times(Some("config.pbtxt"));
        assert!(back.is_newer_than(&after) && back.version_is_newer_than(1, &after));
        let config = [("1/m", "a", 10), ("config.pbtxt", "d", 20), ("2/m", "b", 5)];
        let after = stamps.next(&listing(&config)).model_times(Some("config.pbtxt"));
        assert!(after.is_newer_than(&before) && !after.version_is_newer_than(1, &before));
    }
}
