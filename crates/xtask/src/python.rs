//! Virtual environments for the tasks that need Python packages.

use std::fs;
use std::path::{Path, PathBuf};

use crate::process::{command, run};
use crate::workspace;

/// Creates or completes an environment with the packages in a requirements file and some additional
/// ones. Returns its interpreter.
pub(crate) fn environment(
    name: &str,
    requirements: &Path,
    packages_without_dependencies: &[&str],
) -> Result<PathBuf, String> {
    let folder = workspace::cache().join(name);
    let python = folder.join("bin/python");
    let listed = fs::read_to_string(requirements)
        .map_err(|error| format!("can't read '{}': {error}", requirements.display()))?;
    let wanted = format!("{listed}\n{}\n", packages_without_dependencies.join("\n"));
    let stamp = folder.join("installed.txt");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    if !python.exists() {
        run(command("python3").args(["-m", "venv"]).arg(&folder))?;
    }
    install(&python, |pip| pip.arg("--requirement").arg(requirements))?;
    for package in packages_without_dependencies {
        install(&python, |pip| pip.args(["--no-deps", package]))?;
    }
    fs::write(&stamp, wanted)
        .map_err(|error| format!("can't write '{}': {error}", stamp.display()))?;
    Ok(python)
}

fn install(
    python: &Path,
    what: impl FnOnce(&mut std::process::Command) -> &mut std::process::Command,
) -> Result<(), String> {
    let mut pip = command(python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    run(what(&mut pip))
}
