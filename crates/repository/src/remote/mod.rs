//! Model repositories that aren't directories of this machine, such as buckets.
//!
//! An object store is listed, and a model's objects are copied into a private directory, where
//! backends find them as they find the files of a local repository:
//!
//! - `listing.rs` (pure) tells which objects belong to which model, and refuses names that
//!   would lead out of its directory.
//! - `stamps.rs` (pure) gives changed objects a newer time, which is what makes a model load
//!   again.
//! - `copy.rs` is the copy of one model: files that did not change are shared with the copy
//!   before, and it is removed with its last user.
//! - `ahead.rs` begins copies of models that wait for a thread to load them.
//! - `root.rs` puts them together for one repository.
//!
//! Requests to a store are behind [`RemoteStore`]: a call answers when all is done. Nothing here
//! knows a protocol, a credential or an asynchronous function.

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

/// The beginnings of the addresses of repositories in object stores, as in Triton.
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
    /// The reason that keeps it from being listed, in Triton's words where it has any.
    fn connect(&self, url: &str) -> Result<RemoteRepository, RemoteError>;
}

/// A repository that was opened.
#[derive(Clone, Debug)]
pub struct RemoteRepository {
    /// Its objects.
    pub store: Arc<dyn RemoteStore>,
    /// The directory in which copies of its models are made.
    pub copies: PathBuf,
}

/// The objects of a repository. Paths are those below the repository, and folders are separated
/// by `/`.
pub trait RemoteStore: fmt::Debug + Send + Sync {
    /// The objects below a folder; all for the empty one. Listing ends with an error when there
    /// are more than `count_max`.
    ///
    /// # Errors
    ///
    /// The reason that keeps them from being listed; [`RemoteError::Name`] for an object's name.
    fn list(&self, folder: &str, count_max: usize) -> Result<Vec<RemoteObject>, RemoteError>;

    /// The names of the folders that are directly in the repository.
    ///
    /// # Errors
    ///
    /// The reason that keeps them from being listed.
    fn folders(&self) -> Result<Vec<String>, RemoteError>;

    /// Begins to copy objects to files, several at a time.
    fn begin(&self, downloads: Vec<Download>) -> CopiesUnderWay;

    /// The bytes that a directory's file system has left for copies, if it tells.
    fn free_bytes(&self, directory: &Path) -> Option<u64> {
        let space = rustix::fs::statvfs(directory).ok()?;
        Some(space.f_bavail.saturating_mul(space.f_frsize))
    }
}

/// Waits for copies that began. The results are in the order of their [`Download`]s. If it is
/// dropped, the copies end, and no file is written any more.
pub type CopiesUnderWay = Box<dyn FnOnce() -> Vec<Result<(), RemoteError>> + Send>;

/// An object as it was listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteObject {
    /// Its path below the repository.
    pub path: String,
    /// The state that was listed of it.
    pub state: ObjectState,
}

/// The signs that tell an object from another one in its place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectState {
    /// The number of its bytes.
    pub byte_size: u64,
    /// The tag of its content, if the store gives one.
    pub etag: Option<String>,
    /// When it was written, in nanoseconds since the epoch.
    pub modified_ns: i64,
}

/// An object that is to be copied to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Download {
    /// The object. If it is another one by now, nothing is copied.
    pub object: RemoteObject,
    /// The file, in a directory that exists. It is replaced.
    pub file: PathBuf,
}

/// Why a store didn't do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RemoteError {
    /// The object is not the one that was listed any more.
    #[error("'{path}' changed while it was read")]
    Changed {
        /// Its path.
        path: String,
    },
    /// There is nothing in the folder that was to be a repository, in Triton's words.
    #[error("repository path is not a valid directory")]
    NotDirectory,
    /// An object has a name that can't be a path. Other folders can be listed.
    #[error("{0}")]
    Name(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}
