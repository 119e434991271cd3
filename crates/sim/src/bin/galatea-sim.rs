//! Runs seeds until time is up, or replays a trace.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool prints its result"
)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use galatea_sim::{CoverageCounts, OracleMode, SchedulerTrace, SimulationConfig, run};

const USAGE: &str = "\
galatea-sim [--seed S | --seconds N] [--seeds N] [--first S] [--requests N] [--mode M]
            [--without-oracle | --with-permits]
galatea-sim --replay FILE [--without-oracle | --with-permits]

  --seed S          live through one seed; where it fails, print the shortest trace found
  --seconds N       live through seeds for so many seconds
  --seeds N         live through so many seeds (1000)
  --first S         begin with this seed (0)
  --requests N      requests per seed (100)
  --mode M          only this kind of scheduler: default, dynamic, direct, oldest or iterative
  --without-oracle  rely on the checks alone
  --with-permits    with a rate limiter that grants every permit at once
  --replay FILE     repeat a trace";

struct Arguments {
    seed: Option<u64>,
    first: u64,
    seeds: u64,
    time: Option<Duration>,
    replay: Option<String>,
    config: SimulationConfig,
}

fn main() -> ExitCode {
    let result = parse(std::env::args().skip(1)).and_then(|arguments| {
        match (&arguments.replay, arguments.seed) {
            (Some(path), _) => replay(path, arguments.config.reference),
            (None, Some(seed)) => run_one(seed, &arguments.config),
            (None, None) => run_many(&arguments),
        }
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let config = SimulationConfig::default();
    let mut arguments =
        Arguments { seed: None, first: 0, seeds: 1000, time: None, replay: None, config };
    while let Some(word) = words.next() {
        if word == "--without-oracle" {
            arguments.config.reference = OracleMode::ChecksOnly;
            continue;
        }
        if word == "--with-permits" {
            arguments.config.reference = OracleMode::OracleWithPermits;
            continue;
        }
        let value = words.next().ok_or(USAGE)?;
        let number = || value.parse::<u64>().map_err(|_| format!("{word} wants a number\n{USAGE}"));
        match word.as_str() {
            "--seed" => arguments.seed = Some(number()?),
            "--first" => arguments.first = number()?,
            "--seeds" => arguments.seeds = number()?,
            "--seconds" => arguments.time = Some(Duration::from_secs(number()?)),
            "--mode" => arguments.config.mode = Some(value.parse()?),
            "--requests" => arguments.config.requests = number()?,
            "--replay" => arguments.replay = Some(value),
            _ => return Err(USAGE.to_owned()),
        }
    }
    Ok(arguments)
}

fn replay(path: &str, reference: OracleMode) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let trace: SchedulerTrace = text.parse()?;
    let hash = trace
        .replay(reference)
        .map_err(|(step, message)| format!("after {step} steps: {message}"))?;
    println!("holds, trace hash {hash:016x}");
    Ok(())
}

fn run_one(seed: u64, config: &SimulationConfig) -> Result<(), String> {
    let outcome = run(seed, config).map_err(|violation| {
        // Shorter traces may panic like the full one, but one message is enough.
        std::panic::set_hook(Box::new(|_| {}));
        format!("{violation}\n\n{}", violation.trace.shrink(config.reference))
    })?;
    println!("seed {seed} holds: {} events, {}", outcome.events, outcome.occurrences);
    Ok(())
}

fn run_many(arguments: &Arguments) -> Result<(), String> {
    let start = Instant::now();
    let (mut seed, mut events, mut hash) = (arguments.first, 0_u64, 0_u64);
    let mut counts = CoverageCounts::default();
    let is_done = |seed: u64| match arguments.time {
        Some(time) => start.elapsed() >= time,
        None => seed - arguments.first >= arguments.seeds,
    };
    while !is_done(seed) {
        let outcome = run(seed, &arguments.config).map_err(|violation| violation.to_string())?;
        events += outcome.events;
        counts.add(&outcome.occurrences);
        hash = hash.rotate_left(1) ^ outcome.trace_hash;
        seed += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    let count = seed - arguments.first;
    println!("{count} seeds, {events} events, {seconds:.1} s, hash {hash:016x}");
    #[expect(clippy::cast_precision_loss, reason = "the rate is printed for people")]
    let rate = events as f64 / seconds;
    println!("{rate:.0} events per second: {counts}");
    Ok(())
}
