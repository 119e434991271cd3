//! The times of a request and its execution, and the observers that record them.

use std::time::{Duration, Instant};

use crate::FailureReason;

/// The times at which a request passed the trace points that precede its execution.
#[derive(Copy, Clone, Debug)]
pub struct AdmissionTimes {
    /// The time at which the server received the request.
    pub arrival: Instant,
    /// The time at which the request entered its model's queue.
    pub queued: Instant,
}

/// Clock readings that a backend took at the stages of one execution.
#[derive(Copy, Clone, Debug)]
pub struct ExecutionReadings {
    /// The backend received the batch.
    pub start: Instant,
    /// The inputs were in place and computing began.
    pub compute_start: Instant,
    /// Computing ended; outputs were collected next.
    pub compute_end: Instant,
    /// The outputs were ready to be sent.
    pub end: Instant,
}

/// The clock readings of one execution and the stage durations computed from them. The durations
/// are recorded for the batch and for each of its requests.
#[derive(Copy, Clone, Debug)]
pub struct ExecutionTimes {
    readings: ExecutionReadings,
    input: Duration,
    infer: Duration,
    output: Duration,
}

impl ExecutionTimes {
    /// The readings from which the durations were computed.
    #[must_use]
    pub const fn readings(&self) -> &ExecutionReadings {
        &self.readings
    }

    /// The time spent on gathering inputs.
    #[must_use]
    pub const fn input_time(&self) -> Duration {
        self.input
    }

    /// The time spent on computing.
    #[must_use]
    pub const fn infer_time(&self) -> Duration {
        self.infer
    }

    /// The time spent on collecting outputs.
    #[must_use]
    pub const fn output_time(&self) -> Duration {
        self.output
    }
}

impl From<ExecutionReadings> for ExecutionTimes {
    fn from(readings: ExecutionReadings) -> Self {
        let ExecutionReadings { start, compute_start, compute_end, end } = readings;
        let (input, infer) = (between(start, compute_start), between(compute_start, compute_end));
        Self { readings, input, infer, output: between(compute_end, end) }
    }
}

/// The time between two readings of the clock. A backend that gathers or collects nothing reports
/// the same reading twice. Comparing first skips the subtraction, which is ten times as expensive.
fn between(earlier: Instant, later: Instant) -> Duration {
    if earlier == later { Duration::ZERO } else { later.saturating_duration_since(earlier) }
}

/// The times of a request's execution: those of one batch, or the sums over all executions in an
/// ensemble run.
#[derive(Copy, Clone, Debug)]
pub struct ExecutionSummary {
    /// The time at which the request left its model's queue.
    pub start: Instant,
    /// The time at which the execution ended.
    pub end: Instant,
    /// Time spent on gathering inputs.
    pub input: Duration,
    /// Time spent on computing.
    pub infer: Duration,
    /// Time spent on collecting outputs.
    pub output: Duration,
    /// The GPU of the instance that executed the request, if executions are counted per GPU.
    pub gpu: Option<u32>,
}

impl From<&ExecutionTimes> for ExecutionSummary {
    fn from(times: &ExecutionTimes) -> Self {
        Self {
            start: times.readings.start,
            end: times.readings.end,
            input: times.input,
            infer: times.infer,
            output: times.output,
            gpu: None,
        }
    }
}

/// An observer of a step's execution: the ensemble run that made the request and adds up the times
/// of its steps.
pub trait StepExecutionObserver: Send + Sync + std::fmt::Debug {
    /// Called when the request was executed without an error.
    fn executed(&self, execution: &ExecutionSummary);
}

/// Keeps the statistics of a model's requests.
pub trait RequestObserver: Send + Sync + std::fmt::Debug {
    /// Called when a request was executed without an error.
    fn succeeded(&self, batch_size: u32, times: &AdmissionTimes, execution: &ExecutionSummary);
    /// Called when a request ended with an error.
    fn failed(&self, times: &AdmissionTimes, reason: FailureReason);
    /// Called before the first response to a request, or an error in its place, is sent.
    fn responding(&self, _times: &AdmissionTimes) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_lie_between_the_readings_of_the_clock() {
        let start = Instant::now();
        let at = |nanoseconds| start + Duration::from_nanos(nanoseconds);
        let check = |readings: [u64; 3], expected: [u64; 3]| {
            let [compute_start, compute_end, end] = readings.map(at);
            let readings = ExecutionReadings { start, compute_start, compute_end, end };
            let times = ExecutionTimes::from(readings);
            let summary = ExecutionSummary::from(&times);
            let stages = [summary.input, summary.infer, summary.output];
            assert_eq!(stages, expected.map(Duration::from_nanos), "{readings:?}");
        };
        check([5, 7, 1_000_000_008], [5, 2, 1_000_000_001]);
        check([0, 7, 7], [0, 7, 0]);
        // A backend may report readings in any order.
        check([5, 3, 9], [5, 0, 6]);
    }
}
