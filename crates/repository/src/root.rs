//! The directory of one repository.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType};
use thiserror::Error;

use crate::beneath::{self, Symlinks};
use crate::directory::ModelDirectory;
use crate::name::check_model_name;

/// Object stores that Triton reads and this server doesn't.
const CLOUD_SCHEMES: [&str; 3] = ["s3://", "gs://", "as://"];

/// Why a repository can't be used at all.
#[derive(Debug, Error)]
pub enum RepositoryError {
    /// It is in an object store.
    #[error(
        "model repository '{path}' is in an object store, which is not supported yet: \
         copy it to a local directory"
    )]
    Cloud {
        /// The address.
        path: String,
    },
    /// There is nothing at the path, in Triton's words.
    #[error("failed to stat file {path}")]
    Missing {
        /// The path.
        path: String,
    },
    /// It is no directory, in Triton's words.
    #[error("repository path is not a valid directory")]
    NotDirectory {
        /// The path.
        path: String,
    },
}

/// The directory of a repository. It is opened anew for each scan and each lookup, because
/// it may be replaced while the server runs, as by a release script that switches a link.
#[derive(Debug)]
pub(crate) struct Root {
    path: PathBuf,
}

/// The entries of a repository's directory that are, or may be, directories of models.
pub(crate) struct RootListing {
    pub(crate) names: Vec<String>,
    /// Names that no model may have, escaped, and why.
    pub(crate) invalid: Vec<(String, String)>,
}

impl Root {
    pub(crate) fn open(path: PathBuf) -> Result<Self, RepositoryError> {
        let text = path.display().to_string();
        if CLOUD_SCHEMES.iter().any(|scheme| text.starts_with(scheme)) {
            return Err(RepositoryError::Cloud { path: text });
        }
        match std::fs::metadata(&path) {
            Ok(found) if found.is_dir() => Ok(Self { path }),
            Ok(_) => Err(RepositoryError::NotDirectory { path: text }),
            Err(_) => Err(RepositoryError::Missing { path: text }),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the repository has an entry of this name that is, or may be, a
    /// directory.
    pub(crate) fn has(&self, name: &str) -> bool {
        let Ok(handle) = beneath::open_directory(&self.path) else { return false };
        rustix::fs::statat(&handle, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
            && !is_other_file(&handle, OsStr::new(name))
    }

    pub(crate) fn list(&self) -> io::Result<RootListing> {
        let mut listing = RootListing { names: Vec::new(), invalid: Vec::new() };
        let handle = beneath::open_directory(&self.path)?;
        for entry in beneath::entries(handle.as_fd())? {
            if is_other_file(&handle, &entry) {
                continue;
            }
            let name = entry.to_string_lossy();
            let checked = entry.to_str().map_or_else(
                || Err(String::from("its name isn't UTF-8")),
                |name| check_model_name(name).map_err(|error| error.to_string()),
            );
            match checked {
                Ok(()) => listing.names.push(name.into_owned()),
                Err(reason) => listing.invalid.push((name.escape_debug().to_string(), reason)),
            }
        }
        Ok(listing)
    }

    /// The directory of a model.
    ///
    /// # Errors
    ///
    /// Why it can't be opened, for messages.
    pub(crate) fn model_directory(
        &self,
        name: &str,
        symlinks: Symlinks,
    ) -> Result<ModelDirectory, String> {
        let path = self.path.join(name);
        let directory = ModelDirectory::new(path.clone(), symlinks);
        match directory.open() {
            Ok(_) => Ok(directory),
            Err(error) => Err(format!("can't open '{}': {error}", path.display())),
        }
    }
}

/// Whether an entry is certainly not a directory, such as a text file beside the models. An
/// entry that can't be examined may be a directory.
fn is_other_file(root: &OwnedFd, entry: &OsStr) -> bool {
    let status = rustix::fs::statat(root, entry, AtFlags::empty());
    status.is_ok_and(|status| FileType::from_raw_mode(status.st_mode) != FileType::Directory)
}
