//! Exports the program's functions so that backend libraries can find them, and records the commit
//! that the program is built from.

use std::path::Path;
use std::process::Command;

#[allow(clippy::disallowed_methods, reason = "a build script's options are variables")]
fn main() {
    println!("cargo::rustc-link-arg-bins=-rdynamic");
    println!("cargo::rerun-if-env-changed=GALATEA_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    // Builds from an archive, without git, specify the commit in the variable or not at all.
    if std::env::var_os("GALATEA_COMMIT").is_some() {
        return;
    }
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return };
    println!("cargo::rustc-env=GALATEA_COMMIT={commit}");
    // Each commit and each branch switch adds a line to this log.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"])
        && Path::new(&log).exists()
    {
        println!("cargo::rerun-if-changed={log}");
    }
}

/// The first line of git's output; `None` without git or a repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let line = text.lines().next()?.to_owned();
    output.status.success().then_some(line).filter(|line| !line.is_empty())
}
