//! Which of the versions that exist are to be loaded.

use galatea_config::VersionPolicy;

/// What a version policy selects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionSelection {
    /// The versions to load, ascending.
    pub load: Vec<i64>,
    /// Versions that the policy names and that don't exist, in its order.
    pub missing: Vec<i64>,
}

/// Applies a policy to the versions that exist.
///
/// `available` may come in any order and must not repeat a version.
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
        VersionPolicy::Specific(wanted) => specific(wanted, &sorted),
    }
}

fn specific(wanted: &[i64], sorted: &[i64]) -> VersionSelection {
    let (mut load, missing): (Vec<i64>, Vec<i64>) =
        wanted.iter().partition(|version| sorted.binary_search(version).is_ok());
    load.sort_unstable();
    load.dedup();
    VersionSelection { load, missing }
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
    fn latest_takes_the_highest_numbers() {
        check(VersionPolicy::Latest(1), &[2, 10, 9], &[10], &[]);
        check(VersionPolicy::Latest(2), &[2, 10, 9], &[9, 10], &[]);
        check(VersionPolicy::Latest(5), &[2, 10, 9], &[2, 9, 10], &[]);
        check(VersionPolicy::Latest(1), &[], &[], &[]);
        check(VersionPolicy::Latest(0), &[1], &[], &[]);
    }

    #[test]
    fn all_takes_all() {
        check(VersionPolicy::All, &[3, 1], &[1, 3], &[]);
        check(VersionPolicy::All, &[], &[], &[]);
    }

    #[test]
    fn specific_takes_those_that_exist_and_tells_the_others() {
        check(VersionPolicy::Specific(vec![3, 7, 1, 3]), &[1, 2, 3], &[1, 3], &[7]);
        check(VersionPolicy::Specific(vec![7]), &[1], &[], &[7]);
    }
}
