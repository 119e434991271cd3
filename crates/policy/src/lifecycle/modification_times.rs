//! Modification times of a model's files.

use std::collections::BTreeMap;

/// Modification times, in nanoseconds since the epoch.
///
/// As in Triton, only a newer time counts as a change: replacing a file with an older one goes
/// unnoticed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModificationTimes {
    /// The newest time in the model directory, including that of the directory itself.
    pub newest: i64,
    /// The newest time in each version directory.
    pub versions: BTreeMap<i64, i64>,
    /// The newest time among the files shared by all versions. These are all other files except the
    /// configuration, which is compared by content.
    pub shared: i64,
}

impl ModificationTimes {
    /// Returns true if a file has changed since `earlier`.
    pub fn is_newer_than(&self, earlier: &Self) -> bool {
        self.newest > earlier.newest
    }

    /// Returns true if a file of the version has changed since `earlier`.
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
    // row: MR-06
    fn only_a_newer_time_is_a_change() {
        let times = |newest, shared, versions: &[(i64, i64)]| ModificationTimes {
            newest,
            shared,
            versions: versions.iter().copied().collect(),
        };
        let old = times(9, 3, &[(1, 5), (2, 7)]);
        assert!(!times(9, 3, &[(1, 5), (2, 7)]).is_newer_than(&old));
        assert!(!times(8, 3, &[(1, 5)]).is_newer_than(&old));
        let config_and_version = times(12, 3, &[(1, 5), (2, 11)]);
        assert!(config_and_version.is_newer_than(&old));
        assert!(!config_and_version.version_is_newer_than(1, &old));
        assert!(config_and_version.version_is_newer_than(2, &old));
        let labels = times(13, 13, &[(1, 5), (2, 7)]);
        assert!(labels.version_is_newer_than(1, &old) && labels.version_is_newer_than(2, &old));
        assert!(times(9, 3, &[(3, 9)]).version_is_newer_than(3, &old), "it was not there");
    }
}
