//! Finds the shared library of a runtime.
//!
//! The program doesn't include such a library. Libraries come in Python packages, so this module
//! searches for the package, without running Python.

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The folders in which a Debian or Ubuntu package, or an administrator, would install a library.
const SYSTEM_FOLDERS: [&str; 2] = ["/usr/local/lib", "/usr/lib"];

/// A runtime's library, and the names that are needed to find it.
#[derive(Copy, Clone, Debug)]
pub struct LibrarySearchSpec {
    /// The framework's name, such as `ONNX Runtime`.
    pub framework: &'static str,
    /// The file's name without a version, such as `libonnxruntime.so`.
    pub file: &'static str,
    /// The Python package that contains the library, with `pip install` options that leave out what
    /// the library doesn't need.
    pub package: &'static str,
    /// The library's folder below a folder of Python packages.
    pub folder: &'static str,
    /// The flag that specifies the library's path.
    pub flag: &'static str,
    /// The environment variable that specifies the library's path.
    pub variable: &'static str,
}

/// The paths that the operator specified.
#[derive(Copy, Clone, Debug, Default)]
pub struct LibraryPathOverrides<'a> {
    /// The path from the flag.
    pub flag: Option<&'a Path>,
    /// The path from the environment variable.
    pub variable: Option<&'a Path>,
}

/// The places that may contain Python packages.
#[derive(Copy, Clone, Debug, Default)]
pub struct LibrarySearchPaths<'a> {
    /// The active virtual environment.
    pub virtual_environment: Option<&'a Path>,
    /// The user's home directory.
    pub home: Option<&'a Path>,
    /// The folders in which the system searches for programs.
    pub program_folders: &'a [PathBuf],
}

impl LibrarySearchSpec {
    /// Finds the library at the path from the flag, at the path from the environment variable, in
    /// Python packages, or in the system's folders, in this order.
    ///
    /// # Errors
    ///
    /// A message that suggests what to install and lists the searched folders.
    pub fn find_path(
        &self,
        named_paths: LibraryPathOverrides<'_>,
        places: LibrarySearchPaths<'_>,
    ) -> Result<PathBuf, String> {
        if let Some(path) = named_paths.flag {
            return named(path, self.flag);
        }
        if let Some(path) = named_paths.variable {
            return named(path, self.variable);
        }
        let folders = self.folders(places);
        let found = folders.iter().find_map(|folder| newest_library(folder, self.file));
        found.ok_or_else(|| self.not_found(&folders))
    }

    fn not_found(&self, folders: &[PathBuf]) -> String {
        let Self { framework, file, package, flag, variable, .. } = self;
        let mut message = format!(
            "{framework}'s library was not found. Install it with `pip install {package}`, or \
             give its path with {flag} or in {variable}. Neither was given, and there is no {file} \
             in"
        );
        for folder in folders {
            let _ = write!(message, " '{}'", folder.display());
        }
        message
    }

    /// The folders that may contain the library, in this order: the active virtual environment's,
    /// the user's own packages, those of each Python on the path, and the system's.
    fn folders(&self, places: LibrarySearchPaths<'_>) -> Vec<PathBuf> {
        let LibrarySearchPaths { virtual_environment, home, program_folders } = places;
        let mut prefixes: Vec<PathBuf> =
            virtual_environment.into_iter().map(Path::to_path_buf).collect();
        prefixes.extend(home.into_iter().map(|home| home.join(".local")));
        prefixes.extend(program_folders.iter().flat_map(|folder| python_prefixes(folder)));
        let mut folders: Vec<PathBuf> =
            prefixes.iter().flat_map(|prefix| package_folders(prefix, self.folder)).collect();
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
}

fn named(path: &Path, source: &str) -> Result<PathBuf, String> {
    if path.is_file() {
        return Ok(path.to_path_buf());
    }
    Err(format!("{source} names '{}', which is no file", path.display()))
}

/// The prefixes of the Pythons in a program folder: `/usr` for `/usr/bin`, or every Python that
/// pyenv manages for pyenv's folder of shims.
///
/// Links are not followed: the link in a virtual environment leads to the Python that created it,
/// which has different packages.
fn python_prefixes(program_folder: &Path) -> Vec<PathBuf> {
    let has_python = ["python3", "python"].iter().any(|name| program_folder.join(name).is_file());
    let Some(prefix) = program_folder.parent().filter(|_| has_python) else { return Vec::new() };
    let mut prefixes = vec![prefix.to_path_buf()];
    if program_folder.ends_with("shims") {
        prefixes.extend(entries(&prefix.join("versions")).into_iter().map(|(_, path)| path));
    }
    prefixes
}

/// The package's folder for each Python version under a prefix, newest version first.
fn package_folders(prefix: &Path, folder: &str) -> Vec<PathBuf> {
    let mut found: Vec<(u32, PathBuf)> = Vec::new();
    for library_folder in [prefix.join("lib"), prefix.join("local/lib")] {
        for (name, path) in entries(&library_folder) {
            let Some(minor) = name.strip_prefix("python3.").and_then(|minor| minor.parse().ok())
            else {
                continue;
            };
            for packages in ["site-packages", "dist-packages"] {
                found.push((minor, path.join(packages).join(folder)));
            }
        }
    }
    // Debian uses one package folder for all Python versions.
    found.push((0, prefix.join("lib/python3/dist-packages").join(folder)));
    found.sort_by_key(|(minor, _)| std::cmp::Reverse(*minor));
    found.into_iter().map(|(_, folder)| folder).filter(|folder| folder.is_dir()).collect()
}

/// The library with the highest version in its name. A library without a version ranks lowest.
fn newest_library(folder: &Path, file: &str) -> Option<PathBuf> {
    let versions = entries(folder).into_iter().filter_map(|(name, path)| {
        let suffix = name.strip_prefix(file)?;
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

    const NAME: LibrarySearchSpec = LibrarySearchSpec {
        framework: "ONNX Runtime",
        file: "libonnxruntime.so",
        package: "onnxruntime",
        folder: "onnxruntime/capi",
        flag: "--onnxruntime-library",
        variable: "GALATEA_ONNXRUNTIME_LIBRARY",
    };

    /// A directory tree that is removed when the value is dropped.
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
        let (virtual_environment, flag) = (tree.path("venv"), tree.path("flag.so"));
        let variable = tree.path("variable.so");
        let places = LibrarySearchPaths {
            virtual_environment: Some(&virtual_environment),
            ..LibrarySearchPaths::default()
        };
        let found =
            |flag, variable| NAME.find_path(LibraryPathOverrides { flag, variable }, places);
        assert_eq!(found(Some(&flag), Some(&variable)), Ok(flag.clone()));
        assert_eq!(found(None, Some(&variable)), Ok(variable.clone()));
        assert_eq!(found(None, None), Ok(tree.path(installed)));
    }

    #[test]
    fn a_given_path_must_name_a_file() {
        let tree = Tree::new("given", &["folder/file"]);
        let message = |flag, variable| {
            NAME.find_path(LibraryPathOverrides { flag, variable }, LibrarySearchPaths::default())
                .unwrap_err()
        };
        let (nothing, folder) = (tree.path("nothing"), tree.path("folder"));
        let text = message(Some(&nothing), None);
        assert!(text.starts_with("--onnxruntime-library names '"), "{text}");
        let text = message(None, Some(&folder));
        assert!(text.starts_with("GALATEA_ONNXRUNTIME_LIBRARY names '"), "{text}");
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
        let program_folders = [tree.path("p/bin")];
        let places = LibrarySearchPaths {
            program_folders: &program_folders,
            ..LibrarySearchPaths::default()
        };
        assert_eq!(
            NAME.find_path(LibraryPathOverrides::default(), places),
            Ok(tree.path(files[3]))
        );
    }

    #[test]
    fn pyenv_and_the_users_own_packages_count() {
        let managed = "e/versions/3.11.7/lib/python3.11/site-packages/onnxruntime/capi";
        let own = "h/.local/lib/python3.12/site-packages/onnxruntime/capi";
        let files = [format!("{managed}/libonnxruntime.so.1"), format!("{own}/libonnxruntime.so")];
        let tree = Tree::new("pyenv", &["e/shims/python3", &files[0], &files[1]]);
        let (program_folders, home) = ([tree.path("e/shims")], tree.path("h"));
        let mut places = LibrarySearchPaths {
            program_folders: &program_folders,
            ..LibrarySearchPaths::default()
        };
        assert_eq!(
            NAME.find_path(LibraryPathOverrides::default(), places),
            Ok(tree.path(&files[0]))
        );
        places.home = Some(&home);
        assert_eq!(
            NAME.find_path(LibraryPathOverrides::default(), places),
            Ok(tree.path(&files[1]))
        );
    }

    #[test]
    fn without_a_library_the_message_names_the_folders_and_the_remedy() {
        let capi = "p/lib/python3.12/dist-packages/onnxruntime/capi";
        let tree = Tree::new("none", &["p/bin/python3", &format!("{capi}/other.so")]);
        let program_folders = [tree.path("p/bin")];
        let places = LibrarySearchPaths {
            program_folders: &program_folders,
            ..LibrarySearchPaths::default()
        };
        let message = NAME.not_found(&NAME.folders(places));
        for part in ["pip install onnxruntime", "--onnxruntime-library", capi, "'/usr/lib'"] {
            assert!(message.contains(part), "{message}");
        }
    }
}
