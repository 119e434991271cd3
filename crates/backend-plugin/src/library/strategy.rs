//! The search for a model's batching strategy: in the place that its configuration specifies,
//! otherwise in the places where backends are searched for.

use std::path::{Component, Path, PathBuf};

use galatea_backend::ModelFiles;
use galatea_infer::Status;

use super::search::LibrarySearchScope;

/// The model parameter that specifies the library.
const PARAMETER: &str = "TRITON_BATCH_STRATEGY_PATH";
/// The default library name.
const LIBRARY: &str = "batchstrategy.so";

/// The parameters for a search.
pub(crate) struct StrategySearch<'a> {
    /// The backend's name.
    pub(crate) backend: &'a str,
    /// The directory that contains all backends.
    pub(crate) backend_directory: &'a Path,
    /// The model's files.
    pub(crate) files: &'a dyn ModelFiles,
    /// The places to search, which exclude the model's files if a client supplied them.
    pub(crate) scope: LibrarySearchScope,
    /// The library's path from the configuration parameter.
    pub(crate) path: Option<&'a str>,
}

impl<'a> StrategySearch<'a> {
    /// The value of the parameter that specifies the library.
    pub(crate) fn parameter(spec: &'a galatea_config::ModelSpec) -> Option<&'a str> {
        spec.parameters.get(PARAMETER).map(String::as_str)
    }

    /// Returns the library, if there is one.
    pub(crate) fn run(&self) -> Result<Option<PathBuf>, Status> {
        if let Some(path) = self.path {
            return self.configured_library(path).map(Some);
        }
        let in_repository: &[&Path] = match self.scope {
            LibrarySearchScope::All => &[self.files.version_path(), self.files.model_path()],
            LibrarySearchScope::BackendDirectory => &[],
        };
        for place in in_repository {
            let library = place.join(LIBRARY);
            if library.is_file() {
                return if self.is_beneath(&library) {
                    Ok(Some(library))
                } else {
                    self.escape_error()
                };
            }
        }
        let library = self.backend_directory.join(self.backend).join(LIBRARY);
        Ok(library.is_file().then_some(library))
    }

    /// Finds a library that the configuration specifies. As in Triton, its path is relative to the
    /// server's working directory; it may also be relative to the model's directory. The file must
    /// be in the model's directory.
    fn configured_library(&self, path: &str) -> Result<PathBuf, Status> {
        match self.scope {
            LibrarySearchScope::All => {}
            LibrarySearchScope::BackendDirectory => {
                return Err(Status::invalid_argument(format!(
                    "{PARAMETER} cannot be specified with model files that come with a request"
                )));
            }
        }
        if path.is_empty() || path.contains('\0') {
            return Err(Status::invalid_argument(format!("{PARAMETER} is not a path")));
        }
        let candidates = [PathBuf::from(path), self.files.model_path().join(path)];
        let there: Vec<&PathBuf> = candidates.iter().filter(|one| one.is_file()).collect();
        if let Some(library) = there.iter().find(|one| self.is_beneath(one)) {
            return Ok(PathBuf::from(library));
        }
        let [_, from_model] = &candidates;
        if there.is_empty() && self.would_be_beneath(from_model) {
            let text = format!("Batching library path not found: {path}");
            return Err(Status::not_found(text));
        }
        self.escape_error()
    }

    fn escape_error<T>(&self) -> Result<T, Status> {
        Err(Status::invalid_argument(format!(
            "Batching library path escapes model repository: {PARAMETER} and {LIBRARY} must lead \
             to a file in '{}'",
            self.files.model_path().display()
        )))
    }

    /// Returns true if the library is in the model's directory after links are resolved.
    fn is_beneath(&self, library: &Path) -> bool {
        let real = library.canonicalize().ok();
        let directory = self.files.model_path().canonicalize().ok();
        real.zip(directory).is_some_and(|(real, directory)| real.starts_with(directory))
    }

    /// Like [`Self::is_beneath`], but for a file that doesn't exist: considers only the path.
    fn would_be_beneath(&self, library: &Path) -> bool {
        let Ok(relative) = library.strip_prefix(self.files.model_path()) else { return false };
        let mut depth = 0_i64;
        relative.components().all(|component| {
            depth += match component {
                Component::Normal(_) => 1,
                Component::ParentDir => -1,
                Component::CurDir | Component::RootDir | Component::Prefix(_) => 0,
            };
            depth >= 0
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::testing::{Files, Folder};

    fn found(
        folder: &Folder,
        scope: LibrarySearchScope,
        path: Option<&str>,
    ) -> Result<String, String> {
        let files = Files::new(&folder.path().join("models/m"), 1);
        let backend_directory = folder.path().join("backends");
        let (backend, backend_directory) = ("b", backend_directory.as_path());
        let search = StrategySearch { backend, backend_directory, files: &files, scope, path };
        let found = search.run().map_err(|status| status.to_string())?;
        let shown = |library: PathBuf| {
            library.strip_prefix(folder.path()).unwrap().to_string_lossy().into_owned()
        };
        Ok(found.map(shown).unwrap_or_default())
    }

    #[test]
    fn the_nearest_library_wins() {
        let folder = Folder::new();
        folder.directory("models/m/1");
        assert_eq!(found(&folder, LibrarySearchScope::All, None), Ok(String::new()));
        for place in ["backends/b", "models/m", "models/m/1"] {
            let library = format!("{place}/{LIBRARY}");
            folder.file(&library);
            assert_eq!(found(&folder, LibrarySearchScope::All, None), Ok(library));
            let own = String::from("backends/b/batchstrategy.so");
            assert_eq!(found(&folder, LibrarySearchScope::BackendDirectory, None), Ok(own));
        }
    }

    #[test]
    fn a_configured_library_must_belong_to_the_model() {
        let folder = Folder::new();
        for file in ["models/m/1/a.so", "models/m/b.so", "models/other/c.so", "models/mm/d.so"] {
            folder.file(file);
        }
        symlink("../other/c.so", folder.path().join("models/m/link.so")).unwrap();
        symlink("../../other/c.so", folder.path().join("models/m/1/batchstrategy.so")).unwrap();
        let named = |path: &str| found(&folder, LibrarySearchScope::All, Some(path));
        let absolute = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        assert_eq!(named("1/a.so"), Ok(String::from("models/m/1/a.so")));
        assert_eq!(named(&absolute("models/m/b.so")), Ok(String::from("models/m/b.so")));
        for path in ["../other/c.so", "link.so", "../none.so", "1/../../none.so", "/none.so"] {
            assert!(named(path).unwrap_err().contains("escapes"), "{path}");
        }
        assert!(named(&absolute("models/mm/d.so")).unwrap_err().contains("escapes"));
        assert!(found(&folder, LibrarySearchScope::All, None).unwrap_err().contains("escapes"));
        assert!(named("none.so").unwrap_err().contains("not found: none.so"));
        assert!(named("1").unwrap_err().contains("not found: 1"));
        assert!(named("").unwrap_err().contains("is not a path"));
        let from_client = found(&folder, LibrarySearchScope::BackendDirectory, Some("b.so"));
        assert!(from_client.unwrap_err().contains("come with a request"));
    }
}
