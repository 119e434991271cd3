//! Plants the listed bugs in a copy of the scheduler, one at a time, and demands that
//! the simulator finds each.
//!
//! `mutants [--quick] [--sample N [--seed N]] [--folder PATH] [WORDS]`
//!
//! - `WORDS` takes the bugs whose name contains them.
//! - `--sample` draws that many bugs by the seed, and only asks whether the simulator
//!   finds them. That takes a minute or two instead of more than an hour.
//! - Without a sample the output says also whether the checks find a bug without the
//!   naive scheduler, and whether the scheduler's own tests do; `--quick` leaves the
//!   tests out.
//! - `--folder` keeps the copy and what is built there, so that the next run builds less.
//!
//! Read `list` first: it reads `crates/sim/mutants`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool speaks to its terminal")]

mod copy;
mod list;
mod options;
mod verdict;

use std::process::ExitCode;

use copy::WorkspaceCopy;
use list::Mutant;
use options::Options;

/// How long the simulator tries for each bug: this number of worlds, or, for a sample,
/// this number of seconds.
const SEEDS: [&str; 2] = ["--seeds", "3000"];
const SECONDS: [&str; 2] = ["--seconds", "20"];

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

/// Examines the mutants that the options choose. Returns how many the simulator misses.
fn examine(options: &Options) -> Result<usize, String> {
    let mut mutants = list::parse_all()?;
    mutants.retain(|mutant| mutant.name.contains(&options.words));
    let copy = WorkspaceCopy::new(options.folder.as_deref())?;
    println!("{:<58} {:<8} {:<8} {:<8}", "planted bug", "oracle", "checks", "tests");
    if let Some(size) = options.sample {
        mutants = list::sample(mutants, size, options.seed);
    } else {
        copy.build()?;
        if copy.verdict(&SEEDS)?.is_found() {
            return Err("the scheduler fails without any planted bug".to_owned());
        }
    }
    let mut missed = 0;
    for mutant in &mutants {
        let intact = copy.plant(mutant)?;
        let found = copy.build().and_then(|()| is_found(&copy, mutant, options));
        copy.write(mutant.file, &intact)?;
        let found = found.map_err(|message| format!("{}: {message}", mutant.name))?;
        missed += usize::from(!found);
    }
    Ok(missed)
}

/// Whether the simulator finds a planted bug. Prints what finds it.
fn is_found(copy: &WorkspaceCopy, mutant: &Mutant<'_>, options: &Options) -> Result<bool, String> {
    let length = if options.sample.is_some() { SECONDS } else { SEEDS };
    let oracle = copy.verdict(&length)?;
    let (mut found, mut checks, mut tests) = (oracle.is_found(), "-", "-");
    if options.sample.is_none() {
        let verdict = copy.verdict(&[length[0], length[1], "--without-oracle"])?;
        found |= verdict.is_found();
        checks = verdict.word();
        if !options.quick {
            tests = copy.unit_tests()?.word();
        }
    }
    println!("{:<58} {:<8} {:<8} {:<8}", mutant.name, oracle.word(), checks, tests);
    Ok(found)
}
