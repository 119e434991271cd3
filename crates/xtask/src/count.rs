//! Counts the tests in the output of test runners.

/// The numbers of tests that passed and failed.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    /// The number of tests that passed.
    pub(crate) passed: u64,
    /// The number of tests that failed.
    pub(crate) failed: u64,
}

impl Count {
    /// The sum of the two counts.
    pub(crate) const fn plus(self, other: Self) -> Self {
        Self {
            passed: self.passed.saturating_add(other.passed),
            failed: self.failed.saturating_add(other.failed),
        }
    }

    /// Adds up the `cargo test`, `cargo nextest` and pytest summaries in a text. nextest shows the
    /// output of failed tests, which may contain summaries, so only its own last summary counts.
    pub(crate) fn in_text(text: &str) -> Self {
        let nextest = text.lines().rfind(|line| line.trim().starts_with("Summary ["));
        if let Some(summary) = nextest {
            return in_summary(summary);
        }
        text.lines()
            .filter(|line| is_summary(line))
            .map(in_summary)
            .fold(Self::default(), Self::plus)
    }

    /// The lines of a text that are not summaries.
    pub(crate) fn without_summaries(text: &str) -> impl Iterator<Item = &str> {
        text.lines().filter(|line| !is_summary(line))
    }
}

/// - `test result: ok. 25 passed; 0 failed; 0 ignored; …`
/// - `     Summary [   0.110s] 3 tests run: 2 passed, 1 failed, 0 skipped`
/// - `===== 2 passed, 1 failed in 0.12s =====`, without the signs if quiet
fn is_summary(line: &str) -> bool {
    let line = line.trim();
    let pytest = line.trim_matches('=').trim().contains(" in ")
        && line.trim_matches(['=', ' ']).starts_with(|first: char| first.is_ascii_digit());
    line.starts_with("test result: ") || pytest
}

fn in_summary(line: &str) -> Count {
    let words: Vec<&str> = line.split([' ', ',', ';']).filter(|word| !word.is_empty()).collect();
    let mut count = Count::default();
    for pair in words.windows(2) {
        if let [number, what] = pair
            && let Ok(number) = number.parse::<u64>()
        {
            match *what {
                "passed" => count.passed = count.passed.saturating_add(number),
                "failed" | "timed" | "error" | "errors" => {
                    count.failed = count.failed.saturating_add(number);
                }
                _ => {}
            }
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, passed: u64, failed: u64) {
        assert_eq!(Count::in_text(text), Count { passed, failed }, "{text}");
    }

    #[test]
    fn every_runners_summary_counts() {
        check("test result: ok. 25 passed; 0 failed; 1 ignored; 0 measured", 25, 0);
        check("test result: FAILED. 2 passed; 3 failed; 1 ignored; 0 measured", 2, 3);
        check("     Summary [   0.110s] 3 tests run: 2 passed, 1 failed, 0 skipped", 2, 1);
        check("     Summary [   0.110s] 2 tests run: 2 passed (1 flaky), 0 skipped", 2, 0);
        check("     Summary [ 189.125s] 5 tests run: 3 passed, 1 failed, 1 timed out", 3, 2);
        check("========== 2 passed, 1 failed, 4 errors in 0.12s ==========", 2, 5);
        check("7 passed in 3.10s", 7, 0);
        check("1 failed, 7 passed, 2 warnings in 3.10s", 7, 1);
    }

    #[test]
    fn summaries_add_up_and_other_lines_do_not_count() {
        let text = "\
running 2 tests
test a ... ok
error: 3 failed somewhere
test result: ok. 1 passed; 0 failed; 0 ignored
test result: ok. 2 passed; 1 failed; 0 ignored
";
        check(text, 3, 1);
        check("", 0, 0);
    }

    #[test]
    fn nextest_shows_failures_more_than_once_but_they_count_once() {
        let text = "\
    test result: FAILED. 0 passed; 1 failed; 0 ignored
     Summary [   0.110s] 3 tests run: 2 passed, 1 failed, 0 skipped
        FAIL [   0.137s] galatea-a b
";
        check(text, 2, 1);
    }
}
