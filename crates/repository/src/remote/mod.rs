//! Model repositories that aren't directories of this machine, such as buckets.
//!
//! An object store is listed, and a model's objects are copied into a private directory, where
//! backends find them like the files of a local repository:
//!
//! - `listing.rs` (pure) tells which objects belong to which model, and refuses names that
//!   would lead out of its directory.
//! - `stamps.rs` (pure) gives changed objects a newer time, which causes a model to be reloaded.
//! - `copy.rs` is the copy of one model: unchanged files are shared with the previous copy, and it
//!   is removed when its last user is dropped.
//! - `ahead.rs` begins copies of models that wait for a thread to load them.
//! - `root.rs` combines them for one repository.
//!
//! Requests to a store are behind [`RemoteStore`]: a call returns when all is done. This code knows
//! no protocols, credentials or asynchronous functions.

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

/// The schemes of repositories in object stores, as in Triton.
const SCHEMES: [&str; 3] = ["s3://", "gs://", "as://"];

/// Returns true if this is the address of a repository in an object store.
#[must_use]
pub fn is_remote(path: &str) -> bool {
    SCHEMES.iter().any(|scheme| path.starts_with(scheme))
}

/// Opens repositories in object stores.
pub trait RemoteConnector: fmt::Debug + Send + Sync {
    /// Opens a repository, and checks that it can be listed.
    ///
    /// # Errors
    ///
    /// The reason why it can't be listed, in Triton's words where it has any.
    fn connect(&self, url: &str) -> Result<RemoteRepository, RemoteError>;
}

/// An opened repository.
#[derive(Clone, Debug)]
pub struct RemoteRepository {
    /// The repository's objects.
    pub store: Arc<dyn RemoteStore>,
    /// The directory in which copies of its models are made.
    pub copies: PathBuf,
}

/// The objects of a repository. Paths are relative to the repository, and folders are separated by
/// `/`.
pub trait RemoteStore: fmt::Debug + Send + Sync {
    /// Lists the objects below a folder; an empty folder means all objects. Listing ends with an
    /// error when there are more than `count_max`.
    ///
    /// # Errors
    ///
    /// The reason why they can't be listed; [`RemoteError::Name`] if it is an object's name.
    fn list(&self, folder: &str, count_max: usize) -> Result<Vec<RemoteObject>, RemoteError>;

    /// The names of the repository's immediate folders.
    ///
    /// # Errors
    ///
    /// The reason why they can't be listed.
    fn folders(&self) -> Result<Vec<String>, RemoteError>;

    /// Begins to copy objects to files, several at a time.
    fn begin(&self, downloads: Vec<Download>) -> InFlightCopies;

    /// The number of free bytes on a directory's file system, if known.
    fn free_bytes(&self, directory: &Path) -> Option<u64> {
        let space = rustix::fs::statvfs(directory).ok()?;
        Some(space.f_bavail.saturating_mul(space.f_frsize))
    }
}

/// Waits for copies in progress. The results are in the order of their [`Download`]s. Dropping this
/// stops the copies, so that no more files are written.
pub type InFlightCopies = Box<dyn FnOnce() -> Vec<Result<(), RemoteError>> + Send>;

/// A listed object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteObject {
    /// The object's path in the repository.
    pub path: String,
    /// The object's state when it was listed.
    pub state: ObjectState,
}

/// The properties that distinguish an object from another one in its place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectState {
    /// The size in bytes.
    pub byte_size: u64,
    /// The tag of its content, if the store gives one.
    pub etag: Option<String>,
    /// The time at which it was written, in nanoseconds since the epoch.
    pub modified_ns: i64,
}

/// An object to be copied to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Download {
    /// The object. If it has been replaced since it was listed, nothing is copied.
    pub object: RemoteObject,
    /// The file, in an existing directory. An existing file is replaced.
    pub file: PathBuf,
}

/// A reason why a request to a store failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RemoteError {
    /// The object is no longer the one that was listed.
    #[error("'{path}' changed while it was read")]
    Changed {
        /// The object's path.
        path: String,
    },
    /// The folder that was to be a repository is empty, in Triton's words.
    #[error("repository path is not a valid directory")]
    NotDirectory,
    /// An object's name can't be a path. Other folders can be listed.
    #[error("{0}")]
    Name(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}
