//! A model's directory. Names from a configuration can't lead out of it.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use galatea_backend::FileReadLimit;
use galatea_infer::Status;
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::beneath::{self, OpenDirectory, SymlinkPolicy};
use crate::remote::ModelCopy;
use crate::temporary::TemporaryDirectory;

/// A model's directory. It is reopened for each use, so a loaded model holds no descriptor for it,
/// and a repository may be replaced while the server runs.
#[derive(Clone, Debug)]
pub struct ModelDirectory {
    path: PathBuf,
    symlinks: SymlinkPolicy,
    /// Removes the directory when its last user is dropped.
    _temporary: Option<Arc<TemporaryDirectory>>,
    /// The copy behind this directory, for a model in an object store. It may still be incomplete.
    remote: Option<Arc<ModelCopy>>,
}

impl ModelDirectory {
    pub(crate) const fn new(path: PathBuf, symlinks: SymlinkPolicy) -> Self {
        Self { path, symlinks, _temporary: None, remote: None }
    }

    /// Creates the directory of a model in an object store.
    pub(crate) fn of_copy(copy: Arc<ModelCopy>) -> Self {
        let path = copy.path().to_owned();
        Self { remote: Some(copy), ..Self::new(path, SymlinkPolicy::Beneath) }
    }

    /// Makes the directory a temporary one, removed when its last user is dropped.
    pub(crate) fn with_temporary(self, temporary: TemporaryDirectory) -> Self {
        Self { _temporary: Some(Arc::new(temporary)), ..self }
    }

    /// The path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path with all links resolved, so that a replacement directory has a different path. For
    /// a model in an object store, this is the model's address.
    #[must_use]
    pub fn real_path(&self) -> PathBuf {
        if let Some(copy) = &self.remote {
            return copy.url().to_owned();
        }
        std::fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone())
    }

    /// Resolves a name from a configuration to a file or directory in the model's directory.
    ///
    /// # Errors
    ///
    /// Returns `InvalidArgument` if `name` leads out of the directory or is neither a file nor a
    /// directory, and `NotFound` if it doesn't exist.
    pub fn resolve_entry(&self, name: &str) -> Result<PathBuf, Status> {
        self.resolve_in(Path::new(""), name)
    }

    /// The path for messages: the location of the model, not of its copy.
    #[must_use]
    pub fn display_path(&self) -> &Path {
        self.remote.as_ref().map_or(&self.path, |copy| copy.url())
    }

    /// Begins to download all of the model's files, in anticipation of a [`ModelDirectory::fetch`].
    pub(crate) fn fetch_ahead(&self) {
        self.remote.iter().for_each(ModelCopy::fetch_ahead);
    }

    /// Downloads all of the model's missing files. Only a model in an object store can have missing
    /// files. Concurrent calls wait for the same files.
    ///
    /// # Errors
    ///
    /// Returns an error if a file can't be copied.
    pub fn fetch(&self) -> Result<(), Status> {
        self.remote.as_ref().map_or(Ok(()), |copy| copy.fetch())
    }

    /// The sizes of a version's files in the listing of the object store, in bytes. `None` for a
    /// model on this machine.
    pub(crate) fn listed_version_bytes(&self, version: i64) -> Option<u64> {
        self.remote.as_ref().map(|copy| copy.listing.version_bytes(version))
    }

    pub(crate) fn open(&self) -> io::Result<OpenDirectory> {
        OpenDirectory::open(&self.path, self.symlinks)
    }

    pub(crate) fn resolve_in(&self, folder: &Path, name: &str) -> Result<PathBuf, Status> {
        let inside = folder.join(checked_relative(name)?);
        match self.open().and_then(|directory| Ok(directory.locate(&inside)?)) {
            Ok(handle) => {
                let kind = beneath::file_type(&handle).map_err(io::Error::from);
                // Opening a named pipe would block until another process writes to it.
                match kind {
                    Ok(FileType::RegularFile | FileType::Directory) => Ok(self.path.join(inside)),
                    Ok(_) => {
                        let error = io::Error::other("neither a file nor a directory");
                        Err(self.open_error(&inside, name, error))
                    }
                    Err(error) => Err(self.open_error(&inside, name, error)),
                }
            }
            Err(error) => Err(self.open_error(&inside, name, error)),
        }
    }

    pub(crate) fn read_in(
        &self,
        folder: &Path,
        name: &str,
        size: FileReadLimit,
    ) -> Result<Vec<u8>, Status> {
        let inside = folder.join(checked_relative(name)?);
        let content = self
            .open()
            .and_then(|directory| directory.open_file(&inside))
            .map_err(|error| self.open_error(&inside, name, error))?;
        read_sized(content, size).map_err(|reason| {
            Status::invalid_argument(format!("file '{}' {reason}", inside.display()))
        })
    }

    /// Reads a file like [`ModelDirectory::read_in`]. If it can't be opened, the error is Triton's
    /// and contains the file's path.
    pub(crate) fn read_text_file(
        &self,
        folder: &Path,
        name: &str,
        size: FileReadLimit,
    ) -> Result<Vec<u8>, Status> {
        let inside = folder.join(checked_relative(name)?);
        let opened = self.open().and_then(|directory| directory.open_file(&inside));
        match opened.map_err(|error| error.raw_os_error().map(Errno::from_raw_os_error)) {
            Err(Some(errno)) if errno != Errno::XDEV => Err(Status::internal(format!(
                "failed to open text file for read {}: {}",
                self.display_path().join(inside).display(),
                io::Error::from(errno).to_string().split(" (os error").next().unwrap_or_default()
            ))),
            Ok(_) | Err(_) => self.read_in(folder, name, size),
        }
    }

    fn open_error(&self, inside: &Path, name: &str, error: io::Error) -> Status {
        let path = inside;
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::XDEV) => leads_out(name),
            Some(Errno::NOENT | Errno::NOTDIR) => {
                Status::not_found(format!("there is no '{}'", path.display()))
            }
            _ => Status::invalid_argument(format!("can't open '{}': {error}", path.display())),
        }
    }
}

/// Reads a whole file of the expected size. The size is checked first, so an oversized file is not
/// read.
fn read_sized(file: File, size: FileReadLimit) -> Result<Vec<u8>, String> {
    let cannot = |error: io::Error| format!("can't be read: {error}");
    let length = file.metadata().map_err(cannot)?.len();
    let bytes_max = match size {
        FileReadLimit::AtMost(bytes_max) | FileReadLimit::Beginning(bytes_max) => bytes_max,
    };
    let fits = |length: u64| match size {
        FileReadLimit::AtMost(bytes_max) if length > bytes_max => {
            Err(format!("has {length} bytes, but may have {bytes_max} at most"))
        }
        FileReadLimit::AtMost(_) | FileReadLimit::Beginning(_) => Ok(()),
    };
    fits(length)?;
    let mut bytes = Vec::new();
    let read_max = match size {
        // Reading one more byte shows whether the file is too long.
        FileReadLimit::AtMost(_) => bytes_max.saturating_add(1),
        FileReadLimit::Beginning(_) => bytes_max,
    };
    file.take(read_max).read_to_end(&mut bytes).map_err(cannot)?;
    // The file may have changed since its size was checked.
    fits(u64::try_from(bytes.len()).unwrap_or(u64::MAX))?;
    Ok(bytes)
}

/// Checks that a name leads only downwards from its starting point. `a/../b` is refused even though
/// it would stay inside.
pub(crate) fn checked_relative(name: &str) -> Result<&Path, Status> {
    let path = Path::new(name);
    let goes_down = path.components().all(|part| matches!(part, Component::Normal(_)));
    if name.is_empty() || name.contains('\0') || !goes_down {
        return Err(leads_out(name));
    }
    Ok(path)
}

fn leads_out(name: &str) -> Status {
    Status::invalid_argument(format!(
        "file name '{}' must stay inside the model's directory",
        name.escape_debug()
    ))
}
