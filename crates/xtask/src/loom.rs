//! Loom models of threads: runs each `models` module under loom, which tries all interleavings.
//!
//! Everything is compiled for loom with `--cfg loom_models`, so the build has its own folder.

use std::process::Command;

use crate::process::{cargo, run as run_command};

/// The crates that have models.
const CRATES: [&str; 4] = ["galatea-stdx", "galatea-infer", "galatea-door", "galatea-dispatch"];

/// The task: runs all models.
pub(crate) fn run() -> Result<(), String> {
    run_command(&mut tests())
}

/// The command that runs the models.
pub(crate) fn tests() -> Command {
    let mut tests = cargo();
    tests.env("RUSTFLAGS", "--cfg loom_models").args(["test", "--locked", "--lib"]);
    tests.args(["--target-dir", "target/loom", "--no-fail-fast"]);
    tests.args(CRATES.iter().flat_map(|name| ["--package", name]));
    tests.arg("models::");
    tests
}
