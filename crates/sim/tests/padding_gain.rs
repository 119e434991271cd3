//! Compares padded batches with executions one by one.

use galatea_sim::{ArrivalPattern, PaddingComparison, PaddingExperiment};

const CELL: PaddingExperiment = PaddingExperiment {
    load: ArrivalPattern::InFlight(64),
    fixed: 0.0,
    noise: 0.05,
    requests: 20_000,
    seed: 7,
};

/// Executions take as long together as one by one, or only slightly less: no load is served more
/// slowly, and no slow response comes later. The scheduler starts without knowing any cost.
#[test]
fn without_a_gain_padding_loses_nothing() {
    for fixed in [0.0, 0.02] {
        for load in ArrivalPattern::ALL {
            let cell = PaddingExperiment { load, fixed, ..CELL };
            let result = cell.run();
            let (rate, p99) = (result.throughput_ratio(), result.latency_ratio(0.99));
            assert!(rate >= 0.98, "{rate:.3} of the rate at {cell:?}");
            assert!(p99 <= 1.05, "{p99:.3} of the p99 at {cell:?}");
        }
    }
}

#[track_caller]
fn gains(fixed: f64, rate: f64) -> PaddingComparison {
    let result = PaddingExperiment { fixed, ..CELL }.run();
    assert!(result.throughput_ratio() >= rate, "{:.3} of the rate", result.throughput_ratio());
    result
}

/// The larger the fixed part of an execution is, the more batches gain. Slow responses are delayed
/// by less than the gain.
#[test]
fn what_batches_gain_is_gained() {
    gains(0.1, 1.03);
    gains(0.2, 1.11);
    let result = gains(0.33, 1.25);
    assert!(result.latency_ratio(0.99) <= 1.35, "{:.3} of the p99", result.latency_ratio(0.99));
    let result = gains(0.5, 1.55);
    assert!(result.latency_ratio(0.99) <= 1.25, "{:.3} of the p99", result.latency_ratio(0.99));
}
