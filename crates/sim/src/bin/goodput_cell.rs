//! One cell of the table that `goodput` prints: writes its arrival times to a file and prints the
//! simulation results as JSON. `bench/goodput.py` sends the same load to a server.
//!
//! `goodput_cell CURVE LAW LOAD OBJECTIVE REQUESTS OVERHEAD ARRIVALS`, for example `goodput_cell
//! Mixed Bursts 1.5 2.5 20000 400 arrivals.txt`. The overhead is the number of microseconds by
//! which each execution exceeds the curve. The cell is simulated with and without it.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool prints")]

use std::fmt::{Debug, Write as _};
use std::process::ExitCode;

use galatea_sim::{ArrivalLaw, CostCurve, GoodputComparison, GoodputExperiment};
use galatea_simulate::Report;

/// The variation of durations, as in the table.
const NOISE: f64 = 0.05;

const NS_PER_MS: f64 = 1e6;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match words.as_slice() {
        [cell @ .., arrivals] => parse(cell).and_then(|cell| show(&cell, arrivals)),
        [] => Err(String::from("a curve is missing")),
    };
    match outcome {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("error: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn parse(words: &[String]) -> Result<GoodputExperiment, String> {
    let [curve, law, load, objective, requests, overhead] = words else {
        return Err(String::from("takes CURVE LAW LOAD OBJECTIVE REQUESTS OVERHEAD ARRIVALS"));
    };
    let number = |text: &str| {
        let number = text.parse().ok().filter(|number: &f64| *number > 0.0);
        number.ok_or_else(|| format!("'{text}' is no positive number"))
    };
    Ok(GoodputExperiment {
        curve: by_name(&CostCurve::ALL, curve)?,
        law: by_name(&ArrivalLaw::ALL, law)?,
        load: number(load)?,
        objective: number(objective)?,
        instances: 1,
        requests: number(requests)? as usize,
        noise: NOISE,
        overhead_us: overhead.parse().map_err(|_| format!("'{overhead}' are no microseconds"))?,
        seed: 7,
    })
}

fn by_name<T: Copy + Debug>(all: &[T], name: &str) -> Result<T, String> {
    let found = all.iter().find(|one| format!("{one:?}") == name);
    found.copied().ok_or_else(|| format!("'{name}' is none of {all:?}"))
}

fn show(cell: &GoodputExperiment, arrivals: &str) -> Result<String, String> {
    let mut times = String::new();
    for arrival in cell.arrivals() {
        let _ = writeln!(times, "{}", arrival.at_ns);
    }
    std::fs::write(arrivals, times).map_err(|error| format!("can't write {arrivals}: {error}"))?;
    let bare = GoodputExperiment { overhead_us: 0, ..*cell };
    let result = bare.run();
    let longer = cell.run_against(|setting| Some(setting) == result.best_setting.as_ref());
    Ok(to_json(&bare, &result, &longer))
}

fn to_json(
    cell: &GoodputExperiment,
    result: &GoodputComparison,
    longer: &GoodputComparison,
) -> String {
    let (fixed_us, row_us) = cell.curve.fixed_and_per_row_us();
    let (delay_us, preferred, timeout_us) =
        result.best_setting.as_ref().map_or((0, Vec::new(), 0), |best| {
            let timeout_us = best.default_queue_policy.default_timeout_ns / 1000;
            (best.max_queue_delay_ns / 1000, best.preferred_batch_sizes.clone(), timeout_us)
        });
    format!(
        "{{\"fixed_us\":{fixed_us},\"row_us\":{row_us},\"noise_percent\":{:.0},\
         \"capacity\":{:.3},\"objective_us\":{},\
         \"best\":{{\"delay_us\":{delay_us},\"preferred\":{preferred:?},\
         \"timeout_us\":{timeout_us}}},\
         \"simulated\":{},\"with_overhead\":{}}}",
        cell.noise * 100.0,
        result.capacity,
        cell.deadline_ns() / 1000,
        reports(result),
        reports(longer),
    )
}

fn reports(result: &GoodputComparison) -> String {
    format!(
        "{{\"deadlines\":{},\"best\":{},\"plain\":{}}}",
        report(&result.deadlines),
        report(&result.best),
        report(&result.first_come),
    )
}

fn report(report: &Report) -> String {
    format!(
        "{{\"in_time\":{},\"late\":{},\"refused\":{},\"goodput\":{:.3},\"p50_ms\":{:.3},\
         \"p99_ms\":{:.3},\"mean_batch\":{:.3}}}",
        report.in_time,
        report.late,
        report.refused,
        report.goodput(),
        report.quantile_ns(0.5) as f64 / NS_PER_MS,
        report.quantile_ns(0.99) as f64 / NS_PER_MS,
        report.mean_batch(),
    )
}
