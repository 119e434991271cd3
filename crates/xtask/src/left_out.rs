//! The skipped tests, counted by reason.

use std::collections::BTreeMap;

/// The reason for every Rust test marked with `#[ignore]`.
const IGNORED: &str = "marked `#[ignore]` or ```` ```ignore ```` in the Rust source";

/// The number of skipped tests for each reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SkippedTests(BTreeMap<String, u64>);

impl SkippedTests {
    /// Skipped tests that all have the same reason.
    pub(crate) fn because(reason: impl Into<String>, tests: u64) -> Self {
        let mut left_out = Self::default();
        left_out.add(reason.into(), tests);
        left_out
    }

    /// Parses the output of test runners. pytest with `-rs` lists the reasons.
    pub(crate) fn in_text(text: &str) -> Self {
        let mut left_out = Self::default();
        for line in text.lines() {
            if let Some((tests, reason)) = pytest_skip(line) {
                left_out.add(reason.to_owned(), tests);
            }
        }
        left_out.add(IGNORED.to_owned(), ignored(text));
        left_out
    }

    /// Parses the lines of a report.
    pub(crate) fn in_report(lines: &[&str]) -> Self {
        let mut left_out = Self::default();
        for line in lines {
            if let Some((tests, reason)) = line.trim_start().split_once("  ")
                && let Ok(tests) = tests.parse()
            {
                left_out.add(reason.to_owned(), tests);
            }
        }
        left_out
    }

    /// Adds another step's skipped tests.
    pub(crate) fn extend(&mut self, other: Self) {
        for (reason, tests) in other.0 {
            self.add(reason, tests);
        }
    }

    fn add(&mut self, reason: String, tests: u64) {
        if tests > 0 {
            let count = self.0.entry(reason).or_default();
            *count = count.saturating_add(tests);
        }
    }

    /// Formats one line per reason, the most frequent first; empty if no test was skipped.
    pub(crate) fn report(&self) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let mut reasons: Vec<_> = self.0.iter().collect();
        reasons.sort_by_key(|(_, tests)| u64::MAX.saturating_sub(**tests));
        let total: u64 = self.0.values().sum();
        let lines = reasons.iter().map(|(reason, tests)| format!("\n{tests:6}  {reason}"));
        format!("{total} tests were left out:{}\n", lines.collect::<String>())
    }
}

/// `SKIPPED [3] tests/clients/test_a.py:12: there is no redis-server`
fn pytest_skip(line: &str) -> Option<(u64, &str)> {
    let (tests, rest) = line.strip_prefix("SKIPPED [")?.split_once("] ")?;
    let (_, reason) = rest.split_once(": ")?;
    Some((tests.parse().ok()?, reason.trim()))
}

/// - `     Summary [   0.110s] 3 tests run: 2 passed, 1 skipped`, which alone counts
/// - `test result: ok. 25 passed; 0 failed; 1 ignored; …`
fn ignored(text: &str) -> u64 {
    if let Some(line) = text.lines().rfind(|line| line.trim().starts_with("Summary [")) {
        return number_before(line, "skipped");
    }
    let results = text.lines().filter(|line| line.starts_with("test result: "));
    results.map(|line| number_before(line, "ignored")).sum()
}

fn number_before(line: &str, word: &str) -> u64 {
    let parts = line.split([',', ';', ':']).map(str::trim);
    let number = parts.filter_map(|part| part.strip_suffix(word)?.trim().parse().ok()).next();
    number.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[(&str, u64)]) {
        let expected = expected.iter().map(|(reason, tests)| ((*reason).to_owned(), *tests));
        assert_eq!(SkippedTests::in_text(text), SkippedTests(expected.collect()), "{text}");
    }

    #[test]
    fn skipped_tests_of_every_runner_are_counted() {
        check(
            "SKIPPED [2] a/b.py:7: no c++: none\nSKIPPED [1] a/c.py: no c++: none\n",
            &[("no c++: none", 3)],
        );
        check("  Summary [ 0.1s] 3 tests run: 2 passed, 1 failed, 4 skipped", &[(IGNORED, 4)]);
        check(
            "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured\n\
             test result: ok. 2 passed; 0 failed; 2 ignored; 0 measured\n",
            &[(IGNORED, 3)],
        );
        check("test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured\n1 skipped", &[]);
    }

    #[test]
    fn the_report_groups_by_reason() {
        let mut left_out = SkippedTests::because("no curl", 1);
        left_out.extend(SkippedTests::because("no redis", 3));
        left_out.extend(SkippedTests::because("no curl", 1));
        let expected = "5 tests were left out:\n     3  no redis\n     2  no curl\n";
        assert_eq!(left_out.report(), expected);
        assert_eq!(SkippedTests::default().report(), "");
    }
}
