//! The rules for the source text.

use std::fs;
use std::path::{Path, PathBuf};

use super::graph::Package;
use super::{
    ENVIRONMENT_ALLOWED, IMPURE_WORDS, NETWORK_DOORS, PURE, STATICS_ALLOWED, UNSAFE_ALLOWED,
};

/// Every rule violation in a package's sources.
pub(super) fn check(package: &Package) -> Result<Vec<String>, String> {
    let name = package.short_name();
    let mut found = Vec::new();
    let sources = package.folder.join("src");
    for path in rust_files(&sources)? {
        let text = fs::read_to_string(&path)
            .map_err(|error| format!("can't read '{}': {error}", path.display()))?;
        let place = path.strip_prefix(&sources).unwrap_or(&path);
        if !is_test(place) {
            found.extend(check_file(name, place, &text));
        }
    }
    Ok(found)
}

fn check_file(name: &str, place: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let is_root = place == Path::new("lib.rs") || place == Path::new("main.rs");
    if is_root && !UNSAFE_ALLOWED.contains(&name) && !text.contains("#![forbid(unsafe_code)]") {
        found.push(format!("{name}: {} must forbid unsafe code", place.display()));
    }
    for (number, line) in production_lines(text) {
        if let Some(reason) = broken_rule(name, line) {
            found.push(format!("{name}: {}:{number}: {reason}: {}", place.display(), line.trim()));
        }
    }
    found
}

fn broken_rule(name: &str, line: &str) -> Option<&'static str> {
    let reads_environment = line.contains("env::var") || line.contains("env::vars");
    if reads_environment && !ENVIRONMENT_ALLOWED.contains(&name) {
        return Some("the environment is read in the binary alone");
    }
    if is_mutable_static(line) && !STATICS_ALLOWED.contains(&name) {
        return Some("no state in statics");
    }
    if line.contains("in_process()") && NETWORK_DOORS.contains(&name) {
        return Some("a caller from the network gets its pass from the gate");
    }
    let impure = IMPURE_WORDS.iter().any(|word| line.contains(word));
    (impure && PURE.contains(&name)).then_some("this crate is pure")
}

fn is_mutable_static(line: &str) -> bool {
    const CELLS: [&str; 5] = ["Mutex<", "RwLock<", "Atomic", "OnceLock<", "Cell<"];
    let line = line.trim_start();
    let declared = line.strip_prefix("pub ").unwrap_or(line);
    let declared = declared.strip_prefix("pub(crate) ").unwrap_or(declared);
    let Some(rest) = declared.strip_prefix("static ") else {
        return line.starts_with("thread_local!");
    };
    rest.starts_with("mut ") || CELLS.iter().any(|cell| rest.contains(cell))
}

/// The lines before the file's own tests, without comments.
fn production_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines: Vec<&str> = text.lines().collect();
    let tests = lines.windows(2).position(|pair| {
        matches!(pair, ["#[cfg(test)]", next] if next.contains("mod ") && next.ends_with('{'))
    });
    let end = tests.unwrap_or(lines.len());
    let numbered = lines.into_iter().take(end).enumerate();
    numbered
        .map(|(index, line)| (index + 1, line))
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
}

fn is_test(place: &Path) -> bool {
    place.components().any(|part| {
        let part = part.as_os_str().to_string_lossy();
        let stem = part.strip_suffix(".rs").unwrap_or(&part);
        stem == "tests" || stem == "testing" || stem.ends_with("_tests") || stem.ends_with("_test")
    })
}

fn rust_files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let unreadable = |error| format!("can't list '{}': {error}", folder.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, place: &str, text: &str, expected: &[&str]) {
        assert_eq!(check_file(name, Path::new(place), text), expected);
    }

    #[test]
    fn roots_forbid_unsafe_code_except_in_some_crates() {
        check("tensor", "lib.rs", "//! A.\n", &["tensor: lib.rs must forbid unsafe code"]);
        check("tensor", "lib.rs", "#![forbid(unsafe_code)]\n", &[]);
        check("tensor", "shape.rs", "//! A.\n", &[]);
        check("backend-onnxruntime", "lib.rs", "//! A.\n", &[]);
    }

    #[test]
    fn the_environment_is_read_in_the_binary_alone() {
        let line = "let home = std::env::var(\"HOME\");";
        let expected =
            format!("engine: a.rs:1: the environment is read in the binary alone: {line}");
        check("engine", "a.rs", line, &[&expected]);
        check("galatea", "a.rs", line, &[]);
        check("engine", "a.rs", "let folder = std::env::temp_dir();", &[]);
    }

    #[test]
    fn statics_hold_no_state() {
        for line in [
            "static mut COUNT: u32 = 0;",
            "    pub(crate) static COUNT: AtomicU32 = AtomicU32::new(0);",
            "pub static CELL: OnceLock<u32> = OnceLock::new();",
            "thread_local! {",
        ] {
            let expected = format!("engine: a.rs:1: no state in statics: {}", line.trim());
            check("engine", "a.rs", line, &[&expected]);
        }
        check("engine", "a.rs", "static POOL: LazyLock<Pool> = LazyLock::new(build);", &[]);
        check("engine", "a.rs", "static NAMES: [&str; 1] = [\"a\"];", &[]);
        check("engine", "a.rs", "fn a(b: &'static AtomicU32) {}", &[]);
    }

    #[test]
    fn pure_crates_name_nothing_impure() {
        let line = "use std::collections::HashMap;";
        check("policy", "a.rs", line, &[&format!("policy: a.rs:1: this crate is pure: {line}")]);
        check("http", "a.rs", line, &[]);
        check("policy", "a.rs", "/// Unlike a HashMap.", &[]);
    }

    #[test]
    fn network_doors_make_no_passes() {
        let line = "self.control.load_model(Pass::in_process(), name);";
        let reason = "a caller from the network gets its pass from the gate";
        check("http", "a.rs", line, &[&format!("http: a.rs:1: {reason}: {line}")]);
        check("grpc", "a.rs", line, &[&format!("grpc: a.rs:1: {reason}: {line}")]);
        check("capi", "a.rs", line, &[]);
    }

    #[test]
    fn tests_are_exempt() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    use std::collections::HashMap;\n}\n";
        check("policy", "a.rs", text, &[]);
        assert!(is_test(Path::new("log/tests.rs")));
        assert!(is_test(Path::new("tests/a.rs")));
        assert!(!is_test(Path::new("contests.rs")));
    }
}
