//! Prints the table in docs/deadlines.md: the goodput of the deadline batcher compared with the
//! best setting of the dynamic batcher, for each cost curve, arrival law and load.
//!
//! `cargo run --release -p galatea-sim --bin goodput`
#![allow(clippy::print_stdout, reason = "a command-line tool prints its result")]

use galatea_sim::{ArrivalLaw, CostCurve, GoodputComparison, GoodputExperiment};

const LOADS: [f64; 10] = [0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5];

/// The objectives, as multiples of the duration of a full batch.
const OBJECTIVES: [f64; 3] = [1.5, 2.5, 5.0];

/// The smallest ratio that prints as 1 with three digits.
const AS_GOOD: f64 = 0.9995;

fn main() {
    let number = |name: &str, default: f64| {
        let mut words = std::env::args().skip_while(|word| word != name).skip(1);
        words.next().and_then(|word| word.parse().ok()).unwrap_or(default)
    };
    let requests = number("--requests", 20_000.0) as usize;
    let instances = number("--instances", 1.0) as u32;
    println!(
        "costs | arrivals | deadline | load | beside the best | of capacity | late | without settings, of capacity | the best setting"
    );
    println!("---|---|---|---|---|---|---|---|---");
    let mut total = Total::default();
    for (curve, objective, law, load) in cells() {
        let cell = GoodputExperiment {
            curve,
            law,
            load,
            objective,
            instances,
            requests,
            noise: 0.05,
            overhead_us: 0,
            seed: 7,
        };
        let result = cell.run();
        print_row(&cell, &result);
        total.add(&result);
    }
    total.print();
}

fn cells() -> impl Iterator<Item = (CostCurve, f64, ArrivalLaw, f64)> {
    CostCurve::ALL.into_iter().flat_map(|curve| {
        OBJECTIVES.into_iter().flat_map(move |objective| {
            ArrivalLaw::ALL
                .into_iter()
                .flat_map(move |law| LOADS.map(move |load| (curve, objective, law, load)))
        })
    })
}

fn print_row(cell: &GoodputExperiment, result: &GoodputComparison) {
    println!(
        "{:?} | {:?} | {} × | {} | {:.3} | {:.2} | {:.2} % | {:.2} | {}",
        cell.curve,
        cell.law,
        cell.objective,
        cell.load,
        result.ratio(),
        result.deadlines.goodput() / result.capacity,
        late_share(result) * 100.0,
        result.first_come.goodput() / result.capacity,
        result.best_setting_text()
    );
}

/// Returns the share of responses that came after their deadlines.
fn late_share(result: &GoodputComparison) -> f64 {
    result.deadlines.late as f64 / result.deadlines.answered() as f64
}

/// The combined results of all cells.
#[derive(Default)]
struct Total {
    to_best: Vec<f64>,
    late: Vec<f64>,
}

impl Total {
    fn add(&mut self, result: &GoodputComparison) {
        self.to_best.push(result.ratio());
        self.late.push(late_share(result));
    }

    fn print(&self) {
        println!("\n{} cells", self.late.len());
        let least = |bound| self.to_best.iter().filter(|ratio| **ratio >= bound).count();
        println!(
            "at least as good as the best setting in {}, at least 0.995 in {}, the worst {:.3}",
            least(AS_GOOD),
            least(0.995),
            self.to_best.iter().copied().fold(f64::MAX, f64::min)
        );
        println!(
            "late: more than 0.1 % in {}, at most {:.2} %",
            self.late.iter().filter(|share| **share > 0.001).count(),
            self.late.iter().copied().fold(0.0, f64::max) * 100.0
        );
    }
}
