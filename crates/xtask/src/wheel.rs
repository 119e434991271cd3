//! Builds the packages for Python as wheels.

use std::fs;
use std::path::{Path, PathBuf};

use crate::process::{command, run as run_command};
use crate::{python, workspace};

/// The task: builds the wheels into `python/dist`, and shows which systems the server is for.
pub(crate) fn run(options: &[&str]) -> Result<(), String> {
    let profile: &[&str] = match options {
        [] => &["--release"],
        ["--debug"] => &[],
        _ => return Err(String::from("usage: cargo xtask wheel [--debug]")),
    };
    let python = tools()?;
    let folder = workspace::root().join("python");
    let dist = folder.join("dist");
    // One wheel is left, the new one.
    let _ = fs::remove_dir_all(&dist);
    let mut maturin = command(python.with_file_name("maturin"));
    maturin.current_dir(&folder).arg("build").args(profile).args(["--locked", "--out"]).arg(&dist);
    run_command(&mut maturin)?;
    let wheel = built(&dist)?;
    // Beside it the names `tritonserver` and `tritonfrontend`, which are pure Python.
    let mut aliases = command(&python);
    aliases.args(["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]);
    aliases.arg("--wheel-dir").arg(&dist).arg(folder.join("aliases"));
    run_command(&mut aliases)?;
    let bytes = fs::metadata(&wheel).map_err(|error| error.to_string())?.len();
    run_command(command(python.with_file_name("auditwheel")).arg("show").arg(&wheel))?;
    println!("{} ({}.{} MB)", wheel.display(), bytes / 1_000_000, bytes / 100_000 % 10);
    Ok(())
}

/// The interpreter of the environment with maturin, auditwheel and mypy.
fn tools() -> Result<PathBuf, String> {
    python::environment("venv-wheel", &workspace::root().join("tests/wheel.txt"), &[])
}

fn built(dist: &Path) -> Result<PathBuf, String> {
    let broken = |error: std::io::Error| format!("can't read '{}': {error}", dist.display());
    let mut files = fs::read_dir(dist).map_err(broken)?.filter_map(Result::ok);
    let is_wheel = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "whl");
    let found = files.find_map(|entry| Some(entry.path()).filter(is_wheel));
    found.ok_or_else(|| format!("maturin left no wheel in '{}'", dist.display()))
}
