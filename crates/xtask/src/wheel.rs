//! Builds the Python packages as wheels.

use std::fs;
use std::path::{Path, PathBuf};

use crate::process::{command, run as run_command};
use crate::target::{Target, tools};
use crate::workspace;

/// The task: builds the wheels into `python/dist`, and shows which systems the server supports.
pub(crate) fn run(mut options: &[&str]) -> Result<(), String> {
    let mut target = Target::host();
    let mut profile = Profile::Optimized;
    while !options.is_empty() {
        if let Some(rest) = target.option(options)? {
            options = rest;
        } else if let ["--debug", rest @ ..] = options {
            profile = Profile::Debug;
            options = rest;
        } else {
            let usage = "usage: cargo xtask wheel [--debug] [--native] [--target TRIPLE]";
            return Err(String::from(usage));
        }
    }
    let dist = workspace::root().join("python/dist");
    // Only the new wheel is left.
    let _ = fs::remove_dir_all(&dist);
    let wheel = build(&target, profile, &dist)?;
    build_aliases(&dist)?;
    let bytes = fs::metadata(&wheel).map_err(|error| error.to_string())?.len();
    run_command(command(tools()?.with_file_name("auditwheel")).arg("show").arg(&wheel))?;
    println!("{} ({}.{} MB)", wheel.display(), bytes / 1_000_000, bytes / 100_000 % 10);
    Ok(())
}

/// The optimization level.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    Optimized,
    Debug,
}

/// Builds the wheel with the server into a folder, and checks that it works on its target systems.
pub(crate) fn build(target: &Target, profile: Profile, dist: &Path) -> Result<PathBuf, String> {
    let mut maturin = command(tools()?.with_file_name("maturin"));
    maturin.current_dir(workspace::root().join("python")).arg("build");
    if profile == Profile::Optimized {
        maturin.arg("--release");
    }
    target.for_maturin(maturin.args(["--locked", "--out"]).arg(dist))?;
    run_command(&mut maturin)?;
    let wheel = built(dist, target.machine())?;
    target.verify(&[module(&wheel)?])?;
    Ok(wheel)
}

/// Builds the pure-Python wheel with the names `tritonserver` and `tritonfrontend`.
pub(crate) fn build_aliases(dist: &Path) -> Result<(), String> {
    let mut aliases = command(tools()?);
    aliases.args(["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]);
    aliases.arg("--wheel-dir").arg(dist).arg(workspace::root().join("python/aliases"));
    run_command(&mut aliases)
}

/// A wheel's compiled module, unpacked.
fn module(wheel: &Path) -> Result<PathBuf, String> {
    let folder = workspace::target().join("wheel");
    let _ = fs::remove_dir_all(&folder);
    let mut unpack = command("python3");
    unpack.args(["-m", "zipfile", "--extract"]).arg(wheel).arg(&folder);
    run_command(&mut unpack)?;
    Ok(folder.join("galatea/_galatea.abi3.so"))
}

fn built(dist: &Path, machine: &str) -> Result<PathBuf, String> {
    let broken = |error: std::io::Error| format!("can't read '{}': {error}", dist.display());
    let mut files = fs::read_dir(dist).map_err(broken)?.filter_map(Result::ok);
    let is_wheel = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("galatea-") && name.ends_with(&format!("_{machine}.whl"))
    };
    let found = files.find_map(|entry| Some(entry.path()).filter(is_wheel));
    found.ok_or_else(|| format!("maturin left no wheel for {machine} in '{}'", dist.display()))
}
