//! The tests in Python.
//!
//! They wait for servers most of the time, so those of a folder run side by side, a file in
//! one process. None may rely on a quiet machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use crate::changed::Plan;
use crate::left_out::SkippedTests;
use crate::process::{CommandOutput, command};
use crate::result::StepResult;
use crate::{builds, onnxruntime, programs, python, repeated, workspace};

/// The tests of the dashboard in a browser, which are a step of their own.
const BROWSER: &str = "tests/clients/test_dashboard_page.py";

/// Most tests.
const CLIENTS: &str = "tests/clients";

/// Programs that the tests with clients call if they are there.
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

/// The programs that show a page.
const BROWSER_PROGRAMS: [&str; 3] = ["chromedriver", "chromium", "curl"];

/// The folders of the step `python`.
const FOLDERS: [&str; 5] =
    ["tests/python_worker", CLIENTS, "tests/differential", "tests/c_api", "tests/python_api"];

/// Processes of pytest for each processor.
const PROCESSES_PER_PROCESSOR: usize = 3;

/// The number of processes in which tests have ports of their own: `free_ports` in tests/clients/server.py.
const PROCESSES_MAX: usize = 16;

/// Real clients against the real program, and recorded responses
/// of Triton against ours.
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
            // They are few.
            add(repeated::record(tests.of(folder).args(targets), &[])?);
            continue;
        }
        add(tests.side_by_side(folder)?);
    }
    Ok(StepResult::Tests(all))
}

/// Fetches what the tests need from PyPI, while cargo compiles. A step that misses something says
/// why.
pub(crate) fn prepare() {
    let python = python_for_tests().map(|_| ());
    for missing in [python, onnxruntime::fetch().map(|_| ())].into_iter().filter_map(Result::err) {
        println!("{missing}");
    }
    perf_analyzer();
    moto_server();
}

/// The dashboard in a browser.
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

    /// pytest with the options that a folder's tests know.
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

    /// The tests of a folder that may share the machine. Those that fail are repeated one by one.
    fn side_by_side(&self, folder: &str) -> Result<CommandOutput, String> {
        let mut tests = self.of(folder);
        // tests/clients/conftest.py says which files come first.
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

/// The files in `deploy`, with the programs that read them: Helm, proxies, Prometheus. Some of
/// these have no package for some machines.
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

/// The number of test functions in the Python files of a folder.
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
