//! Compares padded batches with executions one by one, for various loads and various shares of an
//! execution that are fixed and can be saved.
//!
//! `cargo run --release -p galatea-sim --bin padding_gain`
#![allow(clippy::print_stdout, reason = "a command-line tool prints its result")]

use galatea_sim::{ArrivalPattern, PaddingExperiment};

const FIXED: [f64; 7] = [0.0, 0.02, 0.05, 0.1, 0.2, 0.33, 0.5];

fn main() {
    println!("fixed | load | rate | p50 | p99 | mean batch");
    println!("---|---|---|---|---|---");
    for fixed in FIXED {
        for load in ArrivalPattern::ALL {
            let cell = PaddingExperiment { load, fixed, noise: 0.05, requests: 20_000, seed: 7 };
            let result = cell.run();
            println!(
                "{fixed} | {load:?} | {:.3} | {:.3} | {:.3} | {:.2}",
                result.throughput_ratio(),
                result.latency_ratio(0.5),
                result.latency_ratio(0.99),
                result.padded.mean_batch()
            );
        }
    }
}
