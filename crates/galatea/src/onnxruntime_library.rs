//! Finds ONNX Runtime's shared library.
//!
//! It is not part of this program. Python's package `onnxruntime` contains it, so that
//! package is searched for, without running Python.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::environment::Environment;

/// The folders into which a Debian or Ubuntu package, or an administrator, would put it.
const SYSTEM_FOLDERS: [&str; 2] = ["/usr/local/lib", "/usr/lib"];

const LIBRARY: &str = "libonnxruntime.so";

/// The library's path, or a message that lists the searched folders.
pub(crate) fn find(flag: Option<&Path>, environment: &Environment) -> Result<PathBuf, String> {
    if let Some(path) = flag {
        return named(path, "--onnxruntime-library");
    }
    if let Some(path) = &environment.onnxruntime_library {
        return named(path, "GALATEA_ONNXRUNTIME_LIBRARY");
    }
    let folders = folders(environment);
    folders.iter().find_map(|folder| newest_library(folder)).ok_or_else(|| not_found(&folders))
}

fn named(path: &Path, source: &str) -> Result<PathBuf, String> {
    if path.is_file() {
        return Ok(path.to_path_buf());
    }
    Err(format!("{source} names '{}', which is no file", path.display()))
}

fn not_found(folders: &[PathBuf]) -> String {
    let mut message = String::from(
        "ONNX Runtime's library was not found. Install it with `pip install onnxruntime`, or \
         give its path with --onnxruntime-library or in GALATEA_ONNXRUNTIME_LIBRARY. Neither \
         was given, and there is no libonnxruntime.so in",
    );
    for folder in folders {
        let _ = write!(message, " '{}'", folder.display());
    }
    message
}

/// The folders that may hold the library: first the active virtual
/// environment's, then the user's own packages, then those of each Python on
/// the path, then the system's.
fn folders(environment: &Environment) -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> = environment.virtual_environment.iter().cloned().collect();
    prefixes.extend(environment.home.iter().map(|home| home.join(".local")));
    prefixes.extend(environment.program_folders.iter().flat_map(|folder| python_prefixes(folder)));
    let mut folders: Vec<PathBuf> =
        prefixes.iter().flat_map(|prefix| package_folders(prefix)).collect();
    folders.extend(SYSTEM_FOLDERS.map(PathBuf::from));
    let mut seen = Vec::new();
    folders.retain(|folder| {
        !seen.contains(folder) && {
            seen.push(folder.clone());
            true
        }
    });
    folders
}

/// `/usr` for a folder `/usr/bin` that has a Python, and for pyenv's folder of
/// shims every Python that it manages.
///
/// Links are not followed: the link in a virtual environment leads to the
/// Python that it was made with, whose packages are others.
fn python_prefixes(program_folder: &Path) -> Vec<PathBuf> {
    let has_python = ["python3", "python"].iter().any(|name| program_folder.join(name).is_file());
    let Some(prefix) = program_folder.parent().filter(|_| has_python) else { return Vec::new() };
    let mut prefixes = vec![prefix.to_path_buf()];
    if program_folder.ends_with("shims") {
        prefixes.extend(entries(&prefix.join("versions")).into_iter().map(|(_, path)| path));
    }
    prefixes
}

/// The package's folder for each Python version that a prefix has, the newest
/// first.
fn package_folders(prefix: &Path) -> Vec<PathBuf> {
    let mut found: Vec<(u32, PathBuf)> = Vec::new();
    for library_folder in [prefix.join("lib"), prefix.join("local/lib")] {
        for (name, path) in entries(&library_folder) {
            let Some(minor) = name.strip_prefix("python3.").and_then(|minor| minor.parse().ok())
            else {
                continue;
            };
            for packages in ["site-packages", "dist-packages"] {
                found.push((minor, path.join(packages).join("onnxruntime/capi")));
            }
        }
    }
    // Debian keeps the packages of every version in one folder.
    found.push((0, prefix.join("lib/python3/dist-packages/onnxruntime/capi")));
    found.sort_by_key(|(minor, _)| std::cmp::Reverse(*minor));
    found.into_iter().map(|(_, folder)| folder).filter(|folder| folder.is_dir()).collect()
}

/// The library with the highest version in its name; one without a version
/// counts as the lowest.
fn newest_library(folder: &Path) -> Option<PathBuf> {
    let versions = entries(folder).into_iter().filter_map(|(name, path)| {
        let suffix = name.strip_prefix(LIBRARY)?;
        let version: Vec<u32> = suffix
            .split('.')
            .filter(|part| !part.is_empty())
            .map(str::parse)
            .collect::<Result<_, _>>()
            .ok()?;
        Some((version, path))
    });
    versions.filter(|(_, path)| path.is_file()).max().map(|(_, path)| path)
}

fn entries(folder: &Path) -> Vec<(String, PathBuf)> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let readable = entries.filter_map(Result::ok);
    readable
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree that vanishes with its value.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[&str]) -> Self {
            let root = std::env::temp_dir().join(format!("galatea-{name}-{}", std::process::id()));
            for file in files {
                let path = root.join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, "").unwrap();
            }
            Self(root)
        }

        fn path(&self, file: &str) -> PathBuf {
            self.0.join(file)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_flag_precedes_the_variable_and_the_packages() {
        let installed =
            "venv/lib/python3.11/site-packages/onnxruntime/capi/libonnxruntime.so.1.9.0";
        let tree = Tree::new("order", &["flag.so", "variable.so", installed]);
        let mut environment = Environment {
            onnxruntime_library: Some(tree.path("variable.so")),
            virtual_environment: Some(tree.path("venv")),
            ..Environment::default()
        };
        let flag = tree.path("flag.so");
        assert_eq!(find(Some(&flag), &environment), Ok(flag));
        assert_eq!(find(None, &environment), Ok(tree.path("variable.so")));
        environment.onnxruntime_library = None;
        assert_eq!(find(None, &environment), Ok(tree.path(installed)));
    }

    #[test]
    fn a_given_path_must_name_a_file() {
        let tree = Tree::new("given", &["folder/file"]);
        let message = find(Some(&tree.path("nothing")), &Environment::default()).unwrap_err();
        assert!(message.starts_with("--onnxruntime-library names '"), "{message}");
        let environment = Environment {
            onnxruntime_library: Some(tree.path("folder")),
            ..Environment::default()
        };
        let message = find(None, &environment).unwrap_err();
        assert!(message.starts_with("GALATEA_ONNXRUNTIME_LIBRARY names '"), "{message}");
    }

    #[test]
    fn the_newest_python_and_the_newest_library_win() {
        let capi = |version: &str| format!("p/lib/{version}/site-packages/onnxruntime/capi");
        let files = [
            "p/bin/python3".to_owned(),
            format!("{}/libonnxruntime.so.1.31.1", capi("python3.9")),
            format!("{}/libonnxruntime.so.1.9.0", capi("python3.11")),
            format!("{}/libonnxruntime.so.1.10.0", capi("python3.11")),
            format!("{}/libonnxruntime_providers_shared.so", capi("python3.11")),
        ];
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let tree = Tree::new("newest", &files);
        let environment =
            Environment { program_folders: vec![tree.path("p/bin")], ..Environment::default() };
        assert_eq!(find(None, &environment), Ok(tree.path(files[3])));
    }

    #[test]
    fn pyenv_and_the_users_own_packages_count() {
        let managed = "e/versions/3.11.7/lib/python3.11/site-packages/onnxruntime/capi";
        let own = "h/.local/lib/python3.12/site-packages/onnxruntime/capi";
        let files = [format!("{managed}/libonnxruntime.so.1"), format!("{own}/libonnxruntime.so")];
        let tree = Tree::new("pyenv", &["e/shims/python3", &files[0], &files[1]]);
        let mut environment =
            Environment { program_folders: vec![tree.path("e/shims")], ..Environment::default() };
        assert_eq!(find(None, &environment), Ok(tree.path(&files[0])));
        environment.home = Some(tree.path("h"));
        assert_eq!(find(None, &environment), Ok(tree.path(&files[1])));
    }

    #[test]
    fn without_a_library_the_message_names_the_folders_and_the_remedy() {
        let capi = "p/lib/python3.12/dist-packages/onnxruntime/capi";
        let tree = Tree::new("none", &["p/bin/python3", &format!("{capi}/other.so")]);
        let environment =
            Environment { program_folders: vec![tree.path("p/bin")], ..Environment::default() };
        let message = not_found(&folders(&environment));
        for part in ["pip install onnxruntime", "--onnxruntime-library", capi, "'/usr/lib'"] {
            assert!(message.contains(part), "{message}");
        }
    }
}
