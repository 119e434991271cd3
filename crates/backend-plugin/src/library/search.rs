//! The search for a backend library. As in Triton, it covers the version's directory, the model's
//! directory and the backend's directory.

use std::fs;
use std::path::{Component, Path, PathBuf};

use galatea_backend::ModelFiles;
use galatea_infer::Status;

/// The file whose presence marks a backend as written in Python.
const PYTHON_BACKEND_FILE: &str = "model.py";
/// The environment archive of such a backend, for models that don't specify another environment.
const PYTHON_ENVIRONMENT_FILE: &str = "pb_exec_env_model.py.tar.gz";
/// The backend that executes backends written in Python.
const PYTHON_BACKEND: &str = "python";

/// The places where a model's backend library may be.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum LibrarySearchScope {
    /// In the model's directories and in the backend directory.
    All,
    /// Only in the backend directory. Used when the model's files come from a client, because a
    /// client must not supply code.
    BackendDirectory,
}

/// A backend library and how it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BackendLibrary {
    /// The library.
    pub(crate) library: PathBuf,
    /// The directory that `TRITONBACKEND_BackendArtifacts` returns.
    pub(crate) directory: PathBuf,
    /// The name of the backend whose settings apply.
    pub(crate) settings_name: String,
    /// The configuration's `runtime` value, if the backend is written in Python.
    pub(crate) runtime: Option<&'static str>,
    /// The environment archive of a backend written in Python.
    pub(crate) environment: Option<PathBuf>,
}

/// The parameters for a search.
pub(crate) struct BackendSearch<'a> {
    /// The backend's name.
    pub(crate) backend: &'a str,
    /// The library name from the configuration, or an empty string for the default.
    pub(crate) runtime: &'a str,
    /// The directory that contains all backends.
    pub(crate) backend_directory: &'a Path,
    /// The model's files.
    pub(crate) files: &'a dyn ModelFiles,
    /// The places to search, which exclude the model's files if a client supplied them.
    pub(crate) scope: LibrarySearchScope,
    /// The model's name, for use in messages.
    pub(crate) model: &'a str,
}

/// The file name of a backend library.
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

    fn escapes(&self, name: &str, directory: &Path) -> Status {
        Status::invalid_argument(format!(
            "backend library name '{}' escapes backend directory '{}', for model '{}', check model \
             config runtime field",
            name.escape_debug(),
            directory.display(),
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

    /// The directories to search. The flag is true if the directory belongs to the model.
    fn directories(&self) -> Vec<(PathBuf, bool)> {
        let own = (self.backend_directory.join(self.backend), false);
        match self.scope {
            LibrarySearchScope::All => vec![
                (self.files.version_path().to_owned(), true),
                (self.files.model_path().to_owned(), true),
                own,
            ],
            LibrarySearchScope::BackendDirectory => vec![own],
        }
    }

    fn library(
        &self,
        name: &str,
        directories: &[(PathBuf, bool)],
    ) -> Result<Option<BackendLibrary>, Status> {
        for (place, in_repository) in directories {
            // `join` isn't suitable, because a name that begins with a slash would lead elsewhere.
            let library = PathBuf::from(format!("{}/{name}", place.display()));
            if !library.exists() {
                continue;
            }
            if leads_out(name, &library, place) {
                return Err(self.escapes(name, place));
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

    /// Finds a backend written in Python. This requires `model.py` in the backend's directory and
    /// the Python backend's library, either in that backend's own directory or in any place that is
    /// searched for this backend's library.
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

/// Checks that a name from a configuration or a flag does not point to another directory.
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

/// Returns true if the name leads to an existing file outside the directory. Links that the
/// operator created may point anywhere.
fn leads_out(name: &str, library: &Path, directory: &Path) -> bool {
    let has_parent = Path::new(name).components().any(|one| one == Component::ParentDir);
    let is_beneath = || match (fs::canonicalize(library), fs::canonicalize(directory)) {
        (Ok(library), Ok(directory)) => library.starts_with(directory),
        _ => false,
    };
    has_parent && !is_beneath()
}

/// Checks that a link in a repository doesn't lead outside its model.
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

/// Returns true if the model contains its own backend library.
pub(crate) fn model_has_library(backend: &str, directories: &[&Path]) -> bool {
    let name = library_name(backend);
    check_component("backend", backend).is_ok()
        && directories.iter().any(|directory| directory.join(&name).is_file())
}

/// Returns true if the backend directory contains this backend, either as a library or in Python.
pub(crate) fn is_installed(backend: &str, backend_directory: &Path) -> bool {
    let own = backend_directory.join(backend);
    let names = [&library_name(backend), PYTHON_BACKEND_FILE];
    check_component("backend", backend).is_ok() && names.iter().any(|name| own.join(name).is_file())
}

#[cfg(test)]
mod tests;
