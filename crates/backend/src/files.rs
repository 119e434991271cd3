//! The files of a model version.

use std::path::{Path, PathBuf};

use galatea_infer::Status;

/// A version's directory, which is a backend's only access to the model's files.
pub trait ModelFiles: Send + Sync {
    /// The model's directory, which contains `config.pbtxt` and the versions.
    fn model_path(&self) -> &Path;

    /// The version number.
    fn version(&self) -> i64;

    /// The version's directory.
    fn version_path(&self) -> &Path;

    /// Returns true if a client sent the files with a load request. In that case, a backend may
    /// refuse models that do more than compute. By default, the operator put the files there.
    fn are_from_client(&self) -> bool {
        false
    }

    /// Starts fetching the files to their paths without waiting, because the version is about to be
    /// loaded. [`ModelFiles::fetch`] waits for them. Does nothing by default.
    fn fetch_ahead(&self) {}

    /// Fetches the files to their paths unless they are already there. Called on the thread that
    /// loads or checks the version, before anything is read. By default, the files are already in
    /// place.
    ///
    /// # Errors
    ///
    /// The reason why the files aren't available.
    fn fetch(&self) -> Result<(), Status> {
        Ok(())
    }

    /// Returns the path of a file or directory in the version's directory.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if `name` points outside that directory, `NotFound` if it doesn't exist.
    fn resolve(&self, name: &str) -> Result<PathBuf, Status>;

    /// Returns the path of a file or directory in the model's directory, which all versions share.
    /// By default, there are no such files.
    ///
    /// # Errors
    ///
    /// Same as for [`ModelFiles::resolve`].
    fn resolve_in_model_directory(&self, name: &str) -> Result<PathBuf, Status> {
        Err(Status::not_found(format!("there is no '{name}': the model has no files")))
    }

    /// Reads a file in the model's directory, next to the configuration. By default, there are no
    /// such files.
    ///
    /// # Errors
    ///
    /// Same as for [`ModelFiles::read_initial_state`].
    fn read_in_model_directory(&self, name: &str, size: FileReadLimit) -> Result<Vec<u8>, Status> {
        let _ = size;
        Err(Status::not_found(format!("there is no '{name}': the model has no files")))
    }

    /// The fingerprints of this version's files and of the files that all versions share, sorted by
    /// path. `None` if a change to a file can't be detected.
    fn fingerprints(&self) -> Option<Vec<FileFingerprint>> {
        None
    }

    /// Reads a file in `initial_state`, a directory next to the versions. By default, there is
    /// none.
    ///
    /// # Errors
    ///
    /// Same as for [`ModelFiles::resolve`]; also `InvalidArgument` if the file isn't a regular file
    /// or has a different size. The message contains the file's name.
    fn read_initial_state(&self, name: &str, size: FileReadLimit) -> Result<Vec<u8>, Status> {
        let _ = size;
        Err(Status::not_found(format!("there is no '{name}': the model has no initial_state")))
    }

    /// Reads a file in `warmup`, a directory next to the versions. By default, there is none.
    ///
    /// # Errors
    ///
    /// Same as for [`ModelFiles::read_initial_state`].
    fn read_warmup(&self, name: &str, size: FileReadLimit) -> Result<Vec<u8>, Status> {
        let _ = size;
        Err(Status::not_found(format!("there is no '{name}': the model has no warmup")))
    }
}

/// Returns a hint for a directory that lacks the expected file but contains another file of the
/// same kind. The hint is in parentheses and preceded by a space. Empty if there is no such file.
#[must_use]
pub fn misnamed_file_hint_in(directory: &Path, expected: &str) -> String {
    /// The maximum number of directory entries to examine.
    const ENTRIES_MAX: usize = 1000;
    let entries = std::fs::read_dir(directory).into_iter().flatten().take(ENTRIES_MAX).flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    galatea_config::misnamed_file_hint(&names, expected)
        .map_or_else(String::new, |one| format!(" ({one})"))
}

/// Identifies a changed file by path, size and modification time, without reading the file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileFingerprint {
    path: PathBuf,
    byte_size: u64,
    modified_ns: i64,
}

impl FileFingerprint {
    /// 1980-01-02 00:00:00 UTC, in nanoseconds since the epoch.
    const EARLIEST_NS: i64 = 315_619_200 * 1_000_000_000;

    /// Creates the fingerprint of a file of this size that was last modified `modified_ns`
    /// nanoseconds after the epoch. The paths of a model's files are relative to the model's
    /// directory.
    ///
    /// `None` if the time is meaningless. Reproducible images and packages give all files the same
    /// time: the epoch, one second after it, or the earliest time that a ZIP archive can store. A
    /// changed file would then have the same fingerprint.
    #[must_use]
    pub fn new(path: PathBuf, byte_size: u64, modified_ns: i64) -> Option<Self> {
        (modified_ns >= Self::EARLIEST_NS).then_some(Self { path, byte_size, modified_ns })
    }

    /// The file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's size.
    #[must_use]
    pub const fn byte_size(&self) -> u64 {
        self.byte_size
    }

    /// The time of the last modification, in nanoseconds since the epoch.
    #[must_use]
    pub const fn modified_ns(&self) -> i64 {
        self.modified_ns
    }
}

/// The size that a file must have, in bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum FileReadLimit {
    /// At most this size.
    AtMost(u64),
    /// Any size. Only this many bytes are read, from the beginning of the file.
    Beginning(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_time_of_reproducible_packages_gives_no_fingerprint() {
        const DAY: i64 = 24 * 60 * 60 * 1_000_000_000;
        let ten_years = (10 * 365 + 2) * DAY;
        let fingerprint = |modified_ns| FileFingerprint::new(PathBuf::from("file"), 1, modified_ns);
        for constant in [i64::MIN, 0, 1_000_000_000, ten_years, ten_years + DAY - 1] {
            assert_eq!(fingerprint(constant), None, "{constant}");
        }
        for meaningful in [ten_years + DAY, i64::MAX] {
            assert_eq!(fingerprint(meaningful).unwrap().modified_ns(), meaningful);
        }
    }
}
