//! The Python tests.
//!
//! They spend most of their time waiting for servers, so the tests in a folder run in parallel, one
//! process per file. No test may rely on an idle machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use crate::changed::Plan;
use crate::left_out::SkippedTests;
use crate::process::{CommandOutput, command};
use crate::result::StepResult;
use crate::{builds, onnxruntime, programs, python, repeated, workspace};

/// The dashboard tests in a browser, which form a separate step.
const BROWSER: &str = "tests/clients/test_dashboard_page.py";

/// Most tests.
const CLIENTS: &str = "tests/clients";

/// Programs that the client tests use if they are installed.
const CLIENT_PROGRAMS: [&str; 10] = [
    "bash",
    "c++",
    "curl",
    "fish",
    "mdbook",
    "prometheus",
    "promtool",
    "redis-server",
    "setpriv",
    "zsh",
];

/// The programs that display a page.
const BROWSER_PROGRAMS: [&str; 3] = ["chromedriver", "chromium", "curl"];

/// The folders of the `python` step.
const FOLDERS: [&str; 5] =
    ["tests/python_worker", CLIENTS, "tests/differential", "tests/c_api", "tests/python_api"];

/// The number of pytest processes per processor.
const PROCESSES_PER_PROCESSOR: usize = 3;

/// The maximum number of processes whose tests have separate ports: `free_ports` in
/// tests/clients/server.py.
const PROCESSES_MAX: usize = 16;

/// Runs real clients against the real program, and compares recorded Triton responses with ours.
pub(crate) fn run(plan: Option<&Plan>) -> Result<StepResult, String> {
    let tests = Tests::new()?;
    let mut all = CommandOutput { success: true, text: String::new() };
    for folder in FOLDERS {
        let targets = plan.map_or(vec![folder], |plan| plan.python_in(folder));
        if targets.is_empty() {
            continue;
        }
        let mut add = |one: CommandOutput| {
            all.success &= one.success;
            all.text.push_str(&one.text);
        };
        if targets != [folder] {
            // These tests are few.
            add(repeated::record(tests.of(folder).args(targets), &[])?);
            continue;
        }
        add(tests.side_by_side(folder)?);
    }
    Ok(StepResult::Tests(all))
}

/// Fetches the tests' dependencies from PyPI while cargo compiles. A step that lacks a dependency
/// reports the reason.
pub(crate) fn prepare() {
    let python = python_for_tests().map(|_| ());
    for missing in [python, onnxruntime::fetch().map(|_| ())].into_iter().filter_map(Result::err) {
        println!("{missing}");
    }
    perf_analyzer();
    moto_server();
}

/// Tests the dashboard in a browser.
pub(crate) fn run_browser() -> Result<StepResult, String> {
    if !BROWSER_PROGRAMS.iter().all(|program| programs::has(program)) {
        let tests = tests_in(&workspace::root().join(BROWSER))?;
        let reason = "needs Debian's packages chromium and chromium-driver";
        return Ok(StepResult::LeftOut(SkippedTests::because(reason, tests)));
    }
    let mut tests = Tests::new()?.of(CLIENTS);
    tests.arg(BROWSER).env("PATH", programs::path_with(&BROWSER_PROGRAMS));
    Ok(StepResult::Tests(repeated::record(&mut tests, &[])?))
}

/// The programs and libraries that tests need.
struct Tests {
    python: PathBuf,
    library: PathBuf,
    load_program: Option<PathBuf>,
    bucket_server: Option<PathBuf>,
    server: PathBuf,
    c_library: PathBuf,
    load_generator: PathBuf,
    extension: PathBuf,
}

impl Tests {
    fn new() -> Result<Self, String> {
        let built = builds::programs()?;
        Ok(Self {
            server: built.server(),
            c_library: built.c_library(),
            load_generator: built.load_generator(),
            extension: built.extension(),
            python: python_for_tests()?,
            library: onnxruntime::fetch()?,
            load_program: perf_analyzer(),
            bucket_server: moto_server(),
        })
    }

    /// The pytest command with the options for a folder's tests.
    fn of(&self, folder: &str) -> Command {
        let mut tests = command(&self.python);
        tests.args(["-m", "pytest", "--quiet", "-rsfE"]);
        tests.env("PATH", programs::path_with(&CLIENT_PROGRAMS));
        if folder != "tests/python_worker" {
            tests.arg("--galatea").arg(&self.server);
            tests.arg("--onnxruntime-library").arg(&self.library);
        }
        if folder == CLIENTS {
            tests.arg("--load-generator").arg(&self.load_generator);
            tests.envs(self.load_program.iter().map(|path| ("GALATEA_PERF_ANALYZER", path)));
            tests.envs(self.bucket_server.iter().map(|path| ("GALATEA_MOTO_SERVER", path)));
        }
        if folder == "tests/c_api" {
            tests.arg("--libtritonserver").arg(&self.c_library);
        }
        if folder == "tests/python_api" {
            tests.arg("--extension").arg(&self.extension);
        }
        tests
    }

    /// Runs the tests in a folder that may share the machine. Failed tests are repeated one by one.
    fn side_by_side(&self, folder: &str) -> Result<CommandOutput, String> {
        let mut tests = self.of(folder);
        // tests/clients/conftest.py specifies which files come first.
        tests.args([folder, "--dist=loadfile", "--no-loadscope-reorder"]);
        tests.arg(format!("--numprocesses={}", processes()));
        if folder == CLIENTS {
            tests.arg(format!("--ignore={BROWSER}"));
        }
        repeated::record(&mut tests, &["--numprocesses=0"])
    }
}

fn processes() -> usize {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    processors.saturating_mul(PROCESSES_PER_PROCESSOR).min(PROCESSES_MAX)
}

/// Tests the files in `deploy` with the programs that read them: Helm, proxies, Prometheus. Some of
/// these programs have no package for some machines.
pub(crate) fn run_deploy() -> Result<StepResult, String> {
    let folder = workspace::root().join("tests/deploy");
    let python = match python::environment("venv-deploy", &folder.join("requirements.txt"), &[]) {
        Ok(python) => python,
        Err(reason) => {
            println!("{reason}");
            let because = "the packages of tests/deploy can't be installed";
            return Ok(StepResult::LeftOut(SkippedTests::because(
                because,
                tests_in_folder(&folder)?,
            )));
        }
    };
    let program = builds::programs()?.server();
    let mut tests = command(&python);
    tests.args(["-m", "pytest", "--quiet", "-rsfE"]).arg(&folder).arg("--galatea").arg(&program);
    let optional = ["haproxy", "prometheus", "promtool", "systemd-analyze"];
    tests.env("PATH", programs::path_with(&optional));
    Ok(StepResult::Tests(repeated::record(&mut tests, &[])?))
}

/// The number of test functions in a folder's Python files.
fn tests_in_folder(folder: &Path) -> Result<u64, String> {
    let broken = |error: std::io::Error| format!("can't read '{}': {error}", folder.display());
    let mut count = 0_u64;
    for entry in std::fs::read_dir(folder).map_err(broken)? {
        let path = entry.map_err(broken)?.path();
        if path.extension().is_some_and(|extension| extension == "py") {
            count = count.saturating_add(tests_in(&path)?);
        }
    }
    Ok(count)
}

/// The number of test functions in a Python file.
fn tests_in(path: &Path) -> Result<u64, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("can't read '{}': {error}", path.display()))?;
    let tests = text.lines().filter(|line| line.starts_with("def test_")).count();
    Ok(tests.try_into().unwrap_or(u64::MAX))
}

pub(crate) fn python_for_tests() -> Result<PathBuf, String> {
    let requirements = workspace::root().join("tests/requirements.txt");
    python::environment("venv-tests", &requirements, &[])
}

/// OpenVINO's library in the environment for tests. It has no package for some machines; its tests
/// are skipped there.
pub(crate) fn openvino_library() -> Option<PathBuf> {
    let python = python_for_tests().ok()?;
    let entries = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let versions = entries(python.parent()?.parent()?.join("lib"));
    let libraries = versions
        .flat_map(|version| entries(version.path().join("site-packages/openvino/libs")))
        .map(|entry| entry.path());
    let name = |path: &PathBuf| path.file_name()?.to_str().map(str::to_owned);
    libraries
        .filter(|path| name(path).is_some_and(|name| name.starts_with("libopenvino_c.so")))
        .max()
}

/// Triton's load generator. It has no package for some machines; its tests are skipped there.
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

/// A server for the S3 protocol. Without it, the bucket tests are skipped.
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
