//! Plants the listed bugs in a copy of the scheduler, one at a time, and requires the simulator to
//! find each one.
//!
//! `mutants [--quick] [--sample N [--seed N]] [--folder PATH] [WORDS]`
//!
//! - `WORDS` selects the bugs whose names contain it.
//! - `--sample` draws that many bugs by the seed and only checks whether the simulator finds them.
//!   This takes a minute or two instead of more than an hour.
//! - Without a sample, the output also shows whether the checks find a bug without the naive
//!   scheduler, and whether the scheduler's own tests do; `--quick` skips the tests.
//! - `--folder` keeps the copy and its build artifacts, so that the next run has less to build.
//!
//! Read `list` first: it parses `crates/sim/mutants`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool speaks to its terminal")]

mod copy;
mod list;
mod options;
mod verdict;

use std::process::ExitCode;
use std::time::Duration;

use copy::WorkspaceCopy;
use list::Mutant;
use options::Options;

/// The effort that the simulator spends on finding a bug.
struct SearchEffort {
    /// The simulator's arguments.
    arguments: [&'static str; 2],
    /// The time limit. A bug may also make the simulator run forever; without a bug, the simulator
    /// ends within the limit.
    time_max: Duration,
}

const WHOLE: SearchEffort =
    SearchEffort { arguments: ["--seeds", "3000"], time_max: Duration::from_secs(240) };

const SAMPLE: SearchEffort =
    SearchEffort { arguments: ["--seconds", "20"], time_max: Duration::from_secs(40) };

fn main() -> ExitCode {
    match Options::read(std::env::args().skip(1)).and_then(|options| examine(&options)) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(missed) => {
            eprintln!("{missed} not found by the simulator");
            ExitCode::FAILURE
        }
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// Examines the mutants selected by the options. Returns the number that the simulator misses.
fn examine(options: &Options) -> Result<usize, String> {
    let mut mutants = list::parse_all()?;
    mutants.retain(|mutant| mutant.name.contains(&options.words));
    if mutants.is_empty() {
        return Err(format!("no planted bug has a name with '{}'", options.words));
    }
    let copy = WorkspaceCopy::new(options.folder.as_deref())?;
    println!("{:<58} {:<8} {:<8} {:<8}", "planted bug", "oracle", "checks", "tests");
    if let Some(size) = options.sample {
        mutants = list::sample(mutants, size, options.seed);
    } else {
        copy.build()?;
        if copy.verdict(&WHOLE.arguments, WHOLE.time_max)?.is_found() {
            return Err("the scheduler fails without any planted bug".to_owned());
        }
    }
    let mut missed = 0;
    for mutant in &mutants {
        let intact = copy.plant(mutant)?;
        let found = match copy.build() {
            Ok(()) => is_found(&copy, mutant, options),
            Err(message) => {
                println!("{:<58} does not compile\n{message}", mutant.name);
                Ok(false)
            }
        };
        copy.write(mutant.file, &intact)?;
        missed += usize::from(!found?);
    }
    Ok(missed)
}

/// Returns true if the simulator finds a planted bug. Prints the program that finds it.
fn is_found(copy: &WorkspaceCopy, mutant: &Mutant<'_>, options: &Options) -> Result<bool, String> {
    let effort = if options.sample.is_some() { SAMPLE } else { WHOLE };
    let [option, value] = effort.arguments;
    let oracle = copy.verdict(&effort.arguments, effort.time_max)?;
    let (mut found, mut checks, mut tests) = (oracle.is_found(), "-", "-");
    if options.sample.is_none() {
        let verdict = copy.verdict(&[option, value, "--without-oracle"], effort.time_max)?;
        found |= verdict.is_found();
        checks = verdict.word();
        if !options.quick {
            tests = copy.unit_tests(effort.time_max)?.word();
        }
    }
    println!("{:<58} {:<8} {:<8} {:<8}", mutant.name, oracle.word(), checks, tests);
    Ok(found)
}
