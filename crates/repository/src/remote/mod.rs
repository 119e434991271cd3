//! Model repositories that aren't directories on this machine, such as buckets.
//!
//! An object store is listed, and a model's objects are copied into a private directory, where
//! backends find them like files in a local repository:
//!
//! - `listing.rs` (pure) determines which objects belong to which model, and refuses names that
//!   would lead out of the model's directory.
//! - `stamps.rs` (pure) gives changed objects a newer time, which triggers a reload of the model.
//! - `copy.rs` manages the copy of one model: unchanged files are shared with the previous copy,
//!   and the copy is removed when its last user is dropped.
//! - `ahead.rs` begins to copy models while they wait for a thread to load them.
//! - `root.rs` combines these parts for one repository.
//!
//! Requests to a store go through [`RemoteStore`], whose calls return when all work is done. This
//! code deals with no protocols, credentials or asynchronous functions.

mod ahead;
mod copy;
mod listing;
mod root;
mod stamps;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

pub(crate) use copy::ModelCopy;
pub(crate) use root::{FoundModel, RemoteRoot};

/// The URL schemes of repositories in object stores, as in Triton.
const SCHEMES: [&str; 3] = ["s3://", "gs://", "as://"];

/// Returns true if this is the address of a repository in an object store.
#[must_use]
pub fn is_remote(path: &str) -> bool {
    SCHEMES.iter().any(|scheme| path.starts_with(scheme))
}

/// Opens repositories in object stores.
pub trait RemoteConnector: fmt::Debug + Send + Sync {
    /// Opens a repository and checks that it can be listed.
    ///
    /// # Errors
    ///
    /// Returns the reason why the repository can't be listed, in Triton's words if Triton has any.
    fn connect(&self, url: &str) -> Result<RemoteRepository, RemoteError>;
}

/// An opened repository.
#[derive(Clone, Debug)]
pub struct RemoteRepository {
    /// The repository's objects.
    pub store: Arc<dyn RemoteStore>,
    /// The directory for copies of the repository's models.
    pub copies: PathBuf,
}

/// The objects of a repository. Paths are relative to the repository, and folders are separated by
/// `/`.
pub trait RemoteStore: fmt::Debug + Send + Sync {
    /// Lists the objects below a folder; an empty folder means all objects. Returns an error if
    /// there are more than `count_max` objects.
    ///
    /// # Errors
    ///
    /// Returns the reason why the objects can't be listed; [`RemoteError::Name`] if an object's
    /// name is the reason.
    fn list(&self, folder: &str, count_max: usize) -> Result<Vec<RemoteObject>, RemoteError>;

    /// The names of the repository's immediate folders.
    ///
    /// # Errors
    ///
    /// Returns the reason why the folders can't be listed.
    fn folders(&self) -> Result<Vec<String>, RemoteError>;

    /// Begins to copy objects to files, several of them concurrently.
    fn begin(&self, downloads: Vec<ObjectDownload>) -> InFlightDownloads;

    /// The number of free bytes on a directory's file system, if known.
    fn free_bytes(&self, directory: &Path) -> Option<u64> {
        let space = rustix::fs::statvfs(directory).ok()?;
        Some(space.f_bavail.saturating_mul(space.f_frsize))
    }
}

/// A function that waits for copies in progress. The results are in the same order as the
/// [`ObjectDownload`]s. Dropping the function stops the copies, so no more files are written.
pub type InFlightDownloads = Box<dyn FnOnce() -> Vec<Result<(), RemoteError>> + Send>;

/// A listed object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteObject {
    /// The object's path in the repository.
    pub path: String,
    /// The object's state when it was listed.
    pub state: ObjectVersion,
}

/// The properties that distinguish an object from a later replacement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectVersion {
    /// The size in bytes.
    pub byte_size: u64,
    /// The content tag, if the store provides one.
    pub etag: Option<String>,
    /// The time at which the object was written, in nanoseconds since the epoch.
    pub modified_ns: i64,
}

/// An object to copy to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectDownload {
    /// The object to copy. If it has been replaced since it was listed, nothing is copied.
    pub object: RemoteObject,
    /// The target file, in an existing directory. An existing file is replaced.
    pub file: PathBuf,
}

/// A reason why a request to a store failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RemoteError {
    /// The object has changed since it was listed.
    #[error("'{path}' changed while it was read")]
    Changed {
        /// The object's path.
        path: String,
    },
    /// The folder specified as a repository is empty, in Triton's words.
    #[error("repository path is not a valid directory")]
    NotDirectory,
    /// An object's name is not a valid path. Other folders can be listed.
    #[error("{0}")]
    Name(String),
    /// Any other reason.
    #[error("{0}")]
    Failed(String),
}
