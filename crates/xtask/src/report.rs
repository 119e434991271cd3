//! The end of a run: a line for each step, the skipped and repeated tests, and the sum.

use crate::cost::Cost;
use crate::count::Count;
use crate::left_out::SkippedTests;
use crate::repeated::FlakyTests;

/// The line before the steps.
const HEADING: &str = "== report ==";

/// The results of the steps so far.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RunReport {
    /// A line for each step.
    steps: Vec<String>,
    pub(crate) left_out: SkippedTests,
    pub(crate) repeated: FlakyTests,
    total: Count,
}

impl RunReport {
    /// Adds a step's line. The remark states why a step could not run.
    pub(crate) fn add(&mut self, name: &str, cost: &Cost, count: Count, remark: Option<&str>) {
        let Count { passed, failed } = count;
        let remark = remark.map(|reason| format!(" ({reason})")).unwrap_or_default();
        self.steps.push(format!("{name:12}{cost}   {passed} passed, {failed} failed{remark}"));
        self.total = self.total.plus(count);
    }

    /// Returns true if no test failed.
    pub(crate) const fn is_good(&self) -> bool {
        self.total.failed == 0
    }

    /// The report as the run prints it. The last line is the sum.
    pub(crate) fn text(&self, cost: &Cost) -> String {
        let Count { passed, failed } = self.total;
        format!(
            "{HEADING}\n{}\n{:12}{cost}\n\n{}{}{passed} passed, {failed} failed",
            self.steps.join("\n"),
            "all",
            self.left_out.report(),
            self.repeated.report()
        )
    }

    /// Adds the report in another run's output. Returns false if there is none because the run
    /// didn't finish.
    pub(crate) fn add_printed(&mut self, text: &str) -> bool {
        let mut lines = text.lines().skip_while(|line| *line != HEADING).skip(1);
        let mut steps: Vec<&str> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
        steps.pop();
        let rest: Vec<&str> = lines.collect();
        let Some(end) = rest.iter().position(|line| sum(line).is_some()) else { return false };
        let (before, after) = rest.split_at(end);
        self.steps.extend(steps.into_iter().map(String::from));
        let sum = after.first().and_then(|line| sum(line)).unwrap_or_default();
        self.total = self.total.plus(sum);
        self.left_out.extend(SkippedTests::in_report(before));
        self.repeated.extend_by_report(before);
        true
    }
}

/// `7 passed, 0 failed`
fn sum(line: &str) -> Option<Count> {
    let (passed, rest) = line.split_once(" passed, ")?;
    let failed = rest.strip_suffix(" failed")?;
    Some(Count { passed: passed.parse().ok()?, failed: failed.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Start;

    #[test]
    fn a_printed_report_is_added_to_another() {
        let cost = Start::now().cost();
        let mut report = RunReport::default();
        report.add("rust", &cost, Count { passed: 7, failed: 1 }, None);
        report.add("readme", &cost, Count { passed: 0, failed: 1 }, Some("no server"));
        report.left_out = SkippedTests::because("no curl: none", 3);
        report.repeated.extend("PASSED WHEN REPEATED a.py::test_a\n");
        let printed = format!("3 passed, 0 failed\n{}\nerror: b\n", report.text(&cost));
        assert!(printed.contains("\n7 passed, 2 failed\n"), "{printed}");
        let mut other = RunReport::default();
        assert!(other.add_printed(&printed));
        assert_eq!(other, report);
        assert!(!other.is_good() && RunReport::default().is_good());
        assert!(!RunReport::default().add_printed("3 passed, 0 failed\n"));
    }
}
