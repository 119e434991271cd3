//! Planted bugs that the simulator must find.

use std::process::Command;

use crate::process::{cargo, record, run as run_command};
use crate::workspace;

/// The number of bugs that `cargo xtask test` plants.
const SAMPLE: &str = "3";

/// The task: plants all bugs, or those selected by the options of the `mutants` program.
pub(crate) fn run(options: &[&str]) -> Result<(), String> {
    run_command(program().args(options))
}

/// Plants a sample of bugs selected by a seed. Returns true if all of them were found.
pub(crate) fn run_sample(seed: u64) -> Result<bool, String> {
    println!("to repeat this sample: cargo xtask mutants --seed {seed} --sample {SAMPLE}");
    let mut mutants = program();
    mutants.args(["--sample", SAMPLE, "--seed", &seed.to_string()]);
    Ok(record(&mut mutants)?.success)
}

/// The program keeps the copy in which it plants bugs, so that each run rebuilds little.
fn program() -> Command {
    let mut mutants = cargo();
    mutants.args(["run", "--locked", "--package", "galatea-sim", "--bin", "mutants", "--"]);
    mutants.arg("--folder").arg(workspace::cache().join("mutants"));
    mutants
}
