//! Prints the table of docs/deadlines.md: the goodput of the deadline batcher beside the
//! best setting of the dynamic batcher, for each curve of costs, law of arrivals and load.
//!
//! `cargo run --release -p galatea-sim --bin goodput`
#![allow(clippy::print_stdout, reason = "a command-line tool prints its result")]

use galatea_sim::{ArrivalLaw, Cell, CostCurve};

const LOADS: [f64; 10] = [0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5];

fn main() {
    let number = |name: &str, default: f64| {
        let mut words = std::env::args().skip_while(|word| word != name).skip(1);
        words.next().and_then(|word| word.parse().ok()).unwrap_or(default)
    };
    let requests = number("--requests", 20_000.0) as usize;
    let instances = number("--instances", 1.0) as u32;
    println!(
        "curve | arrivals | deadline | load | of the best | of capacity | late | the best setting"
    );
    println!("---|---|---|---|---|---|---|---");
    let (mut cells, mut at_least, mut worst, mut late) = (0, 0, f64::MAX, 0.0_f64);
    for curve in CostCurve::ALL {
        for objective in [1.5, 2.5, 5.0] {
            for law in ArrivalLaw::ALL {
                for load in LOADS {
                    let seed = 7;
                    let cell = Cell {
                        curve,
                        law,
                        load,
                        objective,
                        instances,
                        requests,
                        noise: 0.05,
                        seed,
                    };
                    let result = cell.run();
                    let late_share =
                        result.deadlines.late as f64 / result.deadlines.answered() as f64;
                    println!(
                        "{curve:?} | {law:?} | {objective} × | {load} | {:.3} | {:.2} | {:.2} % | {}",
                        result.ratio(),
                        result.deadlines.goodput() / result.capacity,
                        late_share * 100.0,
                        result.best_setting
                    );
                    cells += 1;
                    at_least += usize::from(result.ratio() >= 0.9995);
                    worst = worst.min(result.ratio());
                    late = late.max(late_share);
                }
            }
        }
    }
    println!(
        "\n{at_least} of {cells} cells at least as good; the worst {worst:.3}; late at most {:.2} %",
        late * 100.0
    );
}
