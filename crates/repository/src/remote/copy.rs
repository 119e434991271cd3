//! The local copy of a model.

use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use galatea_infer::Status;
use galatea_stdx::Lock;

use super::ahead::BUCKET_AHEAD_BYTES_MAX;
use super::ahead::{AheadQueue, BegunCopy, EarlyCopy, EarlyStart, Reservation};
use super::listing::{ModelListing, is_in_version};
use super::{ObjectDownload, ObjectVersion, RemoteError, RemoteObject, RemoteStore};
use crate::temporary::{TemporaryDirectories, TemporaryDirectory};

/// A private directory with a model's objects, removed when its last user is dropped.
///
/// All of its directories exist from the start. Files outside the versions, such as the
/// configuration, are copied when the model is found, and files in the versions when the first
/// version is loaded. All versions share the copy.
#[derive(Debug)]
pub(crate) struct ModelCopy {
    /// The address of the model.
    pub(super) url: PathBuf,
    /// The model's folder in the repository.
    folder: String,
    store: Arc<dyn RemoteStore>,
    ahead: AheadQueue,
    /// The early copy. It is declared before the directory so that it is dropped first: copies in
    /// progress end before the directory is removed.
    early: Lock<EarlyCopy>,
    directory: TemporaryDirectory,
    pub(crate) listing: ModelListing,
    /// The files that are complete.
    complete: Lock<BTreeSet<String>>,
    /// Held while the versions' files are copied, so that other threads wait for the same files
    /// instead of copying them again. While it is held, only `complete`, `early` and the queue of
    /// early copies are locked.
    copying: Lock<()>,
}

/// The origin of a copy.
pub(super) struct CopySource<'a> {
    pub(super) url: &'a Path,
    pub(super) folder: &'a str,
    pub(super) store: &'a Arc<dyn RemoteStore>,
    pub(super) ahead: &'a AheadQueue,
}

impl ModelCopy {
    /// Creates a new copy. At first, it contains only the files that are unchanged since the
    /// previous copy, as hard links.
    pub(super) fn new(
        origin: &CopySource<'_>,
        listing: ModelListing,
        before: Option<&Self>,
        copies: &TemporaryDirectories,
    ) -> io::Result<Self> {
        let copy = Self {
            url: origin.url.join(origin.folder),
            folder: origin.folder.to_owned(),
            store: origin.store.clone(),
            ahead: origin.ahead.clone(),
            early: Lock::default(),
            directory: copies.create()?,
            listing,
            complete: Lock::default(),
            copying: Lock::default(),
        };
        for directory in &copy.listing.directories {
            DirBuilder::new().mode(0o700).create(copy.path().join(directory))?;
        }
        if let Some(before) = before {
            let shared = copy.listing.files.iter().filter(|(path, state)| {
                before.listing.files.get(*path) == Some(*state) && before.has_unchanged(path, state)
            });
            let link = |path: &str| {
                std::fs::hard_link(before.path().join(path), copy.path().join(path)).is_ok()
            };
            let linked: BTreeSet<String> =
                shared.map(|(path, _)| path.clone()).filter(|path| link(path)).collect();
            *copy.complete.lock("note the files that are shared") = linked;
        }
        Ok(copy)
    }

    /// Returns true if a complete file is unchanged since it was copied. A model may have written
    /// to it.
    fn has_unchanged(&self, path: &str, state: &ObjectVersion) -> bool {
        let is_complete = self.complete.lock("ask for a file").contains(path);
        let seconds = state.modified_ns.div_euclid(1_000_000_000);
        is_complete
            && std::fs::symlink_metadata(self.path().join(path)).is_ok_and(|found| {
                found.is_file() && found.len() == state.byte_size && found.mtime() == seconds
            })
    }

    /// The path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.directory.path
    }

    /// The address of the model. All of its copies have the same address.
    pub(crate) fn url(&self) -> &Path {
        &self.url
    }

    /// The files to copy when the model is found: all files outside the versions, and libraries in
    /// the versions, which may be the model's backend.
    pub(super) fn first_downloads(&self) -> Vec<ObjectDownload> {
        self.downloads(|path| !is_in_version(path) || is_library(path))
    }

    fn downloads(&self, wanted: impl Fn(&str) -> bool) -> Vec<ObjectDownload> {
        let complete = self.complete.lock("list missing files");
        let missing = self.listing.files.iter();
        missing
            .filter(|(path, _)| wanted(path) && !complete.contains(*path))
            .map(|(path, state)| ObjectDownload {
                object: RemoteObject {
                    path: format!("{}/{path}", self.folder),
                    state: state.clone(),
                },
                file: self.path().join(path),
            })
            .collect()
    }

    /// Records the files that were copied.
    pub(super) fn finish(
        &self,
        downloads: &[ObjectDownload],
        results: &[Result<(), RemoteError>],
    ) -> Result<(), RemoteError> {
        let mut complete = self.complete.lock("note complete files");
        let done = downloads.iter().zip(results).filter(|(_, result)| result.is_ok());
        complete.extend(done.filter_map(|(download, _)| {
            let path = download.object.path.strip_prefix(&self.folder)?.strip_prefix('/')?;
            Some(path.to_owned())
        }));
        results.iter().find_map(|result| result.clone().err()).map_or(Ok(()), Err)
    }

    /// Begins to copy the missing files, immediately or once earlier copies have released enough
    /// bytes. [`ModelCopy::fetch`] reports failures.
    pub(crate) fn fetch_ahead(self: &Arc<Self>) {
        let copy: Arc<dyn EarlyStart> = self.clone();
        self.ahead.add(Arc::downgrade(&copy));
    }

    /// Copies all missing files. Files that an earlier, failed attempt completed are not copied
    /// again.
    ///
    /// # Errors
    ///
    /// Returns `Unavailable` if an object has changed since it was listed, otherwise `Internal`.
    pub(crate) fn fetch(&self) -> Result<(), Status> {
        let fetched = self.fetch_all();
        // The early copy has made room.
        self.ahead.go_on();
        fetched
    }

    fn fetch_all(&self) -> Result<(), Status> {
        let _copying = self.copying.lock("copy a model from its bucket");
        let early = std::mem::replace(&mut *self.early.lock("wait for a copy"), EarlyCopy::Over);
        if let EarlyCopy::Begun(begun) = early {
            let results = (begun.under_way)();
            return self.finish_versions(&begun.downloads, &results);
        }
        let downloads = self.downloads(|_| true);
        if downloads.is_empty() {
            return Ok(());
        }
        check_space(&*self.store, &downloads, self.path()).map_err(Status::internal)?;
        let results = self.store.begin(downloads.clone())();
        self.finish_versions(&downloads, &results)
    }

    fn finish_versions(
        &self,
        downloads: &[ObjectDownload],
        results: &[Result<(), RemoteError>],
    ) -> Result<(), Status> {
        self.finish(downloads, results).map_err(|error| match error {
            RemoteError::Changed { .. } => Status::unavailable(format!("{error}: load it again")),
            RemoteError::NotDirectory | RemoteError::Name(_) | RemoteError::Failed(_) => {
                Status::internal(error.to_string())
            }
        })
    }
}

impl EarlyStart for ModelCopy {
    fn begin_early(&self, reserve: &dyn Fn(u64) -> Option<Reservation>) -> bool {
        let mut early = self.early.lock("begin a copy early");
        if !matches!(*early, EarlyCopy::NotBegun) {
            return true;
        }
        let downloads = self.downloads(|_| true);
        let byte_size = sum_of_bytes(&downloads);
        let beside = BUCKET_AHEAD_BYTES_MAX;
        // If the disk lacks room for all early copies, models are copied one at a time.
        let has_room = || self.store.free_bytes(self.path()).is_none_or(|free| free >= 2 * beside);
        if downloads.is_empty() || byte_size > beside || !has_room() {
            return true;
        }
        let Some(reservation) = reserve(byte_size) else { return false };
        let under_way = self.store.begin(downloads.clone());
        *early = EarlyCopy::Begun(BegunCopy { downloads, under_way, _reservation: reservation });
        true
    }
}

/// Checks that the disk has enough space for these files.
pub(super) fn check_space(
    store: &dyn RemoteStore,
    downloads: &[ObjectDownload],
    directory: &Path,
) -> Result<(), String> {
    let needed = sum_of_bytes(downloads);
    // If the file system doesn't report its free space, a full disk is detected only when a write
    // fails.
    let Some(free) = store.free_bytes(directory) else { return Ok(()) };
    if needed > free {
        let directory = directory.parent().unwrap_or(directory).display();
        return Err(format!("'{directory}' has {free} bytes left, and {needed} are needed"));
    }
    Ok(())
}

fn sum_of_bytes(downloads: &[ObjectDownload]) -> u64 {
    let sizes = downloads.iter().map(|download| download.object.state.byte_size);
    sizes.fold(0, u64::saturating_add)
}

fn is_library(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.ends_with(".so") || name.contains(".so.")
}
