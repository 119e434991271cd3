//! Opens the shared library of a runtime.

use std::error::Error;
use std::path::{Path, PathBuf};

use galatea_backend::{FileFingerprint, is_library_truncated};
use galatea_infer::Status;

use crate::LibrarySearchSpec;

/// The file of a library that was opened.
#[derive(Clone, Debug)]
pub struct LibraryFile {
    path: PathBuf,
    fingerprint: Option<FileFingerprint>,
}

impl LibraryFile {
    /// The path from which the library was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The fingerprint that the file had before it was opened; `None` if it is unknown.
    #[must_use]
    pub const fn fingerprint(&self) -> Option<&FileFingerprint> {
        self.fingerprint.as_ref()
    }

    /// Returns true if the opened file has since been replaced by another.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        self.fingerprint.is_some() && FileFingerprint::of(&self.path) != self.fingerprint
    }
}

impl LibrarySearchSpec {
    /// Opens the library at `path` by calling `open`, whose error is the reason why the library
    /// can't be used.
    ///
    /// # Errors
    ///
    /// UNAVAILABLE: the file is cut short, or `open` failed.
    pub fn open<T>(
        &self,
        path: &Path,
        open: impl FnOnce() -> Result<T, String>,
    ) -> Result<(T, LibraryFile), Status> {
        let fingerprint = FileFingerprint::of(path);
        let opened = if is_library_truncated(path) {
            Err(String::from("the file is cut short"))
        } else {
            open()
        };
        let opened = opened.map_err(|reason| {
            let Self { framework, .. } = self;
            let path = path.display();
            Status::unavailable(format!("can't use '{path}' as {framework}'s library: {reason}"))
        })?;
        Ok((opened, LibraryFile { path: path.to_path_buf(), fingerprint }))
    }
}

/// The error's message, followed by its causes' messages, which include the loader's message.
pub fn with_causes(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: LibrarySearchSpec = LibrarySearchSpec {
        framework: "Runtime",
        file: "libruntime.so",
        package: "runtime",
        folder: "runtime",
        flag: "--runtime-library",
        variable: "GALATEA_RUNTIME_LIBRARY",
    };

    #[test]
    fn an_error_names_the_file_and_the_framework() {
        let path = Path::new("/nowhere/libruntime.so");
        let refused = SPEC.open(path, || Err::<(), _>(String::from("it isn't there")));
        let text = "can't use '/nowhere/libruntime.so' as Runtime's library: it isn't there";
        assert_eq!(refused.unwrap_err().message(), text);
    }

    #[test]
    fn a_file_is_replaced_when_its_size_changes() {
        let path = std::env::temp_dir().join(format!("galatea-opened-{}", std::process::id()));
        std::fs::write(&path, "library").unwrap();
        let (_, file) = SPEC.open(&path, || Ok(())).unwrap();
        assert!(!file.is_replaced());
        std::fs::write(&path, "a longer library").unwrap();
        assert!(file.is_replaced());
        std::fs::remove_file(&path).unwrap();
        let (_, missing) = SPEC.open(&path, || Ok(())).unwrap();
        assert!(!missing.is_replaced());
    }
}
