//! The tests that a change can break, for `cargo xtask test --changed`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::process::{command, output};
use crate::{programs, workspace};

/// The folders that each crate uses, in its program or its tests.
pub(crate) type Uses = BTreeMap<String, BTreeSet<String>>;

/// A selection of steps and tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Steps of `cargo xtask test`.
    pub(crate) steps: BTreeSet<&'static str>,
    /// The crates whose tests run, by folder.
    pub(crate) crates: BTreeSet<String>,
    /// Folders and files for pytest.
    pub(crate) python: BTreeSet<String>,
}

/// Tests that read the documents.
const OF_DOCUMENTS: [&str; 4] = [
    "tests/clients/test_compatibility.py",
    "tests/clients/test_documentation.py",
    "tests/clients/test_pages.py",
    "tests/clients/test_site.py",
];

/// Steps and test folders that run a crate.
const OF_CRATES: [(&str, &[&str], &[&str]); 6] = [
    ("galatea", &["readme"], &["tests/clients", "tests/differential"]),
    ("load", &[], &["tests/clients"]),
    ("libtritonserver", &[], &["tests/c_api"]),
    ("python", &[], &["tests/python_api"]),
    ("sim", &["simulation", "seeds"], &[]),
    ("protocol", &["descriptors"], &[]),
];

/// Steps and test folders that use the files below a folder. The longest matching prefix wins.
const OF_FOLDERS: [(&str, &[&str], &[&str]); 7] = [
    ("bench/", &[], &["tests/clients"]),
    ("deploy/", &["deploy"], &[]),
    ("examples/", &["readme"], &["tests/clients"]),
    ("fuzz/", &["fuzz"], &[]),
    ("include/", &["headers"], &["tests/c_api", "tests/clients"]),
    ("python/", &[], &["tests/python_api"]),
    ("workers/", &[], &["tests/python_worker", "tests/clients", "tests/python_api"]),
];

impl Plan {
    /// Selects the tests for the changed files. `None` means everything, because one of the files
    /// may affect anything.
    pub(crate) fn new<'a>(files: impl IntoIterator<Item = &'a str>, uses: &Uses) -> Option<Self> {
        let mut plan = Self::default();
        plan.steps.extend(["fmt", "arrows", "tidy"]);
        let mut changed = BTreeSet::new();
        for file in files {
            if let Some(name) = crate_of(file, uses) {
                changed.insert(name.to_owned());
            } else {
                plan.add_file(file)?;
            }
        }
        plan.add_crates(changed, uses);
        if !plan.python.is_empty() {
            plan.steps.insert("python");
        }
        Some(plan)
    }

    fn add_file(&mut self, file: &str) -> Option<()> {
        let is_document = file.ends_with(".md") || file.starts_with("docs/");
        if is_document {
            self.python.extend(OF_DOCUMENTS.map(String::from));
        }
        if let Some(rest) = file.strip_prefix("tests/") {
            let (folder, name) = rest.split_once('/')?;
            self.add_test(folder, name);
        } else if let Some((_, steps, python)) =
            OF_FOLDERS.iter().find(|(prefix, _, _)| file.starts_with(prefix))
        {
            self.steps.extend(steps.iter());
            self.python.extend(python.iter().map(|folder| String::from(*folder)));
        } else if !is_document {
            return None;
        }
        Some(())
    }

    /// Adds a test. A test file runs by itself; other files in its folder may serve all tests
    /// there.
    fn add_test(&mut self, folder: &str, name: &str) {
        if folder == "deploy" {
            self.steps.insert("deploy");
        } else if folder == "protocol" {
            self.steps.insert("descriptors");
        } else if name.starts_with("test_") && name.ends_with(".py") {
            self.python.insert(format!("tests/{folder}/{name}"));
        } else if !name.ends_with(".md") {
            let known = matches!(
                folder,
                "c_api" | "clients" | "differential" | "python_api" | "python_worker"
            );
            self.python.insert(format!("tests/{}", if known { folder } else { "clients" }));
        }
    }

    fn add_crates(&mut self, changed: BTreeSet<String>, uses: &Uses) {
        if changed.is_empty() {
            return;
        }
        self.steps.extend(["clippy", "build", "rust", "doc"]);
        if changed.contains("abi") {
            self.steps.insert("headers");
        }
        self.crates = with_dependents(changed, uses);
        for (name, steps, python) in OF_CRATES {
            if self.crates.contains(name) {
                self.steps.extend(steps);
                self.python.extend(python.iter().map(|folder| String::from(*folder)));
            }
        }
    }

    /// The pytest targets in one of its folders.
    pub(crate) fn python_in(&self, folder: &str) -> Vec<&str> {
        if self.python.contains(folder) {
            return self.python.get(folder).map(String::as_str).into_iter().collect();
        }
        let below = format!("{folder}/");
        self.python.iter().map(String::as_str).filter(|path| path.starts_with(&below)).collect()
    }
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let joined = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(", ");
        let steps = self.steps.iter().copied().collect::<Vec<_>>().join(", ");
        writeln!(f, "steps: {steps}")?;
        writeln!(f, "crates: {}", joined(&self.crates))?;
        write!(f, "Python: {}", joined(&self.python))
    }
}

fn crate_of<'a>(file: &'a str, uses: &Uses) -> Option<&'a str> {
    let (name, _) = file.strip_prefix("crates/")?.split_once('/')?;
    uses.contains_key(name).then_some(name)
}

fn with_dependents(mut found: BTreeSet<String>, uses: &Uses) -> BTreeSet<String> {
    loop {
        let more: Vec<String> = uses
            .iter()
            .filter(|(name, used)| !found.contains(*name) && !used.is_disjoint(&found))
            .map(|(name, _)| name.clone())
            .collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// The crates in each crate's manifest.
pub(crate) fn uses() -> Result<Uses, String> {
    let folder = workspace::root().join("crates");
    let broken = |error: std::io::Error| format!("can't read '{}': {error}", folder.display());
    let mut manifests = BTreeMap::new();
    for entry in fs::read_dir(&folder).map_err(broken)? {
        let entry = entry.map_err(broken)?;
        let text = fs::read_to_string(entry.path().join("Cargo.toml")).map_err(broken)?;
        manifests.insert(entry.file_name().to_string_lossy().into_owned(), text);
    }
    Ok(uses_in(&manifests))
}

fn uses_in(manifests: &BTreeMap<String, String>) -> Uses {
    let used = |text: &String| {
        let names = text.lines().filter_map(|line| line.split(['.', ' ']).next());
        let folders = names.map(|name| name.strip_prefix("galatea-").unwrap_or(name));
        folders.filter(|name| manifests.contains_key(*name)).map(String::from).collect()
    };
    manifests.iter().map(|(name, text)| (name.clone(), used(text))).collect()
}

/// The files that differ from a commit, including untracked files. The default commit is the one at
/// which the branch left `main`, or the last commit on `main` itself.
pub(crate) fn files(base: Option<&str>) -> Result<Vec<String>, String> {
    let git = |words: &[&str]| output(command(programs::path_of("git")).args(words));
    let base = if let Some(base) = base {
        base.to_owned()
    } else {
        let head = git(&["rev-parse", "HEAD"])?;
        let left = git(&["merge-base", "HEAD", "main"])?;
        if left == head { String::from("HEAD~1") } else { left.trim().to_owned() }
    };
    let mut files = git(&["diff", "--name-only", "--no-renames", &base, "--"])?;
    files.push_str(&git(&["ls-files", "--others", "--exclude-standard"])?);
    Ok(files.lines().map(String::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(files: &[&str]) -> Plan {
        Plan::new(files.iter().copied(), &uses().unwrap()).unwrap()
    }

    fn texts(set: &BTreeSet<String>) -> Vec<&str> {
        set.iter().map(String::as_str).collect()
    }

    #[test]
    fn a_crate_brings_those_that_use_it_and_tests_of_their_programs() {
        let plan = plan(&["crates/grpc/src/lib.rs"]);
        assert_eq!(texts(&plan.crates), ["galatea", "grpc", "libtritonserver", "python"]);
        assert!(plan.steps.contains("rust") && !plan.steps.contains("simulation"));
        let folders = ["tests/c_api", "tests/clients", "tests/differential", "tests/python_api"];
        assert_eq!(texts(&plan.python), folders);
    }

    #[test]
    fn crates_that_only_tests_use_count() {
        let plan = plan(&["crates/fakes/src/lib.rs", "crates/policy/src/lib.rs"]);
        assert!(plan.crates.contains("grpc") && plan.crates.contains("sim"), "{plan:?}");
        assert!(plan.steps.contains("simulation"));
    }

    #[test]
    fn a_tool_needs_no_client() {
        let plan = plan(&["crates/xtask/src/main.rs"]);
        assert_eq!(texts(&plan.crates), ["xtask"]);
        assert!(plan.python.is_empty() && !plan.steps.contains("python"));
    }

    #[test]
    fn a_file_of_tests_runs_alone() {
        let one = plan(&["tests/clients/test_tls.py"]);
        assert_eq!(one.python_in("tests/clients"), ["tests/clients/test_tls.py"]);
        assert!(one.crates.is_empty() && !one.steps.contains("clippy"));
        let all = plan(&["tests/clients/test_tls.py", "tests/clients/server.py"]);
        assert_eq!(all.python_in("tests/clients"), ["tests/clients"]);
        assert!(all.python_in("tests/c_api").is_empty());
    }

    #[test]
    fn documents_have_tests() {
        assert_eq!(texts(&plan(&["docs/flags.md", "README.md"]).python), OF_DOCUMENTS);
        for path in OF_DOCUMENTS {
            assert!(workspace::root().join(path).exists(), "{path}");
        }
    }

    #[test]
    fn some_files_may_break_everything() {
        for file in ["Cargo.lock", "Cargo.toml", ".ci/run", "tests/requirements.txt"] {
            assert_eq!(Plan::new([file], &uses().unwrap()), None, "{file}");
        }
    }
}
