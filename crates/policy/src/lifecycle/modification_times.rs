//! When the files of a model changed last.

use std::collections::BTreeMap;

/// Times of modification, in nanoseconds since the epoch.
///
/// Only what got newer counts as changed, as in the original: a file that was
/// replaced by one with an older time is not noticed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModificationTimes {
    /// The newest of everything in the model's directory, and of the directory
    /// itself.
    pub newest: i64,
    /// The newest of everything in each version's directory.
    pub versions: BTreeMap<i64, i64>,
    /// The newest of what all versions share: everything else except for the
    /// configuration, which is compared by its content.
    pub shared: i64,
}

impl ModificationTimes {
    /// Whether anything changed since `earlier`.
    pub fn is_newer_than(&self, earlier: &Self) -> bool {
        self.newest > earlier.newest
    }

    /// Whether anything changed since `earlier` that a version is made of.
    pub fn version_is_newer_than(&self, version: i64, earlier: &Self) -> bool {
        self.of_version(version) > earlier.of_version(version)
    }

    fn of_version(&self, version: i64) -> i64 {
        self.versions.get(&version).copied().unwrap_or_default().max(self.shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_got_newer_is_a_change() {
        let stamp = |newest, shared, versions: &[(i64, i64)]| ModificationTimes {
            newest,
            shared,
            versions: versions.iter().copied().collect(),
        };
        let old = stamp(9, 3, &[(1, 5), (2, 7)]);
        assert!(!stamp(9, 3, &[(1, 5), (2, 7)]).is_newer_than(&old));
        assert!(!stamp(8, 3, &[(1, 5)]).is_newer_than(&old));
        let config_and_version = stamp(12, 3, &[(1, 5), (2, 11)]);
        assert!(config_and_version.is_newer_than(&old));
        assert!(!config_and_version.version_is_newer_than(1, &old));
        assert!(config_and_version.version_is_newer_than(2, &old));
        let labels = stamp(13, 13, &[(1, 5), (2, 7)]);
        assert!(labels.version_is_newer_than(1, &old) && labels.version_is_newer_than(2, &old));
        assert!(stamp(9, 3, &[(3, 9)]).version_is_newer_than(3, &old), "it was not there");
    }
}
