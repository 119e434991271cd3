//! A copy of the scheduler and the simulator in which bugs are planted.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::list::{Mutant, find};
use crate::verdict::{Verdict, verdict};

/// The crates that the simulator or the manifest needs.
const PARTS: [&str; 5] = ["crc-fast", "policy", "sim", "simulate", "traffic"];

/// A workspace in another folder with `policy`, `sim` and their dependencies, including those of
/// the manifest.
pub(crate) struct WorkspaceCopy {
    root: PathBuf,
    is_temporary: bool,
}

impl WorkspaceCopy {
    /// Creates a copy in this folder, which is kept along with its build artifacts, or in a
    /// temporary one.
    pub(crate) fn new(folder: Option<&str>) -> Result<Self, String> {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let temporary =
            || std::env::temp_dir().join(format!("galatea-mutants-{}", std::process::id()));
        let root = folder.map_or_else(temporary, PathBuf::from);
        let copy = WorkspaceCopy { root, is_temporary: folder.is_none() };
        for part in PARTS {
            let target = copy.root.join("crates").join(part);
            let _ = std::fs::remove_dir_all(&target);
            copy_folder(&workspace.join("crates").join(part), &target)?;
        }
        let manifest = read(&workspace.join("Cargo.toml"))?;
        // Members that aren't copied would be missing.
        let own = |line| match line {
            line if str::starts_with(line, "members = ") => Some("members = [\"crates/*\"]"),
            line if str::starts_with(line, "default-members") => None,
            line => Some(line),
        };
        let manifest: Vec<&str> = manifest.lines().filter_map(own).collect();
        write(&copy.root.join("Cargo.toml"), &manifest.join("\n"))?;
        Ok(copy)
    }

    fn file(&self, file: &str) -> PathBuf {
        self.root.join("crates/policy").join(file)
    }

    /// Writes a file of `crates/policy`.
    pub(crate) fn write(&self, file: &str, text: &str) -> Result<(), String> {
        write(&self.file(file), text)
    }

    /// Plants the bug and returns the unchanged file.
    pub(crate) fn plant(&self, mutant: &Mutant<'_>) -> Result<String, String> {
        let intact = read(&self.file(mutant.file))?;
        let places = find(&intact, &mutant.old);
        let [place] = &places[..] else {
            return Err(format!(
                "{}: its text is {} times in {}",
                mutant.name,
                places.len(),
                mutant.file
            ));
        };
        let mut planted = intact.clone();
        planted.replace_range(place.clone(), &mutant.new);
        self.write(mutant.file, &planted)?;
        Ok(intact)
    }

    fn cargo(&self, words: &[&str]) -> Command {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(&self.root).args(words).arg("--target-dir").arg(self.root.join("target"));
        cargo
    }

    pub(crate) fn build(&self) -> Result<(), String> {
        let mut cargo = self.cargo(&["build", "--quiet", "--offline", "--package", "galatea-sim"]);
        let output =
            cargo.args(["--bin", "galatea-sim"]).output().map_err(|error| error.to_string())?;
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// Runs the simulator for at most this time.
    pub(crate) fn verdict(&self, words: &[&str], time_max: Duration) -> Result<Verdict, String> {
        let mut simulator = Command::new(self.root.join("target/debug/galatea-sim"));
        verdict(simulator.args(words), time_max)
    }

    pub(crate) fn unit_tests(&self, time_max: Duration) -> Result<Verdict, String> {
        let words = ["test", "--quiet", "--offline", "--package", "galatea-policy", "--lib"];
        verdict(&mut self.cargo(&words), time_max)
    }
}

impl Drop for WorkspaceCopy {
    fn drop(&mut self) {
        if self.is_temporary {
            // Files that can't be removed remain in the temporary folder.
            let _ = std::fs::remove_dir_all(&self.root);
        }
    }
}

fn copy_folder(from: &Path, to: &Path) -> Result<(), String> {
    let at = |error: std::io::Error| format!("{}: {error}", from.display());
    std::fs::create_dir_all(to).map_err(at)?;
    for entry in std::fs::read_dir(from).map_err(at)? {
        let entry = entry.map_err(at)?;
        let target = to.join(entry.file_name());
        if entry.file_type().map_err(at)?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target).map_err(at)?;
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}
