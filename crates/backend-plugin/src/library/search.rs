//! The search for the library of a backend: as in Triton, in the version's directory, the
//! model's directory, and the backend's directory.

use std::fs;
use std::path::{Component, Path, PathBuf};

use galatea_backend::ModelFiles;
use galatea_infer::Status;

/// The file that marks a directory as a backend written in Python.
const PYTHON_BACKEND_FILE: &str = "model.py";
/// The environment of such a backend: an archive that its models use unless they name another.
const PYTHON_ENVIRONMENT_FILE: &str = "pb_exec_env_model.py.tar.gz";
/// The backend that executes such backends.
const PYTHON_BACKEND: &str = "python";

/// Where the library of a model's backend may be.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SearchScope {
    /// In the model's directories and in the directory of backends.
    All,
    /// Only in the directory of backends: the model's files come from a client, and a
    /// client must not bring code.
    BackendDirectory,
}

/// A library, and how it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BackendLibrary {
    /// The library.
    pub(crate) library: PathBuf,
    /// The directory that `TRITONBACKEND_BackendArtifacts` returns.
    pub(crate) directory: PathBuf,
    /// The name of the backend whose settings apply.
    pub(crate) settings_name: String,
    /// The configuration's `runtime` if the backend is written in Python.
    pub(crate) runtime: Option<&'static str>,
    /// The archive with the environment of a backend written in Python.
    pub(crate) environment: Option<PathBuf>,
}

/// The parameters of a search.
pub(crate) struct BackendSearch<'a> {
    /// The backend's name.
    pub(crate) backend: &'a str,
    /// The library's name from the configuration; empty for the default.
    pub(crate) runtime: &'a str,
    /// The directory that contains all backends.
    pub(crate) backend_directory: &'a Path,
    /// The model's files.
    pub(crate) files: &'a dyn ModelFiles,
    /// Whether the model's files may include libraries.
    pub(crate) scope: SearchScope,
    /// The model's name, for messages.
    pub(crate) model: &'a str,
}

/// The name of a backend's library.
pub(crate) fn library_name(backend: &str) -> String {
    format!("libtriton_{backend}.so")
}

impl BackendSearch<'_> {
    pub(crate) fn run(&self) -> Result<BackendLibrary, Status> {
        if check_component("backend", self.backend).is_err() {
            return Err(self.not_found());
        }
        if self.runtime == PYTHON_BACKEND_FILE {
            return self.python_based();
        }
        let usual = library_name(self.backend);
        let name = if self.runtime.is_empty() { &usual } else { self.runtime };
        if check_component("runtime", name).is_err() {
            return Err(Status::invalid_argument(format!(
                "backend library name '{}' escapes backend directory '{}', for model '{}', check \
                 model config runtime field",
                name.escape_debug(),
                self.backend_directory.join(self.backend).display(),
                self.model
            )));
        }
        let directories = self.directories();
        if let Some(found) = self.library(name, &directories)? {
            return Ok(found);
        }
        let own = self.backend_directory.join(self.backend);
        if self.runtime.is_empty() && own.join(PYTHON_BACKEND_FILE).is_file() {
            return self.python_based();
        }
        if self.runtime.is_empty() {
            return Err(self.not_found());
        }
        Err(self.library_not_found(name, &directories))
    }

    fn library_not_found(&self, name: &str, directories: &[(PathBuf, bool)]) -> Status {
        let searched: String =
            directories.iter().map(|(place, _)| format!("'{}' ", place.display())).collect();
        Status::invalid_argument(format!(
            "unable to find backend library '{name}' for model '{}', searched: {searched}",
            self.model
        ))
    }

    fn not_found(&self) -> Status {
        Status::invalid_argument(format!(
            "unable to find backend library for backend '{}', try specifying runtime on the model \
             configuration.",
            self.backend.escape_debug()
        ))
    }

    /// The directories, and whether each belongs to the model.
    fn directories(&self) -> Vec<(PathBuf, bool)> {
        let own = (self.backend_directory.join(self.backend), false);
        match self.scope {
            SearchScope::All => vec![
                (self.files.version_path().to_owned(), true),
                (self.files.model_path().to_owned(), true),
                own,
            ],
            SearchScope::BackendDirectory => vec![own],
        }
    }

    fn library(
        &self,
        name: &str,
        directories: &[(PathBuf, bool)],
    ) -> Result<Option<BackendLibrary>, Status> {
        for (place, in_repository) in directories {
            let library = place.join(name);
            if !library.is_file() {
                continue;
            }
            if *in_repository {
                check_beneath(&library, self.files.model_path())?;
            }
            return Ok(Some(BackendLibrary {
                library,
                directory: place.clone(),
                settings_name: self.backend.to_owned(),
                runtime: None,
                environment: None,
            }));
        }
        Ok(None)
    }

    /// A backend written in Python: the Python backend's library, wherever a library of this
    /// backend may be or in its own directory, and `model.py` in the backend's directory.
    fn python_based(&self) -> Result<BackendLibrary, Status> {
        let name = library_name(PYTHON_BACKEND);
        let mut directories = self.directories();
        directories.push((self.backend_directory.join(PYTHON_BACKEND), false));
        let found = self.library(&name, &directories)?;
        let found = found.ok_or_else(|| self.library_not_found(&name, &directories))?;
        let directory = self.backend_directory.join(self.backend);
        let file = directory.join(PYTHON_BACKEND_FILE);
        if !file.is_file() {
            return Err(Status::invalid_argument(format!(
                "unable to find Python backend based backend library '{PYTHON_BACKEND_FILE}' for \
                 model '{}', searched: '{}'",
                self.model,
                file.display()
            )));
        }
        let environment = directory.join(PYTHON_ENVIRONMENT_FILE);
        Ok(BackendLibrary {
            directory,
            settings_name: PYTHON_BACKEND.to_owned(),
            runtime: Some(PYTHON_BACKEND_FILE),
            environment: Some(environment).filter(|archive| archive.is_file()),
            ..found
        })
    }
}

/// Checks that a name from a configuration or a flag does not lead to another directory.
pub(crate) fn check_component(field: &str, name: &str) -> Result<(), Status> {
    let mut components = Path::new(name).components();
    let plain = matches!(
        (components.next(), components.next()),
        (Some(Component::Normal(only)), None) if only.to_str() == Some(name)
    );
    if plain && !name.contains('\0') {
        return Ok(());
    }
    Err(Status::invalid_argument(format!(
        "{field} '{}' is not the name of a file: it must not lead to another directory",
        name.escape_debug()
    )))
}

/// Checks that a link in a repository does not lead out of its model.
fn check_beneath(library: &Path, directory: &Path) -> Result<(), Status> {
    let real = |path: &Path| {
        fs::canonicalize(path).map_err(|error| {
            Status::invalid_argument(format!(
                "can't find out where '{}' is: {error}",
                path.display()
            ))
        })
    };
    if real(library)?.starts_with(real(directory)?) {
        return Ok(());
    }
    Err(Status::invalid_argument(format!(
        "backend library '{}' escapes the directory '{}'",
        library.display(),
        directory.display()
    )))
}

/// Whether a model contains its own library for its backend.
pub(crate) fn model_has_library(backend: &str, directories: &[&Path]) -> bool {
    let name = library_name(backend);
    check_component("backend", backend).is_ok()
        && directories.iter().any(|directory| directory.join(&name).is_file())
}

/// Whether the directory of backends contains this one, as a library or in Python.
pub(crate) fn is_installed(backend: &str, backend_directory: &Path) -> bool {
    let own = backend_directory.join(backend);
    let names = [&library_name(backend), PYTHON_BACKEND_FILE];
    check_component("backend", backend).is_ok() && names.iter().any(|name| own.join(name).is_file())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::testing::{Files, Folder};

    fn found(folder: &Folder, backend: &str, runtime: &str) -> Result<BackendLibrary, String> {
        found_in(folder, backend, runtime, SearchScope::All)
    }

    fn found_in(
        folder: &Folder,
        backend: &str,
        runtime: &str,
        scope: SearchScope,
    ) -> Result<BackendLibrary, String> {
        let files = Files::new(&folder.path().join("models/m"), 1);
        let backend_directory = folder.path().join("backends");
        let search = BackendSearch {
            backend,
            runtime,
            backend_directory: &backend_directory,
            files: &files,
            scope,
            model: "m",
        };
        search.run().map_err(|status| status.message().to_owned())
    }

    fn check(folder: &Folder, backend: &str, runtime: &str, expected: &str) {
        let found = found(folder, backend, runtime).unwrap();
        assert_eq!(found.library, folder.path().join(expected), "{backend} {runtime}");
    }

    #[test]
    fn the_nearest_library_wins() {
        let folder = Folder::new();
        folder.directory("models/m/1");
        folder.file("backends/b/libtriton_b.so");
        check(&folder, "b", "", "backends/b/libtriton_b.so");
        folder.file("models/m/libtriton_b.so");
        check(&folder, "b", "", "models/m/libtriton_b.so");
        folder.file("models/m/1/libtriton_b.so");
        check(&folder, "b", "", "models/m/1/libtriton_b.so");
        folder.file("backends/b/libother.so");
        check(&folder, "b", "libother.so", "backends/b/libother.so");
        let error = found(&folder, "c", "").unwrap_err();
        assert_eq!(
            error,
            "unable to find backend library for backend 'c', try specifying runtime on the model \
             configuration."
        );
        let error = found(&folder, "c", "libx.so").unwrap_err();
        assert!(error.starts_with("unable to find backend library 'libx.so' for model 'm'"));
        let last = folder.path().join("backends/c");
        assert!(error.ends_with(&format!(" '{}' ", last.display())), "{error}");
    }

    #[test]
    fn libraries_from_clients_are_ignored() {
        let folder = Folder::new();
        folder.directory("models/m/1");
        folder.file("models/m/libtriton_b.so");
        folder.file("models/m/1/libtriton_b.so");
        let scope = SearchScope::BackendDirectory;
        let error = found_in(&folder, "b", "libtriton_b.so", scope).unwrap_err();
        assert!(!error.contains("models"), "{error}");
        folder.file("backends/b/libtriton_b.so");
        let found = found_in(&folder, "b", "", SearchScope::BackendDirectory).unwrap();
        assert_eq!(found.library, folder.path().join("backends/b/libtriton_b.so"));
    }

    #[test]
    fn nothing_outside_the_directories_is_opened() {
        let folder = Folder::new();
        folder.directory("models/m/1");
        folder.file("elsewhere/libtriton_b.so");
        folder.file("elsewhere/libtriton_c.so");
        for (backend, runtime) in [
            ("../../elsewhere/b", ""),
            ("b", "../libtriton_b.so"),
            ("..", ""),
            ("b", "/x"),
            (".", ""),
        ] {
            let error = found(&folder, backend, runtime).unwrap_err();
            let is_refused = error.starts_with("unable to find backend library for backend '")
                || error.ends_with("', for model 'm', check model config runtime field");
            assert!(is_refused, "{error}");
        }
        let link = folder.path().join("models/m/1/libtriton_b.so");
        symlink(folder.path().join("elsewhere/libtriton_b.so"), link).unwrap();
        assert!(found(&folder, "b", "").unwrap_err().contains("escapes the directory"));
        // The operator may create links in the directory of backends.
        folder.directory("backends/c");
        let link = folder.path().join("backends/c/libtriton_c.so");
        symlink(folder.path().join("elsewhere/libtriton_c.so"), link).unwrap();
        check(&folder, "c", "", "backends/c/libtriton_c.so");
    }

    #[test]
    fn a_backend_is_installed_if_its_directory_has_it() {
        let folder = Folder::new();
        folder.directory("backends/empty");
        folder.file("backends/c/libtriton_c.so");
        folder.file("backends/other/libtriton_c.so");
        folder.file("backends/py/model.py");
        let expected = [
            ("c", true),
            ("py", true),
            ("other", false),
            ("empty", false),
            ("../backends/c", false),
        ];
        for (backend, is) in expected {
            let directory = folder.path().join("backends");
            assert_eq!(is_installed(backend, &directory), is, "{backend}");
        }
    }

    #[test]
    fn a_backend_may_be_written_in_python() {
        let folder = Folder::new();
        folder.directory("models/m/1");
        folder.file("backends/b/model.py");
        let error = found(&folder, "b", "").unwrap_err();
        let places = ["models/m/1", "models/m", "backends/b", "backends/python"];
        let places = places.map(|place| format!("'{}' ", folder.path().join(place).display()));
        let expected = "unable to find backend library 'libtriton_python.so' for model 'm', \
                        searched: ";
        assert_eq!(error, format!("{expected}{}", places.concat()));
        folder.file("backends/python/libtriton_python.so");
        let of_b = found(&folder, "b", "").unwrap();
        assert_eq!(of_b.directory, folder.path().join("backends/b"));
        assert_eq!((of_b.settings_name.as_str(), of_b.runtime), ("python", Some("model.py")));
        assert_eq!(of_b.environment, None);
        check(&folder, "b", "model.py", "backends/python/libtriton_python.so");
        let error = found(&folder, "c", "model.py").unwrap_err();
        let path = folder.path().join("backends/c/model.py");
        let expected = "unable to find Python backend based backend library 'model.py' for model \
                        'm', searched: ";
        assert_eq!(error, format!("{expected}'{}'", path.display()));
    }

    #[test]
    fn a_backend_in_python_may_have_its_own_library_and_environment() {
        let folder = Folder::new();
        folder.directory("models/m/1");
        folder.file("backends/b/model.py");
        folder.file("backends/python/libtriton_python.so");
        folder.file("backends/b/pb_exec_env_model.py.tar.gz");
        let of_b = found(&folder, "b", "").unwrap();
        let archive = folder.path().join("backends/b/pb_exec_env_model.py.tar.gz");
        assert_eq!(of_b.environment, Some(archive));
        for nearer in ["backends/b", "models/m", "models/m/1"] {
            let library = format!("{nearer}/libtriton_python.so");
            folder.file(&library);
            check(&folder, "b", "", &library);
            assert_eq!(found(&folder, "b", "").unwrap().directory, of_b.directory);
        }
        let installed = found_in(&folder, "b", "", SearchScope::BackendDirectory).unwrap();
        assert_eq!(installed.library, folder.path().join("backends/b/libtriton_python.so"));
    }
}
