//! Checks that the deadline batcher serves as many requests in time as the dynamic batcher with the
//! best setting for the load.

use galatea_policy::{DeadlineBatcherSpec, DynamicBatcherSpec, SchedulingMode, SchedulingSpec};
use galatea_sim::{ArrivalLaw, CostCurve, GoodputExperiment};
use galatea_simulate::{Report, simulate_open_loop};

const CELL: GoodputExperiment = GoodputExperiment {
    curve: CostCurve::Mixed,
    law: ArrivalLaw::Poisson,
    load: 0.5,
    objective: 2.5,
    instances: 1,
    requests: 4_000,
    noise: 0.05,
    overhead_us: 0,
    seed: 1,
};

/// Each curve and law is tested at half the load, near capacity and above it. The scheduler starts
/// without knowing any cost, which is noticeable in such a short load.
#[test]
fn no_setting_is_much_better_at_any_load() {
    for curve in CostCurve::ALL {
        for law in ArrivalLaw::ALL {
            for load in [0.5, 0.9, 1.5] {
                let cell = GoodputExperiment { curve, law, load, ..CELL };
                let result = cell.run();
                let (ratio, late) = (result.ratio(), result.deadlines.late);
                assert!(ratio > 0.96, "{ratio:.3} of {} at {cell:?}", result.best_setting_text());
                assert!(late <= 20, "{late} late at {cell:?}");
            }
        }
    }
}

/// Under overload, first come, first served makes every response late.
#[test]
fn under_overload_nine_tenths_of_the_capacity_are_answered_in_time() {
    let result = GoodputExperiment { load: 1.5, requests: 10_000, ..CELL }.run();
    let of_capacity = |goodput: f64| goodput / result.capacity;
    assert!(of_capacity(result.deadlines.goodput()) > 0.9, "{:?}", result.deadlines);
    assert!(of_capacity(result.first_come.goodput()) < 0.1, "{:?}", result.first_come);
}

/// Deadlines are tight: a full batch leaves no time for another one.
#[test]
fn tight_deadlines_make_batches_smaller_where_that_helps() {
    for instances in [1, 2] {
        for curve in CostCurve::ALL {
            let cell = GoodputExperiment { curve, objective: 1.5, load: 1.0, instances, ..CELL };
            let result = cell.run();
            assert!(result.ratio() > 0.97, "{:.3} at {cell:?}", result.ratio());
        }
    }
}

/// An overload of requests with deadlines, in which one of every `one_in` has none.
fn with_patient_ones(one_in: usize) -> Report {
    let cell = GoodputExperiment { load: 1.5, requests: 10_000, ..CELL };
    let mut arrivals = cell.arrivals();
    arrivals.iter_mut().step_by(one_in).for_each(|one| one.deadline_ns = u64::MAX);
    let queue = DynamicBatcherSpec::default();
    let spec = SchedulingSpec {
        max_batch_size: 16,
        mode: SchedulingMode::Deadline(DeadlineBatcherSpec { objective_ns: u64::MAX, queue }),
        hold_until_queued: 0,
        hold_until_backlogged: 0,
    };
    simulate_open_loop(&spec, 1, &arrivals, |execution| {
        2_000_000 + 500_000 * u64::from(execution.rows)
    })
}

/// Requests without a deadline would wait until the overload ends, 4 s after the first one arrived.
/// Instead they wait for 17 batches of 10 ms, and a little for each other.
#[test]
fn requests_without_a_deadline_do_not_starve() {
    let report = with_patient_ones(50);
    let longest_ms = report.quantile_ns(1.0) / 1_000_000;
    assert!(longest_ms < 400, "{longest_ms} ms");
    assert!(report.late == 0 && report.refused > 3_000, "{report:?}");
}

/// Most requests have no deadline, and there are more than can be answered. They get some of the
/// batches, while those with deadlines get most.
#[test]
fn requests_without_a_deadline_do_not_take_all() {
    let report = with_patient_ones(2);
    let shares = report.refused as f64 / 5_000.0;
    assert!(shares < 0.2, "{shares} of those with a deadline are refused");
}
