//! The programs that tests may run.
//!
//! `cargo xtask test` runs with a `PATH` that contains only these programs. A test that runs any
//! other program fails on every machine, not only on a machine without that program.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace;

/// The programs that README.md and CONTRIBUTING.md require. The assembler, the linker and `nm` are
/// parts of a C compiler.
const NEEDED: [&str; 5] = ["cargo", "rustc", "cc", "python3", "sh"];

/// Programs that come with one of [`NEEDED`], under any name.
const PARTS: [&str; 17] = [
    "ar",
    "as",
    "cargo-clippy",
    "cargo-fmt",
    "cargo-nextest",
    "clippy-driver",
    "cp",
    "head",
    "ld",
    "mkdir",
    "mkfifo",
    "nm",
    "readelf",
    "rustdoc",
    "rustfmt",
    "rustup",
    "sleep",
];

/// Programs that are optional for tests: tests that need a missing program are skipped, with a
/// reason. Only the steps that request these programs see them.
const OPTIONAL: [&str; 18] = [
    "bash",
    "c++",
    "chromedriver",
    "chromium",
    "curl",
    "fish",
    "git",
    "h2load",
    "haproxy",
    "mdbook",
    "prometheus",
    "promtool",
    "redis-server",
    "setpriv",
    "systemd-analyze",
    "taskset",
    "valgrind",
    "zsh",
];

/// Restarts this process with a `PATH` that contains only the known programs.
#[allow(clippy::disallowed_methods, reason = "tasks may read the environment, as binaries do")]
pub(crate) fn restrict() -> Result<(), String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let needed = folder("needed");
    if path == needed {
        return Ok(());
    }
    make_links(&path, &needed)?;
    let this = std::env::current_exe().map_err(|error| format!("can't find myself: {error}"))?;
    let mut again = Command::new(this);
    again.args(std::env::args_os().skip(1)).env("PATH", needed);
    Err(format!("can't start again: {}", again.exec()))
}

/// The `PATH` of a step that uses optional programs.
pub(crate) fn path_with(optional: &[&str]) -> OsString {
    debug_assert!(optional.iter().all(|program| OPTIONAL.contains(program)));
    let mut path = folder("needed").into_os_string();
    for program in optional {
        path.push(":");
        path.push(folder(program));
    }
    path
}

/// The path of an optional program.
pub(crate) fn path_of(optional: &str) -> PathBuf {
    folder(optional).join(optional)
}

/// Returns true if an optional program is installed.
pub(crate) fn has(optional: &str) -> bool {
    path_of(optional).exists()
}

/// The folder for the needed programs, or for one optional program.
fn folder(name: &str) -> PathBuf {
    workspace::cache().join("programs").join(name)
}

fn make_links(path: &OsString, needed: &Path) -> Result<(), String> {
    for name in NEEDED {
        let program = find(name, path).ok_or_else(|| format!("the tests need `{name}`"))?;
        if name == "python3" {
            link_python(&program, needed)?;
        } else {
            link(&program, needed, name)?;
        }
    }
    let parts = PARTS.iter().map(|name| (*name, needed.to_path_buf()));
    let optional = OPTIONAL.iter().map(|name| (*name, folder(name)));
    for (name, folder) in parts.chain(optional) {
        let _ = fs::remove_file(folder.join(name));
        if let Some(program) = find(name, path) {
            link(&program, &folder, name)?;
            link_beside(&program, &folder, name)?;
        }
    }
    Ok(())
}

/// Debian's `valgrind` is a script that calls `valgrind.bin` in the same folder.
fn link_beside(program: &Path, folder: &Path, name: &str) -> Result<(), String> {
    let name = format!("{name}.bin");
    let beside = program.with_file_name(&name);
    if beside.exists() { link(&beside, folder, &name) } else { Ok(()) }
}

fn find(name: &str, path: &OsString) -> Option<PathBuf> {
    let is_executable = |file: &PathBuf| {
        fs::metadata(file)
            .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(path).map(|folder| folder.join(name)).find(is_executable)
}

fn link(program: &Path, folder: &Path, name: &str) -> Result<(), String> {
    let link = folder.join(name);
    let broken = |error: std::io::Error| format!("can't make '{}': {error}", link.display());
    fs::create_dir_all(folder).map_err(broken)?;
    remove(&link).and_then(|()| symlink(program, &link)).map_err(broken)
}

/// Python finds its library relative to its own location, and a version manager's `python3` is a
/// script that calls other programs. A script that calls the real interpreter works in both cases.
fn link_python(program: &Path, folder: &Path) -> Result<(), String> {
    let mut ask = Command::new(program);
    ask.args(["-c", "import os, sys; print(os.path.realpath(sys.executable))"]);
    let interpreter = crate::process::output(&mut ask)?;
    let script = folder.join("python3");
    let broken = |error: std::io::Error| format!("can't make '{}': {error}", script.display());
    fs::create_dir_all(folder).map_err(broken)?;
    remove(&script).map_err(broken)?;
    let text = format!("#!/bin/sh\nexec '{}' \"$@\"\n", interpreter.trim());
    fs::write(&script, text).map_err(broken)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).map_err(broken)
}

fn remove(file: &Path) -> std::io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_sees_the_needed_programs_and_its_own() {
        let path = path_with(&["curl"]).into_string().unwrap();
        let folders: Vec<&str> = path.split(':').collect();
        assert!(matches!(folders[..], [needed, curl] if needed.ends_with("programs/needed")
            && curl.ends_with("programs/curl")));
    }

    #[test]
    fn programs_are_found_in_the_order_of_the_path() {
        let path = OsString::from("/no/such/folder:/bin:/usr/bin");
        assert_eq!(find("sh", &path), Some(PathBuf::from("/bin/sh")));
        assert_eq!(find("no-such-program", &path), None);
    }
}
