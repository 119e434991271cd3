//! The files of one version of a model.

use std::path::{Path, PathBuf};

use galatea_infer::Status;

/// A version directory: backends reach a model's files through it alone.
pub trait ModelFiles: Send + Sync {
    /// The model's directory, which holds `config.pbtxt` and the versions.
    fn model_path(&self) -> &Path;

    /// The version's number.
    fn version(&self) -> i64;

    /// The version's directory.
    fn version_path(&self) -> &Path;

    /// The path of a file or directory below the version's directory.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if `name` leads out of that directory, `NotFound` if
    /// nothing is there.
    fn resolve(&self, name: &str) -> Result<PathBuf, Status>;

    /// The path of a file or directory below the model's directory, which all versions
    /// share. Unless said otherwise nothing is there.
    ///
    /// # Errors
    ///
    /// As with [`ModelFiles::resolve`].
    fn resolve_beside_versions(&self, name: &str) -> Result<PathBuf, Status> {
        Err(Status::not_found(format!("there is no '{name}': the model has no files")))
    }

    /// Reads a file in the model's directory, beside the configuration. Unless
    /// said otherwise there is none.
    ///
    /// # Errors
    ///
    /// As with [`ModelFiles::read_initial_state`].
    fn read_beside_versions(&self, name: &str, size: ExpectedFileSize) -> Result<Vec<u8>, Status> {
        let _ = size;
        Err(Status::not_found(format!("there is no '{name}': the model has no files")))
    }

    /// What tells the files of this version, and those beside all versions, from what
    /// they may be another time: sorted by path. `None` if that can't be told.
    fn fingerprints(&self) -> Option<Vec<FileFingerprint>> {
        None
    }

    /// Reads a file in `initial_state`, a directory beside the versions. Unless
    /// said otherwise there is none.
    ///
    /// # Errors
    ///
    /// As with [`ModelFiles::resolve`]; `InvalidArgument` also if it is no
    /// regular file or of another size. The message names the file.
    fn read_initial_state(&self, name: &str, size: ExpectedFileSize) -> Result<Vec<u8>, Status> {
        let _ = size;
        Err(Status::not_found(format!("there is no '{name}': the model has no initial_state")))
    }

    /// Reads a file in `warmup`, a directory beside the versions. Unless said
    /// otherwise there is none.
    ///
    /// # Errors
    ///
    /// As with [`ModelFiles::read_initial_state`].
    fn read_warmup(&self, name: &str, size: ExpectedFileSize) -> Result<Vec<u8>, Status> {
        let _ = size;
        Err(Status::not_found(format!("there is no '{name}': the model has no warmup")))
    }
}

/// What can be seen of a file without reading it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileFingerprint {
    path: PathBuf,
    byte_size: u64,
    modified_ns: i64,
}

impl FileFingerprint {
    /// 1980-01-02 00:00:00 UTC, in nanoseconds since the epoch.
    const EARLIEST_NS: i64 = 315_619_200 * 1_000_000_000;

    /// The mark of a file of this size, whose contents changed last so many nanoseconds
    /// after the epoch. A model's files have paths from the model's directory on.
    ///
    /// `None` if the time tells nothing: images and packages that are made to be
    /// reproducible give all files one time, the epoch, a second later, or the first
    /// that a ZIP archive can hold, so that a file may change and look the same.
    #[must_use]
    pub fn new(path: PathBuf, byte_size: u64, modified_ns: i64) -> Option<Self> {
        (modified_ns >= Self::EARLIEST_NS).then_some(Self { path, byte_size, modified_ns })
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The size.
    #[must_use]
    pub const fn byte_size(&self) -> u64 {
        self.byte_size
    }

    /// When its contents changed last, in nanoseconds since the epoch.
    #[must_use]
    pub const fn modified_ns(&self) -> i64 {
        self.modified_ns
    }
}

/// How many bytes a file is to have.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ExpectedFileSize {
    /// This many.
    Exactly(u64),
    /// Any number up to this.
    AtMost(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_everything_may_have_is_no_mark() {
        const DAY: i64 = 24 * 60 * 60 * 1_000_000_000;
        let ten_years = (10 * 365 + 2) * DAY;
        let mark = |modified_ns| FileFingerprint::new(PathBuf::from("file"), 1, modified_ns);
        for constant in [i64::MIN, 0, 1_000_000_000, ten_years, ten_years + DAY - 1] {
            assert_eq!(mark(constant), None, "{constant}");
        }
        for telling in [ten_years + DAY, i64::MAX] {
            assert_eq!(mark(telling).unwrap().modified_ns(), telling);
        }
    }
}
