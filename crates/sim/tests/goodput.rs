//! The deadline batcher answers as many requests in time as the dynamic batcher with the
//! setting that turns out best for the load.

use galatea_sim::{ArrivalLaw, Cell, CostCurve};

const CELL: Cell = Cell {
    curve: CostCurve::Mixed,
    law: ArrivalLaw::Poisson,
    load: 0.5,
    objective: 2.5,
    instances: 1,
    requests: 4_000,
    noise: 0.05,
    seed: 1,
};

/// Each curve and law under half of the load, near capacity and beyond it. The scheduler
/// begins without knowing any cost, which tells in so short a load.
#[test]
fn no_setting_is_much_better_at_any_load() {
    for curve in CostCurve::ALL {
        for law in ArrivalLaw::ALL {
            for load in [0.5, 0.9, 1.5] {
                let cell = Cell { curve, law, load, ..CELL };
                let result = cell.run();
                let (ratio, late) = (result.ratio(), result.deadlines.late);
                assert!(ratio > 0.96, "{ratio:.3} of {} at {cell:?}", result.best_setting);
                assert!(late <= 20, "{late} late at {cell:?}");
            }
        }
    }
}

/// Under overload first come, first served answers everything too late.
#[test]
fn under_overload_nine_tenths_of_the_capacity_are_answered_in_time() {
    let result = Cell { load: 1.5, requests: 10_000, ..CELL }.run();
    let of_capacity = |goodput: f64| goodput / result.capacity;
    assert!(of_capacity(result.deadlines.goodput()) > 0.9, "{:?}", result.deadlines);
    assert!(of_capacity(result.first_come.goodput()) < 0.1, "{:?}", result.first_come);
}

/// Tight deadlines: a full batch leaves no time for another one.
#[test]
fn tight_deadlines_make_batches_smaller_where_that_helps() {
    for instances in [1, 2] {
        for curve in CostCurve::ALL {
            let cell = Cell { curve, objective: 1.5, load: 1.0, instances, ..CELL };
            let result = cell.run();
            assert!(result.ratio() > 0.97, "{:.3} at {cell:?}", result.ratio());
        }
    }
}
