//! The checks that need no client: sources, Rust tests, simulation and fuzzing.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, ScopedJoinHandle};

use serde_json::Value;

use crate::changed::Plan;
use crate::left_out::SkippedTests;
use crate::process::{CommandOutput, cargo, command, output, record, run as run_command};
use crate::result::StepResult;
use crate::{
    arrows, builds, fuzz, headers, loom, mutants as planted, onnxruntime, programs, pytest,
    readme as document, seeds, tidy, workspace,
};

/// Compiles everything that later steps run, so that they don't wait for a compiler, and fetches
/// their dependencies at the same time.
pub(crate) fn build() -> Result<StepResult, String> {
    thread::scope(|scope| {
        scope.spawn(pytest::prepare);
        builds::everything()
    })?;
    Ok(StepResult::Check(true))
}

fn check(command: &mut Command) -> Result<StepResult, String> {
    Ok(StepResult::Check(record(command)?.success))
}

pub(crate) fn format() -> Result<StepResult, String> {
    check(cargo().args(["fmt", "--all", "--check"]))
}

pub(crate) fn lints() -> Result<StepResult, String> {
    let options = ["--workspace", "--all-targets", "--locked", "--", "--deny", "warnings"];
    check(cargo().arg("clippy").args(options))
}

pub(crate) fn check_arrows() -> Result<StepResult, String> {
    arrows::run()?;
    Ok(StepResult::Check(true))
}

/// Checks that the C headers match the declarations.
pub(crate) fn check_headers() -> Result<StepResult, String> {
    headers::check()?;
    Ok(StepResult::Check(true))
}

/// Checks words, names, links and modules.
pub(crate) fn check_tidiness() -> Result<StepResult, String> {
    tidy::run(&[])?;
    Ok(StepResult::Check(true))
}

/// Sets the variables through which tests find ONNX Runtime, as the server does, and OpenVINO.
fn with_runtimes(command: &mut Command) -> Result<&mut Command, String> {
    command.envs(pytest::openvino_library().map(|path| ("GALATEA_TEST_OPENVINO", path)));
    Ok(command.env("GALATEA_ONNXRUNTIME_LIBRARY", onnxruntime::fetch()?))
}

pub(crate) fn rust_tests(plan: Option<&Plan>) -> Result<StepResult, String> {
    if let Some(plan) = plan {
        return tests_of(plan).map(StepResult::Tests);
    }
    let mut tests = cargo();
    if has_nextest() {
        tests.args(["nextest", "run", "--workspace", "--locked", "--no-fail-fast"]);
    } else {
        tests.args(["test", "--workspace", "--locked", "--no-fail-fast"]);
        tests.args(["--lib", "--bins", "--tests"]);
    }
    Ok(StepResult::Tests(record(with_runtimes(&mut tests)?)?))
}

/// Runs the tests of some crates, built as part of the whole workspace: a crate built on its own
/// would enable different features of its libraries.
fn tests_of(plan: &Plan) -> Result<CommandOutput, String> {
    let options = ["test", "--workspace", "--locked", "--no-run", "--message-format=json"];
    let messages = output(cargo().args(options).args(["--lib", "--bins", "--tests"]))?;
    let mut all = CommandOutput { success: true, text: String::new() };
    for (folder, program) in messages.lines().filter_map(test_program) {
        if folder.file_name().is_some_and(|name| plan.crates.contains(&*name.to_string_lossy())) {
            let mut tests = command(program);
            let one = record(with_runtimes(tests.current_dir(folder))?)?;
            all.success &= one.success;
            all.text.push_str(&one.text);
        }
    }
    Ok(all)
}

/// A package's folder and one of its test programs, from a cargo message.
fn test_program(message: &str) -> Option<(PathBuf, PathBuf)> {
    let message: Value = serde_json::from_str(message).ok()?;
    let is_test = message.get("profile")?.get("test")?.as_bool()?;
    let program = message.get("executable")?.as_str()?;
    let manifest = Path::new(message.get("manifest_path")?.as_str()?);
    is_test.then_some((manifest.parent()?.to_path_buf(), PathBuf::from(program)))
}

fn has_nextest() -> bool {
    let version = cargo().args(["nextest", "--version"]).output();
    version.is_ok_and(|output| output.status.success())
}

pub(crate) fn doc_tests() -> Result<StepResult, String> {
    let options = ["test", "--workspace", "--locked", "--no-fail-fast", "--doc"];
    Ok(StepResult::Tests(record(with_runtimes(cargo().args(options))?)?))
}

/// Runs the commands in README.md.
pub(crate) fn readme() -> Result<StepResult, String> {
    let path = workspace::root().join("README.md");
    let document = std::fs::read_to_string(&path)
        .map_err(|error| format!("can't read '{}': {error}", path.display()))?;
    if !programs::has("curl") {
        let tests = document::tests(&document);
        return Ok(StepResult::LeftOut(SkippedTests::because("there is no curl", tests)));
    }
    let program = builds::programs()?.server();
    let library = onnxruntime::fetch()?;
    let models = workspace::cache().join("models-readme");
    run_command(
        command(pytest::python_for_tests()?)
            .arg("examples/make_models.py")
            .arg("--output")
            .arg(&models),
    )?;
    document::run(&document, &program, &library, &models).map(StepResult::Counted)
}

/// Compares our .proto files with those that public clients contain.
pub(crate) fn descriptors() -> Result<StepResult, String> {
    check(command(pytest::python_for_tests()?).arg("tests/protocol/compare_descriptors.py"))
}

/// Runs the simulator for half a minute. The scheduler sources select the seeds: a run with the
/// same sources repeats the seeds, and many changes together cover many seeds.
pub(crate) fn simulation() -> Result<StepResult, String> {
    simulate(seeds::of_schedulers()?, SEEDS)
}

/// Runs the seeds after those of [`simulation`]. This takes a minute and a half.
pub(crate) fn more_seeds() -> Result<StepResult, String> {
    simulate(seeds::of_schedulers()?.saturating_add(SEEDS), MORE_SEEDS)
}

/// The number of seeds in each sample. [`seeds::of_schedulers`] leaves room for more.
const SEEDS: u64 = 8_000;
const MORE_SEEDS: u64 = 22_000;

/// Simulates some seeds. The number of parallel simulators is the same on every machine.
fn simulate(first: u64, seeds: u64) -> Result<StepResult, String> {
    const PARTS: u64 = 2;
    let program = builds::programs()?.simulator();
    let of_each = seeds.div_ceil(PARTS);
    let part = |first: u64| {
        let mut simulator = command(&program);
        simulator.arg("--seeds").arg(of_each.to_string()).arg("--first").arg(first.to_string());
        record(&mut simulator)
    };
    let firsts = (0..PARTS).map(|part| first.saturating_add(part.saturating_mul(of_each)));
    let part = &part;
    let all: Vec<_> = thread::scope(|scope| {
        let running: Vec<_> = firsts.map(|first| scope.spawn(move || part(first))).collect();
        running.into_iter().map(ScopedJoinHandle::join).collect()
    });
    let lost = |_| String::from("the thread of a simulator panicked");
    let all: Vec<CommandOutput> =
        all.into_iter().map(|one| one.map_err(lost)?).collect::<Result<_, _>>()?;
    Ok(StepResult::Check(all.iter().all(|one| one.success)))
}

/// Runs the simulator on a few planted bugs, which it must find.
pub(crate) fn mutants() -> Result<StepResult, String> {
    planted::run_sample(seeds::of_schedulers()?).map(StepResult::Check)
}

/// The programs that count a request's instructions.
const COUNTING: [&str; 3] = ["h2load", "taskset", "valgrind"];
/// The number of plain-request kinds with counts in `bench/instructions.toml`.
const COUNTED_WAYS: u64 = 8;

/// Counts the instructions of plain requests, which may not grow unnoticed.
pub(crate) fn instructions() -> Result<StepResult, String> {
    if !COUNTING.iter().all(|program| programs::has(program)) {
        let reason = "needs Debian's packages nghttp2-client and valgrind";
        return Ok(StepResult::LeftOut(SkippedTests::because(reason, COUNTED_WAYS)));
    }
    run_command(cargo().args(["build", "--release", "--locked", "-p", "galatea"]))?;
    let mut count = command(pytest::python_for_tests()?);
    count.args(["bench/instructions.py", "--plain", "--galatea", "target/release/galatea"]);
    check(count.env("PATH", programs::path_with(&COUNTING)))
}

/// Runs the models of threads, over all interleavings.
pub(crate) fn models() -> Result<StepResult, String> {
    Ok(StepResult::Tests(record(&mut loom::tests())?))
}

/// Runs every fuzz target for some seconds. The targets' runtime is written in C++.
pub(crate) fn fuzz_targets() -> Result<StepResult, String> {
    const SECONDS: &str = "10";
    if !programs::has("c++") {
        let reason = "there is no C++ compiler for the runtime of the fuzz targets";
        return Ok(StepResult::LeftOut(SkippedTests::because(reason, fuzz::count()?)));
    }
    fuzz::run_all(SECONDS, programs::path_with(&["c++"])).map(StepResult::Counted)
}
