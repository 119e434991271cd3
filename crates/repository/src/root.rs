//! The directory of one repository.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;
use thiserror::Error;

use crate::beneath;
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
    /// It can't be opened as a directory.
    #[error("can't open model repository '{path}': {source}")]
    Open {
        /// The path.
        path: String,
        /// Why it can't be opened.
        source: io::Error,
    },
}

/// The open directory of a repository.
#[derive(Debug)]
pub(crate) struct Root {
    path: PathBuf,
    handle: Arc<OwnedFd>,
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
        match beneath::open_directory(&path) {
            Ok(handle) => Ok(Self { path, handle: Arc::new(handle) }),
            Err(source) => Err(RepositoryError::Open { path: text, source }),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the repository has an entry of this name that is, or may be, a
    /// directory.
    pub(crate) fn has(&self, name: &str) -> bool {
        rustix::fs::statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
            && !self.is_other_file(OsStr::new(name))
    }

    pub(crate) fn list(&self) -> io::Result<RootListing> {
        let mut listing = RootListing { names: Vec::new(), invalid: Vec::new() };
        for entry in beneath::entries(self.handle.as_fd())? {
            if self.is_other_file(&entry) {
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

    /// Whether an entry is certainly not a directory, such as a text file beside the
    /// models. An entry that can't be examined may be a directory.
    fn is_other_file(&self, entry: &OsStr) -> bool {
        let status = rustix::fs::statat(&self.handle, entry, AtFlags::empty());
        status.is_ok_and(|status| FileType::from_raw_mode(status.st_mode) != FileType::Directory)
    }

    /// The directory of a model. Links in it may lead to anywhere in the repository. If
    /// the entry itself is a link out of the repository, they may only lead to anywhere
    /// below its target.
    ///
    /// # Errors
    ///
    /// Why it can't be opened, for messages.
    pub(crate) fn model_directory(&self, name: &str) -> Result<ModelDirectory, String> {
        let path = self.path.join(name);
        let open = |path: PathBuf| match beneath::locate(self.handle.as_fd(), Path::new(name)) {
            Ok(_) => Ok(ModelDirectory::new(path, self.handle.clone(), PathBuf::from(name))),
            Err(Errno::XDEV) => {
                let own = beneath::open_entry(self.handle.as_fd(), OsStr::new(name))?;
                Ok(ModelDirectory::new(path, Arc::new(own), PathBuf::new()))
            }
            Err(error) => Err(io::Error::from(error)),
        };
        open(path.clone()).map_err(|error| format!("can't open '{}': {error}", path.display()))
    }
}
