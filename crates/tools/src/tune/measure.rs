//! Measures execution costs for batches of each size, for each number of instances and threads.

use std::time::Duration;

use galatea_load::{InputShapes, LoadLevel, SampleRequest, ServedModelInterface, run_closed_loop};
use galatea_simulate::ExecutionTimeSampler;
use galatea_traffic::RecordedExecution;

use super::candidate::{Resources, with_resources};
use super::server::TunedServer;

/// The duration of each measurement, and of the warmup before it.
const DURATION: Duration = Duration::from_millis(250);
const WARMUP: Duration = Duration::from_millis(100);

/// The maximum number of times that a size is measured.
const ATTEMPTS: usize = 3;

/// The limits for plausible costs. A batch is measured again if it takes longer than a larger
/// batch, or longer per row than a smaller batch. In either case, it must be longer by both the
/// corresponding factor and this time.
const DOUBTFUL_FACTOR: f64 = 2.0;
const DOUBTFUL_ROW_FACTOR: f64 = 4.0;
const DOUBTFUL_NS: f64 = 100_000.0;

/// The measurements with a given number of instances and threads.
pub(super) struct MeasuredResources {
    pub(super) resources: Resources,
    pub(super) costs: ExecutionTimeSampler,
    /// The typical execution time for each size.
    pub(super) curve: Curve,
    /// The sizes that were measured again, with the results.
    pub(super) remarks: Vec<String>,
}

/// The typical execution times in nanoseconds, by number of rows.
pub(super) type Curve = Vec<(u32, u64)>;

/// Measures batches of these sizes, in rows.
pub(super) fn measure(
    server: &TunedServer,
    interface: &ServedModelInterface,
    shapes: &InputShapes,
    resources: Resources,
    sizes: &[u32],
) -> Result<MeasuredResources, String> {
    let largest = sizes.last().copied().unwrap_or(1);
    server.load(&with_resources(&server.config, resources, largest))?;
    let recorder = server.record()?;
    let run = |rows: u32, warmup: Duration, duration: Duration| -> Result<(), String> {
        let sample = SampleRequest::new(interface, u64::from(rows), shapes)?;
        // One request per instance, each a batch by itself.
        let level = LoadLevel {
            target: &server.target,
            sample: &sample,
            connections: u64::from(resources.instances),
            warmup,
            duration,
        };
        let found = run_closed_loop(level, || (), |_, _| ())?;
        match found.failures.iter().next() {
            Some((reason, _)) => Err(format!("a request of {rows} rows failed: {reason}")),
            None => Ok(()),
        }
    };
    let record = |sizes: &[u32]| -> Result<Vec<RecordedExecution>, String> {
        sizes.iter().try_for_each(|rows| run(*rows, WARMUP, DURATION))?;
        Ok(recorder.take())
    };
    // The first execution of a model takes longer than those after it.
    let begun = sizes.first().map_or(Ok(()), |rows| run(*rows, Duration::ZERO, WARMUP));
    recorder.take();
    let measured = begun.and_then(|()| settle(resources, sizes, record));
    let finished = recorder.finish();
    let measured = measured?;
    finished.map(|()| measured)
}

/// Records the measurement of each size, and repeats measurements with implausible costs.
fn settle(
    resources: Resources,
    sizes: &[u32],
    record: impl Fn(&[u32]) -> Result<Vec<RecordedExecution>, String>,
) -> Result<MeasuredResources, String> {
    let mut executions = record(sizes)?;
    let mut remarks = Vec::new();
    for attempt in 1.. {
        let costs = ExecutionTimeSampler::new(&executions)?;
        let busy = resources.instances;
        let typical = |rows| costs.typical(galatea_simulate::Execution { rows, length: 0, busy });
        let curve: Curve = sizes.iter().map(|rows| (*rows, typical(*rows))).collect();
        // The sampler joins a size with larger ones that took less time, which hides a wrong cost.
        let doubtful = doubtful(&medians(&executions, &curve));
        if doubtful.is_empty() || attempt == ATTEMPTS {
            let unsettled = doubtful.iter().map(|(rows, why)| {
                format!(
                    "{rows} rows still {why} when measured {ATTEMPTS} times: is the machine quiet?"
                )
            });
            remarks.extend(unsettled);
            return Ok(MeasuredResources { resources, costs, curve, remarks });
        }
        remarks.extend(doubtful.iter().map(|(rows, why)| format!("{rows} rows again: {why}")));
        let again: Vec<u32> = doubtful.into_iter().map(|(rows, _)| rows).collect();
        executions.retain(|one| !again.contains(&one.rows));
        executions.extend(record(&again)?);
    }
    unreachable!("the last attempt returns")
}

/// The median duration for each size, or else the size's time on the curve.
fn medians(executions: &[RecordedExecution], curve: &[(u32, u64)]) -> Curve {
    let median = |rows: u32| {
        let of_size = executions.iter().filter(|one| one.rows == rows);
        let mut durations: Vec<u64> = of_size.map(|one| one.duration_ns).collect();
        durations.sort_unstable();
        durations.get(durations.len() / 2).copied()
    };
    curve.iter().map(|(rows, ns)| (*rows, median(*rows).unwrap_or(*ns))).collect()
}

/// The sizes with implausible costs, and the reasons.
fn doubtful(curve: &[(u32, u64)]) -> Vec<(u32, String)> {
    let exceeds = |one: f64, limit: f64, other: f64| one > limit && one > other + DOUBTFUL_NS;
    let of = |(rows, ns): &(u32, u64)| -> Option<(u32, String)> {
        let cost = float(*ns);
        let other = curve.iter().find(|(size, ns)| {
            let other = float(*ns);
            let share = f64::from(*rows) / f64::from(*size);
            if size > rows {
                exceeds(cost, DOUBTFUL_FACTOR * other, other)
            } else {
                size < rows && exceeds(cost, DOUBTFUL_ROW_FACTOR * share * other, share * other)
            }
        })?;
        let (size, ns) = other;
        Some((*rows, format!("took {:.1} times as long as {size}", cost / float((*ns).max(1)))))
    };
    curve.iter().filter_map(of).collect()
}

#[expect(clippy::cast_precision_loss, reason = "durations are compared roughly")]
const fn float(ns: u64) -> f64 {
    ns as f64
}

/// The sizes 1, 2, 4 and so on, the untuned configuration's size, and the largest size.
pub(super) fn sizes(largest: u32, own: u32) -> Vec<u32> {
    let mut sizes: Vec<u32> = std::iter::successors(Some(1_u32), |size| size.checked_mul(2))
        .take_while(|size| *size < largest)
        .collect();
    sizes.extend([largest.max(1), own.clamp(1, largest.max(1))]);
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn what_can_hardly_be_true_is_measured_again() {
        let resources = Resources { instances: 1, threads: None };
        let attempts = std::cell::Cell::new(0);
        let measured = |is_quiet: bool| {
            attempts.set(0);
            let record = |sizes: &[u32]| {
                attempts.set(attempts.get() + 1);
                let is_slow = |rows| rows == 1 && (attempts.get() == 1 || !is_quiet);
                let ns = |rows| if is_slow(rows) { 600 * MS } else { MS };
                let one = |rows: &u32| RecordedExecution {
                    rows: *rows,
                    busy: 1,
                    duration_ns: ns(*rows),
                    ..RecordedExecution::default()
                };
                Ok(sizes.iter().map(one).collect())
            };
            settle(resources, &[1, 2, 4], record).unwrap()
        };
        let settled = measured(true);
        assert_eq!(settled.curve, [(1, MS), (2, MS), (4, MS)]);
        assert_eq!(settled.remarks, ["1 rows again: took 600.0 times as long as 2"]);
        let unsettled = measured(false);
        assert_eq!((unsettled.curve[0], attempts.get()), ((1, 600 * MS), ATTEMPTS));
        let last = unsettled.remarks.last().unwrap();
        assert!(last.starts_with("1 rows still took 600.0 times as long as 2"), "{last}");
    }

    #[test]
    fn a_size_is_compared_with_others_by_its_own_executions() {
        let one = |rows, ms| RecordedExecution {
            rows,
            busy: 1,
            duration_ns: ms * MS,
            ..RecordedExecution::default()
        };
        let executions = [one(1, 1105), one(2, 201), one(2, 198), one(2, 205)];
        let curve = [(1, 201 * MS), (2, 201 * MS), (4, 400 * MS)];
        let medians = medians(&executions, &curve);
        assert_eq!(medians, [(1, 1105 * MS), (2, 201 * MS), (4, 400 * MS)]);
        let found: Vec<u32> = doubtful(&medians).into_iter().map(|(rows, _)| rows).collect();
        assert_eq!(found, [1]);
    }

    #[test]
    fn costs_are_doubtful_if_larger_batches_are_cheaper_or_rows_much_dearer() {
        let rows = |curve: &[(u32, u64)]| {
            doubtful(curve).into_iter().map(|(rows, _)| rows).collect::<Vec<_>>()
        };
        assert!(rows(&[(1, MS), (2, 2 * MS), (4, 4 * MS), (8, 3 * MS)]).is_empty());
        assert_eq!(rows(&[(1, MS), (2, 20 * MS), (4, 2 * MS)]), [2]);
        assert_eq!(rows(&[(1, MS), (2, 2 * MS), (4, 40 * MS)]), [4]);
        // A twentieth of a millisecond is not enough to measure again.
        assert!(rows(&[(1, MS / 20), (2, MS / 100)]).is_empty());
    }

    #[test]
    fn sizes_double_up_to_the_largest() {
        assert_eq!(sizes(1, 1), [1]);
        assert_eq!(sizes(8, 2), [1, 2, 4, 8]);
        assert_eq!(sizes(12, 3), [1, 2, 3, 4, 8, 12]);
    }
}
