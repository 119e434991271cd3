//! Runs the coverage-guided fuzz targets in the `fuzz` folder with `cargo fuzz`.
//!
//! The toolchain is the stable one: `RUSTC_BOOTSTRAP` unlocks the instrumentation. AddressSanitizer
//! is off, because the fuzzed crates forbid `unsafe`, and without it a target runs twice as many
//! inputs. A target's seeds are in `fuzz/corpus/TARGET`. New inputs that a run finds are kept in
//! `.cache/fuzz`, where the next run continues.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::count::Count;
use crate::process::{cargo, command, run as run_command};
use crate::workspace;

/// The version to install if `cargo fuzz` is missing.
const CARGO_FUZZ: &str = "0.13.2";

/// The time that a target runs unless `--seconds` is specified.
const SECONDS: &str = "1800";

/// The seed of the short runs. A regression test repeats its mutations; the long runs explore.
const SEED: &str = "1";

/// The maximum number of seconds for an input; a slower input is a finding.
const INPUT_SECONDS_MAX: &str = "10";

/// The maximum process size in MiB; a larger process is a finding.
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
    let Count { passed, failed } = Fuzzer::new(None, None)?.run(&chosen, seconds)?;
    println!("\n{passed} passed, {failed} failed");
    if failed == 0 { Ok(()) } else { Err(String::from("a target failed: see fuzz/artifacts")) }
}

/// Runs every target for some seconds with [`SEED`]. Compilers are searched for in `path`.
pub(crate) fn run_all(seconds: &str, path: OsString) -> Result<Count, String> {
    Fuzzer::new(Some(path), Some(SEED))?.run(&targets()?, seconds)
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
    /// The replacement for `PATH`.
    path: Option<OsString>,
    /// The seed of the mutations; random if it is `None`.
    seed: Option<&'static str>,
}

impl Fuzzer {
    /// Installs `cargo fuzz` into the cache if it is missing.
    fn new(path: Option<OsString>, seed: Option<&'static str>) -> Result<Self, String> {
        let root = workspace::cache().join(format!("cargo-fuzz-{CARGO_FUZZ}"));
        let program = root.join("bin/cargo-fuzz");
        if !program.exists() {
            let mut install = cargo();
            install.args(["install", "cargo-fuzz", "--locked", "--version", CARGO_FUZZ]);
            run_command(install.arg("--root").arg(&root))?;
        }
        Ok(Self { program, path, seed })
    }

    /// Runs the targets one after the other, even if one fails.
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
        if let Some(seed) = self.seed {
            target.arg(format!("-seed={seed}"));
        }
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
