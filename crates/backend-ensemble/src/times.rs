//! The total durations of a request's steps.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use galatea_infer::{ExecutionReadings, ExecutionSummary, ExecutionTimes, StepExecutionObserver};

/// Totals over all calls of a run. As in Triton, concurrent steps each count in full, and a batch
/// counts in full for each of its requests.
#[derive(Debug, Default)]
pub(crate) struct StepTimes {
    input_ns: AtomicU64,
    infer_ns: AtomicU64,
    output_ns: AtomicU64,
}

impl StepExecutionObserver for StepTimes {
    fn executed(&self, execution: &ExecutionSummary) {
        let add = |sum: &AtomicU64, duration: Duration| {
            let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
            sum.fetch_add(ns, Ordering::Relaxed);
        };
        add(&self.input_ns, execution.input);
        add(&self.infer_ns, execution.infer);
        add(&self.output_ns, execution.output);
    }
}

impl StepTimes {
    /// The execution summary of the ensemble's request.
    pub(crate) fn execution(&self, start: Instant, end: Instant) -> ExecutionSummary {
        let sum = |sum: &AtomicU64| Duration::from_nanos(sum.load(Ordering::Relaxed));
        ExecutionSummary {
            start,
            end,
            input: sum(&self.input_ns),
            infer: sum(&self.infer_ns),
            output: sum(&self.output_ns),
            gpu: None,
        }
    }
}

/// Places the durations end to end for the batch statistics, which use nothing else.
pub(crate) fn batch_times(execution: &ExecutionSummary) -> ExecutionTimes {
    let compute_start = execution.start + execution.input;
    let compute_end = compute_start + execution.infer;
    let end = compute_end + execution.output;
    ExecutionTimes::from(ExecutionReadings {
        start: execution.start,
        compute_start,
        compute_end,
        end,
    })
}
