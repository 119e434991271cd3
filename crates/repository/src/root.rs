//! The directory of one repository.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType};
use thiserror::Error;

use crate::beneath::{self, SymlinkPolicy};
use crate::directory::ModelDirectory;
use crate::name::check_model_name;
use crate::remote::{FoundModel, RemoteConnector, RemoteError, RemoteRoot, is_remote};

/// A reason why a repository can't be used at all.
#[derive(Debug, Error)]
pub enum RepositoryError {
    /// The repository is in an object store, and no connector is available.
    #[error("model repository '{path}' is in an object store, which can't be opened here")]
    Unreachable {
        /// The address.
        path: String,
    },
    /// The repository is in an object store that can't be listed.
    #[error("{reason}")]
    Remote {
        /// The address.
        path: String,
        /// The reason, in Triton's words if Triton has any.
        reason: String,
    },
    /// Nothing exists at the path, in Triton's words.
    #[error("failed to stat file {path}")]
    Missing {
        /// The path.
        path: String,
    },
    /// The path is not a directory, in Triton's words.
    #[error("repository path is not a valid directory")]
    NotDirectory {
        /// The path.
        path: String,
    },
}

/// The directory of a repository. It is reopened for each scan and each lookup, because it may be
/// replaced while the server runs, for example by a release script that switches a link.
#[derive(Debug)]
pub(crate) struct Root {
    path: PathBuf,
    place: RootPlace,
}

#[derive(Debug)]
enum RootPlace {
    Local,
    Remote(RemoteRoot),
}

/// The entries of a repository's directory that are, or may be, model directories.
#[derive(Default)]
pub(crate) struct RootListing {
    pub(crate) names: Vec<String>,
    /// The invalid names, escaped, and the reasons why they are invalid.
    pub(crate) invalid: Vec<(String, String)>,
    /// The models that were read along with the listing of an object store, by directory.
    pub(crate) found: BTreeMap<String, Result<FoundModel, String>>,
}

/// The depth to which an object store is read when it is listed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListingDepth {
    /// Only the models' names are read.
    Names,
    /// The models' objects and the files outside their versions are read too.
    Models,
}

impl Root {
    pub(crate) fn open(
        path: PathBuf,
        connector: Option<&dyn RemoteConnector>,
    ) -> Result<Self, RepositoryError> {
        let text = path.display().to_string();
        if is_remote(&text) {
            let connector =
                connector.ok_or_else(|| RepositoryError::Unreachable { path: text.clone() })?;
            let repository = connector.connect(&text).map_err(|error| match error {
                RemoteError::NotDirectory => RepositoryError::NotDirectory { path: text },
                RemoteError::Changed { .. } | RemoteError::Name(_) | RemoteError::Failed(_) => {
                    RepositoryError::Remote { path: text, reason: error.to_string() }
                }
            })?;
            let place = RootPlace::Remote(RemoteRoot::new(&path, repository));
            return Ok(Self { path, place });
        }
        match std::fs::metadata(&path) {
            Ok(found) if found.is_dir() => Ok(Self { path, place: RootPlace::Local }),
            Ok(_) => Err(RepositoryError::NotDirectory { path: text }),
            Err(_) => Err(RepositoryError::Missing { path: text }),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if the repository has an entry with this name that is, or may be, a directory.
    pub(crate) fn has(&self, name: &str) -> bool {
        if let RootPlace::Remote(remote) = &self.place {
            return remote.has(name);
        }
        let Ok(handle) = beneath::open_directory(&self.path) else { return false };
        rustix::fs::statat(&handle, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
            && !is_other_file(&handle, OsStr::new(name))
    }

    /// Returns true if the repository can be opened. Object stores report problems themselves.
    pub(crate) fn check_readable(&self) -> io::Result<()> {
        match self.place {
            RootPlace::Local => beneath::open_directory(&self.path).map(drop),
            RootPlace::Remote(_) => Ok(()),
        }
    }

    pub(crate) fn list(&self, depth: ListingDepth) -> io::Result<RootListing> {
        let mut listing = RootListing::default();
        match (&self.place, depth) {
            (RootPlace::Local, ListingDepth::Names | ListingDepth::Models) => {
                let handle = beneath::open_directory(&self.path)?;
                for entry in beneath::entries(handle.as_fd())? {
                    if !is_other_file(&handle, &entry) {
                        listing.add(&entry);
                    }
                }
            }
            (RootPlace::Remote(remote), ListingDepth::Names) => {
                remote.folders()?.iter().for_each(|folder| listing.add(OsStr::new(folder)));
            }
            (RootPlace::Remote(remote), ListingDepth::Models) => {
                listing.found = remote.scan()?;
                let folders: Vec<String> = listing.found.keys().cloned().collect();
                folders.iter().for_each(|folder| listing.add(OsStr::new(folder)));
            }
        }
        Ok(listing)
    }

    /// A model in an object store; `None` for a local repository.
    pub(crate) fn remote_model(&self, folder: &str) -> Option<Result<FoundModel, String>> {
        match &self.place {
            RootPlace::Local => None,
            RootPlace::Remote(remote) => Some(remote.model(folder)),
        }
    }

    /// Opens the directory of a model.
    ///
    /// # Errors
    ///
    /// Returns the reason why it can't be opened, for messages.
    pub(crate) fn model_directory(
        &self,
        name: &str,
        symlinks: SymlinkPolicy,
    ) -> Result<ModelDirectory, String> {
        let path = self.path.join(name);
        let directory = ModelDirectory::new(path.clone(), symlinks);
        match directory.open() {
            Ok(_) => Ok(directory),
            Err(error) => Err(format!("can't open '{}': {error}", path.display())),
        }
    }
}

impl RootListing {
    fn add(&mut self, entry: &OsStr) {
        let name = entry.to_string_lossy();
        let checked = entry.to_str().map_or_else(
            || Err(String::from("its name isn't UTF-8")),
            |name| check_model_name(name).map_err(|error| error.to_string()),
        );
        match checked {
            Ok(()) => self.names.push(name.into_owned()),
            Err(reason) => self.invalid.push((name.escape_debug().to_string(), reason)),
        }
    }
}

/// Returns true if an entry is certainly not a directory, such as a text file next to the models.
/// An entry that can't be examined may be a directory.
fn is_other_file(root: &OwnedFd, entry: &OsStr) -> bool {
    let status = rustix::fs::statat(root, entry, AtFlags::empty());
    status.is_ok_and(|status| FileType::from_raw_mode(status.st_mode) != FileType::Directory)
}
