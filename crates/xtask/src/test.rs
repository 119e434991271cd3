//! Everything that must pass, the cheapest steps first.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::count::Count;
use crate::left_out::LeftOut;
use crate::process::{Recorded, cargo, command, record, run as run_command};
use crate::repeated::Repeated;
use crate::{
    arrows, fuzz, headers, mutants as planted, onnxruntime, programs, python, readme, repeated,
    seeds, tidy, workspace,
};

/// One step with its name for `--only`.
struct Step {
    name: &'static str,
    run: fn() -> Result<StepResult, String>,
}

/// The result of a step.
enum StepResult {
    /// A single check, and whether it passed.
    Check(bool),
    /// What test runners printed.
    Tests(Recorded),
    /// The number of tests that passed and failed.
    Counted(Count),
    /// All tests were left out.
    LeftOut(LeftOut),
}

const STEPS: [Step; 14] = [
    Step { name: "fmt", run: format },
    Step { name: "clippy", run: lints },
    Step { name: "arrows", run: check_arrows },
    Step { name: "headers", run: check_headers },
    Step { name: "tidy", run: check_tidiness },
    Step { name: "rust", run: rust_tests },
    Step { name: "doc", run: doc_tests },
    Step { name: "python", run: python_tests },
    Step { name: "deploy", run: deploy_tests },
    Step { name: "readme", run: readme },
    Step { name: "descriptors", run: descriptors },
    Step { name: "simulation", run: simulation },
    Step { name: "mutants", run: mutants },
    Step { name: "fuzz", run: fuzz_targets },
];

/// The task: runs all steps, even if one fails, and adds up their tests.
pub(crate) fn run(options: &[&str]) -> Result<(), String> {
    let only = match options {
        [] => None,
        ["--only", name] => Some(*name),
        _ => return Err(String::from("usage: cargo xtask test [--only STEP]")),
    };
    let chosen: Vec<&Step> =
        STEPS.iter().filter(|step| only.is_none_or(|only| only == step.name)).collect();
    if chosen.is_empty() {
        return Err(format!("there is no step '{}'", only.unwrap_or_default()));
    }
    programs::restrict()?;
    let mut total = Count::default();
    let mut left_out = LeftOut::default();
    let mut repeated = Repeated::default();
    let mut summary = Vec::new();
    for step in chosen {
        let (count, line) = run_step(step, &mut left_out, &mut repeated);
        total = total.plus(count);
        summary.push(line);
    }
    println!("\n{}\n\n{}{}", summary.join("\n"), left_out.report(), repeated.report());
    println!("{} passed, {} failed", total.passed, total.failed);
    if total.failed == 0 { Ok(()) } else { Err(String::from("something failed")) }
}

fn run_step(step: &Step, left_out: &mut LeftOut, repeated: &mut Repeated) -> (Count, String) {
    println!("\n== {} ==", step.name);
    let check = |passed: bool| Count { passed: passed.into(), failed: (!passed).into() };
    let mut remark = String::new();
    let count = match (step.run)() {
        Ok(StepResult::Check(passed)) => check(passed),
        Ok(StepResult::Counted(count)) => count,
        Ok(StepResult::Tests(recorded)) => {
            left_out.extend(LeftOut::in_text(&recorded.text));
            repeated.extend(&recorded.text);
            counted(&recorded)
        }
        Ok(StepResult::LeftOut(all)) => {
            left_out.extend(all);
            Count::default()
        }
        Err(reason) => {
            println!("error: {reason}");
            remark = format!(" ({})", reason.lines().next().unwrap_or_default());
            check(false)
        }
    };
    let Count { passed, failed } = count;
    (count, format!("{:12} {passed} passed, {failed} failed{remark}", step.name))
}

/// The tests that a runner printed. A runner that failed without a failed test, because of
/// code that doesn't compile, counts as one failure. So does one that ran no test.
pub(crate) fn counted(recorded: &Recorded) -> Count {
    let count = Count::in_text(&recorded.text);
    let silent_failure = !recorded.success && count.failed == 0;
    let nothing_ran = recorded.success && count == Count::default();
    count.plus(Count { passed: 0, failed: u64::from(silent_failure || nothing_ran) })
}

fn check(command: &mut Command) -> Result<StepResult, String> {
    Ok(StepResult::Check(record(command)?.success))
}

fn format() -> Result<StepResult, String> {
    check(cargo().args(["fmt", "--all", "--check"]))
}

fn lints() -> Result<StepResult, String> {
    let options = ["--workspace", "--all-targets", "--locked", "--", "--deny", "warnings"];
    check(cargo().arg("clippy").args(options))
}

fn check_arrows() -> Result<StepResult, String> {
    arrows::run()?;
    Ok(StepResult::Check(true))
}

/// Whether the C headers follow from the declarations.
fn check_headers() -> Result<StepResult, String> {
    headers::check()?;
    Ok(StepResult::Check(true))
}

/// Words, names, links and modules are in order.
fn check_tidiness() -> Result<StepResult, String> {
    tidy::run(&[])?;
    Ok(StepResult::Check(true))
}

/// Tests find ONNX Runtime through the same variable as the server.
fn with_onnxruntime(command: &mut Command) -> Result<&mut Command, String> {
    Ok(command.env("GALATEA_ONNXRUNTIME_LIBRARY", onnxruntime::fetch()?))
}

fn rust_tests() -> Result<StepResult, String> {
    let mut tests = cargo();
    if has_nextest() {
        tests.args(["nextest", "run", "--workspace", "--locked", "--no-fail-fast"]);
    } else {
        tests.args(["test", "--workspace", "--locked", "--no-fail-fast"]);
        tests.args(["--lib", "--bins", "--tests", "--examples"]);
    }
    Ok(StepResult::Tests(record(with_onnxruntime(&mut tests)?)?))
}

fn has_nextest() -> bool {
    let version = cargo().args(["nextest", "--version"]).output();
    version.is_ok_and(|output| output.status.success())
}

fn doc_tests() -> Result<StepResult, String> {
    let options = ["test", "--workspace", "--locked", "--no-fail-fast", "--doc"];
    Ok(StepResult::Tests(record(with_onnxruntime(cargo().args(options))?)?))
}

/// What the tests with clients call if it is there.
const CLIENT_PROGRAMS: [&str; 12] = [
    "bash",
    "c++",
    "chromedriver",
    "chromium",
    "curl",
    "fish",
    "mdbook",
    "prometheus",
    "promtool",
    "redis-server",
    "setpriv",
    "zsh",
];

/// Real clients against the real program, and recorded responses
/// of Triton against ours.
fn python_tests() -> Result<StepResult, String> {
    let program = build_program()?;
    let c_library = build_c_library()?;
    let load_generator = build_load_generator()?;
    let python = python_for_tests()?;
    let library = onnxruntime::fetch()?;
    let load_program = perf_analyzer();
    let bucket_server = moto_server();
    let mut all = Recorded { success: true, text: String::new() };
    let extension = build_extension()?;
    for folder in [
        "tests/python_worker",
        "tests/clients",
        "tests/differential",
        "tests/c_api",
        "tests/python_api",
    ] {
        let mut tests = command(&python);
        tests.args(["-m", "pytest", "--quiet", "-rsfE", folder]);
        tests.env("PATH", programs::path_with(&CLIENT_PROGRAMS));
        if folder != "tests/python_worker" {
            tests.arg("--galatea").arg(&program);
            tests.arg("--onnxruntime-library").arg(&library);
        }
        if folder == "tests/clients" {
            tests.arg("--load-generator").arg(&load_generator);
            tests.envs(load_program.iter().map(|program| ("GALATEA_PERF_ANALYZER", program)));
            tests.envs(bucket_server.iter().map(|program| ("GALATEA_MOTO_SERVER", program)));
        }
        if folder == "tests/c_api" {
            tests.arg("--libtritonserver").arg(&c_library);
        }
        if folder == "tests/python_api" {
            tests.arg("--extension").arg(&extension);
        }
        let one = repeated::record(&mut tests)?;
        all.success &= one.success;
        all.text.push_str(&one.text);
    }
    Ok(StepResult::Tests(all))
}

/// The files in `deploy`, with the programs that read them: Helm, proxies, Prometheus. Some of
/// these have no package for some machines.
fn deploy_tests() -> Result<StepResult, String> {
    let folder = workspace::root().join("tests/deploy");
    let python = match python::environment("venv-deploy", &folder.join("requirements.txt"), &[]) {
        Ok(python) => python,
        Err(reason) => {
            println!("{reason}");
            let because = "the packages of tests/deploy can't be installed";
            return Ok(StepResult::LeftOut(LeftOut::because(because, python_tests_in(&folder)?)));
        }
    };
    let program = build_program()?;
    let mut tests = command(&python);
    tests.args(["-m", "pytest", "--quiet", "-rsfE"]).arg(&folder).arg("--galatea").arg(&program);
    let optional = ["haproxy", "prometheus", "promtool", "systemd-analyze"];
    tests.env("PATH", programs::path_with(&optional));
    Ok(StepResult::Tests(repeated::record(&mut tests)?))
}

/// The number of test functions in the Python files of a folder.
fn python_tests_in(folder: &Path) -> Result<u64, String> {
    let broken = |error: std::io::Error| format!("can't read '{}': {error}", folder.display());
    let mut count = 0_u64;
    for entry in std::fs::read_dir(folder).map_err(broken)? {
        let path = entry.map_err(broken)?.path();
        if path.extension().is_some_and(|extension| extension == "py") {
            let text = std::fs::read_to_string(&path).map_err(broken)?;
            let tests = text.lines().filter(|line| line.starts_with("def test_")).count();
            count = count.saturating_add(tests.try_into().unwrap_or(u64::MAX));
        }
    }
    Ok(count)
}

pub(crate) fn build_program() -> Result<PathBuf, String> {
    run_command(cargo().args(["build", "--locked", "--package", "galatea"]))?;
    Ok(workspace::program("debug", "galatea"))
}

fn build_c_library() -> Result<PathBuf, String> {
    run_command(cargo().args(["build", "--locked", "--package", "galatea-libtritonserver"]))?;
    Ok(workspace::program("debug", "libtritonserver.so"))
}

pub(crate) fn build_extension() -> Result<PathBuf, String> {
    run_command(cargo().args(["build", "--locked", "--package", "galatea-python"]))?;
    Ok(workspace::program("debug", "lib_galatea.so"))
}

pub(crate) fn build_load_generator() -> Result<PathBuf, String> {
    run_command(cargo().args(["build", "--locked", "--package", "galatea-load"]))?;
    Ok(workspace::program("debug", "galatea-load"))
}

pub(crate) fn python_for_tests() -> Result<PathBuf, String> {
    let requirements = workspace::root().join("tests/requirements.txt");
    python::environment("venv-tests", &requirements, &[])
}

/// Triton's load generator, which has no package for some machines: their tests are left out.
fn perf_analyzer() -> Option<PathBuf> {
    let requirements = workspace::root().join("tests/perf_analyzer.txt");
    match python::environment("venv-perf-analyzer", &requirements, &[]) {
        Ok(python) => Some(python.with_file_name("perf_analyzer")),
        Err(reason) => {
            println!("perf_analyzer can't be installed: {reason}");
            None
        }
    }
}

/// A server of the protocol of S3: without it the tests of buckets are left out.
fn moto_server() -> Option<PathBuf> {
    let requirements = workspace::root().join("tests/buckets.txt");
    match python::environment("venv-buckets", &requirements, &[]) {
        Ok(python) => Some(python.with_file_name("moto_server")),
        Err(reason) => {
            println!("moto can't be installed: {reason}");
            None
        }
    }
}

/// The commands that README.md shows.
fn readme() -> Result<StepResult, String> {
    let path = workspace::root().join("README.md");
    let document = std::fs::read_to_string(&path)
        .map_err(|error| format!("can't read '{}': {error}", path.display()))?;
    if !programs::has("curl") {
        let tests = readme::tests(&document);
        return Ok(StepResult::LeftOut(LeftOut::because("there is no curl", tests)));
    }
    let program = build_program()?;
    let library = onnxruntime::fetch()?;
    let models = workspace::cache().join("models-readme");
    run_command(
        command(python_for_tests()?).arg("examples/make_models.py").arg("--output").arg(&models),
    )?;
    readme::run(&document, &program, &library, &models).map(StepResult::Counted)
}

/// Our .proto files against those that public clients carry.
fn descriptors() -> Result<StepResult, String> {
    check(command(python_for_tests()?).arg("tests/protocol/compare_descriptors.py"))
}

/// About a minute of the simulator. The sources of the scheduler choose the seeds: a run of the
/// same sources repeats, and many changes together cover many seeds.
fn simulation() -> Result<StepResult, String> {
    const SEEDS: &str = "30000";
    let mut simulator = cargo();
    simulator.args(["run", "--locked", "--package", "galatea-sim", "--bin", "galatea-sim", "--"]);
    check(simulator.args(["--seeds", SEEDS, "--first"]).arg(seeds::of_schedulers()?.to_string()))
}

/// Whether the simulator finds a few planted bugs.
fn mutants() -> Result<StepResult, String> {
    planted::run_sample(seeds::of_schedulers()?).map(StepResult::Check)
}

/// Some seconds of every fuzz target. Their runtime is written in C++.
fn fuzz_targets() -> Result<StepResult, String> {
    const SECONDS: &str = "10";
    if !programs::has("c++") {
        let reason = "there is no C++ compiler for the runtime of the fuzz targets";
        return Ok(StepResult::LeftOut(LeftOut::because(reason, fuzz::count()?)));
    }
    fuzz::run_all(SECONDS, programs::path_with(&["c++"])).map(StepResult::Counted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(success: bool, text: &str) -> Count {
        counted(&Recorded { success, text: text.to_owned() })
    }

    #[test]
    fn a_failure_counts_even_where_no_test_failed() {
        let count = |passed, failed| Count { passed, failed };
        assert_eq!(recorded(true, "test result: ok. 3 passed; 0 failed"), count(3, 0));
        assert_eq!(recorded(false, "test result: FAILED. 3 passed; 1 failed"), count(3, 1));
        assert_eq!(recorded(false, "error: could not compile"), count(0, 1));
        assert_eq!(recorded(true, "nothing"), count(0, 1));
    }
}
