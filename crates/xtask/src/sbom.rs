//! The list of the program's components, in the CycloneDX format.
//!
//! `cargo cyclonedx`, from the authors of the format, generates it from `Cargo.lock`: everything
//! compiled into the program, with versions, licences, checksums and dependencies. ONNX Runtime
//! isn't compiled into the program and is therefore not listed.

use std::fs;
use std::path::{Path, PathBuf};

use crate::process::{cargo, command, run as run_command};
use crate::target::Target;
use crate::workspace;

/// The version to install if `cargo cyclonedx` is missing.
const CARGO_CYCLONEDX: &str = "0.5.9";

/// The name under which `cargo cyclonedx` leaves a list next to each workspace crate's manifest.
const LEFT: &str = "galatea-sbom";

/// Generates the list for a target and returns its path.
pub(crate) fn make(target: &Target) -> Result<PathBuf, String> {
    let root = workspace::cache().join(format!("cargo-cyclonedx-{CARGO_CYCLONEDX}"));
    let program = root.join("bin/cargo-cyclonedx");
    if !program.exists() {
        let mut install = cargo();
        install.args(["install", "cargo-cyclonedx", "--locked", "--version", CARGO_CYCLONEDX]);
        run_command(install.arg("--root").arg(&root))?;
    }
    let manifest = workspace::root().join("crates/galatea/Cargo.toml");
    let mut list = command(&program);
    list.args(["cyclonedx", "--quiet", "--format", "json", "--spec-version", "1.5"]);
    list.args(["--no-build-deps", "--target", target.triple()]);
    list.args(["--override-filename", LEFT, "--manifest-path"]).arg(&manifest);
    let listed = run_command(&mut list);
    let left = take_lists(&manifest);
    listed?;
    // The list must not contain this machine's paths.
    let text = left?.replace(&workspace::root().display().to_string(), "");
    let written = workspace::root().join("target/galatea.cdx.json");
    let failed = |error| format!("can't write '{}': {error}", written.display());
    fs::write(&written, text).map_err(failed)?;
    Ok(written)
}

/// Reads the program's list, and removes the lists next to the manifests of all other workspace
/// crates.
fn take_lists(manifest: &Path) -> Result<String, String> {
    let name = format!("{LEFT}.json");
    let wanted = manifest.with_file_name(&name);
    let text = fs::read_to_string(&wanted)
        .map_err(|error| format!("there is no list of components: {error}"));
    let crates = fs::read_dir(workspace::root().join("crates")).into_iter().flatten();
    let folders = crates.filter_map(Result::ok).map(|entry| entry.path());
    let example = workspace::root().join("examples/agents/checksum");
    for folder in folders.chain([example]) {
        let _ = fs::remove_file(folder.join(&name));
    }
    text
}
