//! Model versions: their directory names and their selection by a policy.

use galatea_config::VersionPolicy;

/// The versions that a policy selects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionSelection {
    /// The versions to load, ascending.
    pub load: Vec<i64>,
    /// Versions that the policy lists but that don't exist, in policy order.
    pub missing: Vec<i64>,
}

/// Applies a policy to the existing versions.
///
/// `available` may be in any order and must not repeat a version.
#[must_use]
pub fn versions_to_load(policy: &VersionPolicy, available: &[i64]) -> VersionSelection {
    let mut sorted = available.to_vec();
    sorted.sort_unstable();
    match policy {
        VersionPolicy::All => VersionSelection { load: sorted, missing: Vec::new() },
        VersionPolicy::Latest(count) => {
            let count = usize::try_from(*count).unwrap_or(usize::MAX);
            let load = sorted.split_off(sorted.len().saturating_sub(count));
            VersionSelection { load, missing: Vec::new() }
        }
        VersionPolicy::Specific(versions) => select_specific(versions, &sorted),
    }
}

fn select_specific(versions: &[i64], sorted: &[i64]) -> VersionSelection {
    let (mut load, missing): (Vec<i64>, Vec<i64>) =
        versions.iter().partition(|version| sorted.binary_search(version).is_ok());
    load.sort_unstable();
    load.dedup();
    VersionSelection { load, missing }
}

/// Parses the version number in a directory name: digits without leading zeros.
pub(crate) fn version_number(name: &str) -> Result<i64, &'static str> {
    if !name.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("which is not a number");
    }
    if name.len() > 1 && name.starts_with('0') {
        return Err("which has leading zeros");
    }
    name.parse().map_err(|_| "which is too large a number")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(policy: VersionPolicy, available: &[i64], load: &[i64], missing: &[i64]) {
        let selection = versions_to_load(&policy, available);
        let expected = VersionSelection { load: load.to_vec(), missing: missing.to_vec() };
        assert_eq!(selection, expected, "{policy:?} of {available:?}");
    }

    #[test]
    fn latest_selects_the_highest_numbers() {
        check(VersionPolicy::Latest(1), &[2, 10, 9], &[10], &[]);
        check(VersionPolicy::Latest(2), &[2, 10, 9], &[9, 10], &[]);
        check(VersionPolicy::Latest(5), &[2, 10, 9], &[2, 9, 10], &[]);
        check(VersionPolicy::Latest(1), &[], &[], &[]);
        check(VersionPolicy::Latest(0), &[1], &[], &[]);
    }

    #[test]
    fn all_selects_every_version() {
        check(VersionPolicy::All, &[3, 1], &[1, 3], &[]);
        check(VersionPolicy::All, &[], &[], &[]);
    }

    #[test]
    // row: MR-03
    fn specific_selects_existing_versions_and_lists_missing_ones() {
        check(VersionPolicy::Specific(vec![3, 7, 1, 3]), &[1, 2, 3], &[1, 3], &[7]);
        check(VersionPolicy::Specific(vec![7]), &[1], &[], &[7]);
    }
}
