//! Hours of mixed traffic, during which memory, descriptors and latencies must stay stable.

use crate::process::{cargo, command, run as run_command};
use crate::{onnxruntime, pytest, workspace};

/// The task: builds the measured programs and runs `bench/steady.py` with these options.
pub(crate) fn run(options: &[&str]) -> Result<(), String> {
    let packages = ["--package", "galatea", "--package", "galatea-load"];
    run_command(cargo().args(["build", "--locked", "--release"]).args(packages))?;
    let mut steady = command(pytest::python_for_tests()?);
    steady.arg(workspace::root().join("bench/steady.py"));
    steady.arg("--galatea").arg(workspace::program("release", "galatea"));
    steady.arg("--load-generator").arg(workspace::program("release", "galatea-load"));
    steady.arg("--onnxruntime-library").arg(onnxruntime::fetch()?);
    run_command(steady.args(options))
}
