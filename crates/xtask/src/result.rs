//! The result of a step of `cargo xtask test`.

use crate::count::Count;
use crate::left_out::SkippedTests;
use crate::process::CommandOutput;

/// The result of a step.
pub(crate) enum StepResult {
    /// A single check, and whether it passed.
    Check(bool),
    /// The output of test runners.
    Tests(CommandOutput),
    /// The number of tests that passed and failed.
    Counted(Count),
    /// All tests were skipped.
    LeftOut(SkippedTests),
}

/// Counts the tests in a runner's output. A runner that failed without a failed test, because the
/// code doesn't compile, counts as one failure. The same is true of a runner that ran no tests.
pub(crate) fn counted(recorded: &CommandOutput) -> Count {
    let count = Count::in_text(&recorded.text);
    let silent_failure = !recorded.success && count.failed == 0;
    let nothing_ran = recorded.success && count == Count::default();
    count.plus(Count { passed: 0, failed: u64::from(silent_failure || nothing_ran) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(success: bool, text: &str) -> Count {
        counted(&CommandOutput { success, text: text.to_owned() })
    }

    #[test]
    fn a_failure_counts_even_where_no_test_failed() {
        let count = |passed, failed| Count { passed, failed };
        assert_eq!(recorded(true, "test result: ok. 3 passed; 0 failed"), count(3, 0));
        assert_eq!(recorded(false, "test result: FAILED. 3 passed; 1 failed"), count(3, 1));
        assert_eq!(recorded(false, "error: could not compile"), count(0, 1));
        assert_eq!(recorded(true, "nothing"), count(0, 1));
    }
}
