//! The statistics of a shared execution, which count for each of its members.

use std::time::{Duration, Instant};

use galatea_infer::{
    AdmissionTimes, ExecutionSummary, FailureReason, RequestObserver, StatisticsReporter,
};
use galatea_stdx::Lock;

/// Passes what a backend reports about a shared request to the members' statistics. Compiled
/// backends may report it after the response.
#[derive(Debug, Default)]
pub(super) struct ExecutionRecord(Lock<Reports>);

#[derive(Debug, Default)]
struct Reports {
    /// The reports so far.
    reports: Vec<ReportedResult>,
    /// The members that have their result, which get later reports as well.
    members: Vec<CountedMember>,
}

/// A member's way into the statistics.
#[derive(Clone, Debug)]
pub(super) struct CountedMember {
    pub(super) reporter: StatisticsReporter,
    /// The time at which the member joined the execution.
    pub(super) queued: Instant,
}

#[derive(Copy, Clone, Debug)]
enum ReportedResult {
    Success(ExecutionSummary),
    Failure(FailureReason),
}

impl ExecutionRecord {
    /// Passes the reports to a member that gets its result now, and all later ones.
    pub(super) fn report_to(&self, member: &CountedMember) {
        let reports = {
            let mut state = self.0.lock("add a member");
            state.members.push(member.clone());
            state.reports.clone()
        };
        reports.into_iter().for_each(|report| report.pass_to(member));
    }

    /// The times of the execution for a member that joined at `queued`, if they were reported.
    pub(super) fn summary_since(&self, queued: Instant) -> Option<ExecutionSummary> {
        let state = self.0.lock("read the times");
        state.reports.iter().find_map(|report| match report {
            ReportedResult::Success(summary) => Some(part_since(summary, queued)),
            ReportedResult::Failure(_) => None,
        })
    }

    /// The reason of a failure, if one was reported.
    pub(super) fn failure(&self) -> Option<FailureReason> {
        let state = self.0.lock("read the failure");
        state.reports.iter().find_map(|report| match report {
            ReportedResult::Success(_) => None,
            ReportedResult::Failure(reason) => Some(*reason),
        })
    }

    fn add(&self, report: ReportedResult) {
        let members = {
            let mut state = self.0.lock("add a report");
            state.reports.push(report);
            state.members.clone()
        };
        members.iter().for_each(|member| report.pass_to(member));
    }
}

impl ReportedResult {
    fn pass_to(self, member: &CountedMember) {
        let CountedMember { reporter, queued } = member;
        match self {
            Self::Success(summary) => reporter.report_success(&part_since(&summary, *queued)),
            Self::Failure(reason) => reporter.report_failure(reason),
        }
    }
}

/// The part of an execution that follows `queued`. A request that joins an execution in progress
/// doesn't wait for the stages that are over.
fn part_since(summary: &ExecutionSummary, queued: Instant) -> ExecutionSummary {
    let mut passed = queued.saturating_duration_since(summary.start);
    let mut rest = |stage: Duration| {
        let left = stage.saturating_sub(passed);
        passed = passed.saturating_sub(stage);
        left
    };
    ExecutionSummary {
        start: summary.start.max(queued),
        end: summary.end.max(queued),
        input: rest(summary.input),
        infer: rest(summary.infer),
        output: rest(summary.output),
        gpu: summary.gpu,
    }
}

impl RequestObserver for ExecutionRecord {
    fn succeeded(&self, _: u32, _: &AdmissionTimes, execution: &ExecutionSummary) {
        self.add(ReportedResult::Success(*execution));
    }

    fn failed(&self, _: &AdmissionTimes, reason: FailureReason) {
        self.add(ReportedResult::Failure(reason));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_for_the_stages_that_are_left() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let end = start + ms(60);
        let summary = ExecutionSummary {
            start,
            end,
            input: ms(10),
            infer: ms(30),
            output: ms(20),
            gpu: None,
        };
        let check = |joined: Instant, expected: [u64; 3]| {
            let part = part_since(&summary, joined);
            assert_eq!([part.input, part.infer, part.output], expected.map(ms));
            assert_eq!((part.start, part.end), (start.max(joined), end.max(joined)));
        };
        check(start, [10, 30, 20]);
        check(start + ms(4), [6, 30, 20]);
        check(start + ms(15), [0, 25, 20]);
        check(start + ms(70), [0, 0, 0]);
    }
}
