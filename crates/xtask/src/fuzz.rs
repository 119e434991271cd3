//! Runs the coverage-guided fuzz targets of the folder `fuzz`, by `cargo fuzz`.
//!
//! The toolchain is the stable one: `RUSTC_BOOTSTRAP` unlocks the instrumentation.
//! AddressSanitizer is off, because the fuzzed crates forbid `unsafe`, and without it a
//! target runs twice as many inputs. The seeds of a target are in `fuzz/corpus/TARGET`.
//! Inputs that a run finds beside them are kept in `.cache/fuzz`, for the next run to go on there.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::count::Count;
use crate::process::{cargo, command, run as run_command};
use crate::workspace;

/// The version that is installed where `cargo fuzz` is missing.
const CARGO_FUZZ: &str = "0.13.2";

/// The time that a target runs unless `--seconds` says it.
const SECONDS: &str = "1800";

/// An input that takes longer than this many seconds is a finding.
const INPUT_SECONDS_MAX: &str = "10";

/// A process larger than this many MiB is a finding.
const MEMORY_MIB_MAX: &str = "1024";

/// The task.
pub(crate) fn run(options: &[&str]) -> Result<(), String> {
    let (seconds, names) = match options {
        ["--seconds", seconds, names @ ..] => (*seconds, names),
        names => (SECONDS, names),
    };
    let known = targets()?;
    let chosen: Vec<String> = if names.is_empty() {
        known
    } else {
        names.iter().map(|name| (*name).to_owned()).collect()
    };
    let Count { passed, failed } = Fuzzer::new(None)?.run(&chosen, seconds)?;
    println!("\n{passed} passed, {failed} failed");
    if failed == 0 { Ok(()) } else { Err(String::from("a target failed: see fuzz/artifacts")) }
}

/// Runs every target for some seconds. Compilers are looked for in `path`.
pub(crate) fn run_all(seconds: &str, path: OsString) -> Result<Count, String> {
    Fuzzer::new(Some(path))?.run(&targets()?, seconds)
}

/// The number of targets.
pub(crate) fn count() -> Result<u64, String> {
    Ok(targets()?.len() as u64)
}

/// The names of the targets.
fn targets() -> Result<Vec<String>, String> {
    let folder = folder().join("fuzz_targets");
    let error = |error| format!("can't list '{}': {error}", folder.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).map_err(error)? {
        let path = entry.map_err(error)?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

/// `cargo fuzz`.
struct Fuzzer {
    program: PathBuf,
    /// Replaces `PATH`.
    path: Option<OsString>,
}

impl Fuzzer {
    /// Installs `cargo fuzz` into the cache unless it is there.
    fn new(path: Option<OsString>) -> Result<Self, String> {
        let root = workspace::cache().join(format!("cargo-fuzz-{CARGO_FUZZ}"));
        let program = root.join("bin/cargo-fuzz");
        if !program.exists() {
            let mut install = cargo();
            install.args(["install", "cargo-fuzz", "--locked", "--version", CARGO_FUZZ]);
            run_command(install.arg("--root").arg(&root))?;
        }
        Ok(Self { program, path })
    }

    /// Runs the targets one after the other, also if one fails.
    fn run(&self, names: &[String], seconds: &str) -> Result<Count, String> {
        run_command(self.command().args(["build", "--sanitizer", "none"]))?;
        let mut count = Count::default();
        for name in names {
            match self.run_target(name, seconds) {
                Ok(()) => count.passed = count.passed.saturating_add(1),
                Err(reason) => {
                    println!("error: {reason}");
                    count.failed = count.failed.saturating_add(1);
                }
            }
        }
        Ok(count)
    }

    fn run_target(&self, name: &str, seconds: &str) -> Result<(), String> {
        let found = workspace::cache().join("fuzz").join(name);
        fs::create_dir_all(&found)
            .map_err(|error| format!("can't create '{}': {error}", found.display()))?;
        println!("\n== {name} for {seconds} s ==");
        let mut target = self.command();
        target.args(["run", "--sanitizer", "none", name]).arg(&found);
        target.arg(folder().join("corpus").join(name)).arg("--");
        target.arg(format!("-max_total_time={seconds}"));
        target.arg(format!("-timeout={INPUT_SECONDS_MAX}"));
        target.arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"));
        target.args(["-verbosity=0", "-print_final_stats=1"]);
        run_command(&mut target)
    }

    fn command(&self) -> Command {
        let mut command = command(&self.program);
        command.current_dir(folder()).env("RUSTC_BOOTSTRAP", "1").arg("fuzz");
        if let Some(path) = &self.path {
            command.env("PATH", path);
        }
        command
    }
}

fn folder() -> PathBuf {
    workspace::root().join("fuzz")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{folder, targets};

    #[test]
    fn every_target_is_built_and_has_seeds() {
        let manifest = fs::read_to_string(folder().join("Cargo.toml")).unwrap();
        for name in targets().unwrap() {
            assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
            let seeds = fs::read_dir(folder().join("corpus").join(&name));
            assert!(seeds.is_ok_and(|mut seeds| seeds.next().is_some()), "{name}");
        }
    }
}
