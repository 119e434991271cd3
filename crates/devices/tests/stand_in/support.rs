//! Runs tests in processes that find the stand-in driver.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use galatea_devices::{DeviceSearchResult, Devices, PoolSizes};

/// The environment variable that contains the test's directory, in the test's process.
const DIRECTORY: &str = "STAND_IN_DIRECTORY";

/// The errors that the stand-in is expected to report in a test.
pub(crate) enum Violations {
    None,
    /// A single line, which contains this string.
    One(&'static str),
}

/// Runs `body` in a process with the stand-in and these environment variables.
pub(crate) fn with_stand_in(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    let _ = expecting(&Violations::None, test, variables, body);
}

/// Like [`with_stand_in`], but for a test in which the stand-in reports errors. In the process that
/// doesn't run the test, returns how often the test called each function.
pub(crate) fn expecting(
    violations: &Violations,
    test: &str,
    variables: &[(&str, &str)],
    body: impl FnOnce(),
) -> Option<String> {
    if std::env::var_os(DIRECTORY).is_some() {
        body();
        return None;
    }
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test.replace("::", "-"));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    build(&directory, "libcuda.so.1");
    fs::copy(directory.join("libcuda.so.1"), directory.join("libnvidia-ml.so.1")).unwrap();
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["--exact", "--nocapture", test]);
    process.env(DIRECTORY, &directory).env("LD_LIBRARY_PATH", &directory);
    let status = process.envs(variables.iter().copied()).status().unwrap();
    assert!(status.success(), "{status}");
    let said = fs::read_to_string(directory.join("violations")).unwrap_or_default();
    match violations {
        Violations::None => assert_eq!(said, ""),
        Violations::One(part) => {
            assert!(said.contains(part) && said.lines().count() == 1, "{said}");
        }
    }
    let calls = fs::read_to_string(directory.join("calls")).expect("the stand-in was not used");
    fs::remove_dir_all(&directory).unwrap();
    Some(calls)
}

fn build(directory: &Path, name: &str) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/devices");
    let files = ["environment.c", "memory.c", "monitor.c", "streams.c"];
    let files: Vec<PathBuf> = files.iter().map(|file| sources.join(file)).collect();
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-shared", "-fPIC", "-fvisibility=hidden", "-O1", "-g"]);
    compiler.args(["-Wall", "-Wextra", "-Werror"]).args(files);
    compiler.arg("-o").arg(directory.join(name)).arg("-lpthread");
    let done = compiler.output().expect("the tests need a C compiler, cc");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// The stand-in's devices with pools of the usual size.
pub(crate) fn devices() -> Devices {
    let DeviceSearchResult { devices, notes } = Devices::discover(0.0);
    assert_eq!(notes, []);
    devices.allocate_pools(&PoolSizes::default());
    devices
}

/// Makes a device count as lost from now on.
pub(crate) fn lose(number: u32) {
    let directory = std::env::var_os(DIRECTORY).unwrap();
    fs::write(Path::new(&directory).join(format!("lost-{number}")), "").unwrap();
}
