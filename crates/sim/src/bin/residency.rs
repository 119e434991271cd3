//! Prints the table in bench/EXPERIMENTS.md: the load time that each way to choose victims saves.
//!
//! `cargo run --release -p galatea-sim --bin residency -- [--requests N]`
#![allow(clippy::print_stdout, reason = "a command-line tool prints its result")]

use galatea_sim::{ModelTrace, ResidencyComparison, compare_residency};

/// The number of requests in all traces together.
const REQUESTS: usize = 10_000_000;
/// The number of traces.
const TRACES: usize = 12;

fn main() {
    let mut words = std::env::args().skip_while(|word| word != "--requests").skip(1);
    let requests: usize = words.next().and_then(|word| word.parse().ok()).unwrap_or(REQUESTS);
    println!("| trace | Galatea | LRU | LFU | GDSF | known future | bound | hits: Galatea | LRU |");
    println!("|---|---|---|---|---|---|---|---|---|");
    for trace in ModelTrace::all(requests.div_ceil(TRACES)) {
        let ResidencyComparison {
            residency: [residency, hits],
            least_recent: [least_recent, least_recent_hits],
            least_frequent: [least_frequent, _],
            greedy_dual: [greedy_dual, _],
            known_future: [known_future, _],
            bound,
        } = compare_residency(&trace);
        println!(
            "| {} | {residency:.3} | {least_recent:.3} | {least_frequent:.3} | {greedy_dual:.3} | {known_future:.3} | {bound:.3} | {hits:.3} | {least_recent_hits:.3} |",
            trace.name
        );
    }
}
