//! Tests that failed once and passed when repeated.
//!
//! Such a test has a race, or the machine was too busy for it. This is a defect in the test or the
//! program, but rarely in the change, so it does not fail the run. The run lists such tests at its
//! end.

use std::process::Command;

use crate::count::Count;
use crate::process::{self, CommandOutput};

/// The maximum number of failed tests to repeat; more failures are not chance.
const TESTS_MAX: u64 = 5;

/// The line before the tests in a report.
const REPORTED: &str = "passed only when repeated:";

/// The start of a line that contains the name of a pytest test.
const PASSED_WHEN_REPEATED: &str = "PASSED WHEN REPEATED ";

/// Runs pytest, and repeats failed tests with additional options if there are few of them.
pub(crate) fn record(pytest: &mut Command, again: &[&str]) -> Result<CommandOutput, String> {
    let first = process::record(pytest)?;
    let count = Count::in_text(&first.text);
    if first.success || count.failed == 0 || count.failed > TESTS_MAX {
        return Ok(first);
    }
    pytest.args(["--last-failed", "--last-failed-no-failures", "none"]).args(again);
    Ok(joined(&first, &process::record(pytest)?))
}

/// The joint result of both runs: a test that fails in the second run has failed. The two pytest
/// summaries are replaced by a single one.
fn joined(first: &CommandOutput, second: &CommandOutput) -> CommandOutput {
    let (before, after) = (Count::in_text(&first.text), Count::in_text(&second.text));
    if after.passed.saturating_add(after.failed) != before.failed {
        return CommandOutput { success: false, text: first.text.clone() };
    }
    let mut text: Vec<String> = Count::without_summaries(&first.text).map(str::to_owned).collect();
    let still = failed(&second.text);
    let lucky = failed(&first.text).into_iter().filter(|test| !still.contains(test));
    text.extend(lucky.map(|test| format!("{PASSED_WHEN_REPEATED}{test}")));
    let passed = before.passed.saturating_add(after.passed);
    text.push(format!("{passed} passed, {} failed in two runs\n", after.failed));
    CommandOutput { success: second.success, text: text.join("\n") }
}

/// The tests in pytest's `FAILED tests/a.py::test - reason` and `ERROR …` lines.
fn failed(text: &str) -> Vec<&str> {
    let test = |line| {
        let rest = str::strip_prefix(line, "FAILED ").or_else(|| str::strip_prefix(line, "ERROR "));
        rest.map(|rest| rest.split(" - ").next().unwrap_or(rest))
    };
    text.lines().filter_map(test).collect()
}

/// The tests in a run that passed only when repeated.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FlakyTests(Vec<String>);

impl FlakyTests {
    /// Adds the tests in a step's output: `FLAKY 2/2 [ 0.1s] crate test` is nextest's line.
    pub(crate) fn extend(&mut self, text: &str) {
        let of_pytest = text.lines().filter_map(|line| line.strip_prefix(PASSED_WHEN_REPEATED));
        let nextest = text.lines().filter_map(|line| line.trim().strip_prefix("FLAKY "));
        let of_nextest = nextest.filter_map(|line| Some(line.split_once("] ")?.1));
        of_pytest.chain(of_nextest).for_each(|test| self.add(test));
    }

    /// Adds the tests in the lines of a report.
    pub(crate) fn extend_by_report(&mut self, lines: &[&str]) {
        let tests = lines.iter().skip_while(|line| **line != REPORTED).skip(1);
        tests.for_each(|test| self.add(test));
    }

    fn add(&mut self, test: &str) {
        let test = test.trim().to_owned();
        if !self.0.contains(&test) {
            self.0.push(test);
        }
    }

    /// Formats one line per test; empty if there are no tests.
    pub(crate) fn report(&self) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let tests: String = self.0.iter().map(|test| format!("\n        {test}")).collect();
        format!("{REPORTED}{tests}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(text: &str) -> CommandOutput {
        CommandOutput { success: !text.contains("failed"), text: text.to_owned() }
    }

    const FIRST: &str = "F.F\nFAILED a.py::test_a - why\nFAILED a.py::test_b - why\n\
                         SKIPPED [1] a.py:7: no curl\n2 failed, 5 passed in 3.10s\n";

    #[test]
    fn a_test_that_passes_when_repeated_has_passed_and_is_named() {
        let both = joined(&recorded(FIRST), &recorded("..\n2 passed, 5 deselected in 0.10s\n"));
        assert!(both.success);
        assert_eq!(Count::in_text(&both.text), Count { passed: 7, failed: 0 });
        assert!(both.text.contains("SKIPPED [1] a.py:7: no curl"));
        let mut repeated = FlakyTests::default();
        repeated.extend(&both.text);
        let expected = "passed only when repeated:\n        a.py::test_a\n        a.py::test_b\n";
        assert_eq!(repeated.report(), expected);
    }

    #[test]
    fn a_test_that_fails_again_has_failed() {
        let second = "F.\nFAILED a.py::test_b - why\n1 failed, 1 passed in 0.10s\n";
        let both = joined(&recorded(FIRST), &recorded(second));
        assert!(!both.success);
        assert_eq!(Count::in_text(&both.text), Count { passed: 6, failed: 1 });
        let mut repeated = FlakyTests::default();
        repeated.extend(&both.text);
        assert_eq!(repeated, FlakyTests(vec![String::from("a.py::test_a")]));
    }

    #[test]
    fn a_repetition_that_ran_other_tests_saves_nothing() {
        let both = joined(&recorded(FIRST), &recorded("1 passed in 0.10s\n"));
        assert!(!both.success);
        assert_eq!(Count::in_text(&both.text), Count { passed: 5, failed: 2 });
    }

    #[test]
    fn nextests_repetitions_are_named_once() {
        let mut repeated = FlakyTests::default();
        let line = "   FLAKY 2/2 [   0.010s] (1/2) galatea-a tests::b\n";
        repeated.extend(&format!("{line}{line}        PASS [   0.010s] galatea-a tests::c\n"));
        assert_eq!(
            repeated.report(),
            "passed only when repeated:\n        (1/2) galatea-a tests::b\n"
        );
        assert_eq!(FlakyTests::default().report(), "");
    }
}
