//! What tells a backend from what it may be another time.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::UNIX_EPOCH;

use crate::FileFingerprint;

/// What a backend's answers depend on beside models and requests. A cache that outlives
/// the server knows by it whether what it kept is still right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendFingerprint {
    /// Its version, or that of the library that it stands for; empty if nobody says.
    pub version: String,
    /// What it was told on the command line.
    pub settings: BTreeMap<String, String>,
    /// Its files, sorted by path.
    pub files: Vec<FileFingerprint>,
}

impl BackendFingerprint {
    /// Of a backend that has no settings and no files: only its version can change.
    #[must_use]
    pub fn of_version(version: &str) -> Self {
        Self { version: version.to_owned(), ..Self::default() }
    }
}

impl FileFingerprint {
    /// The mark of the file at `path`, or of what a link there leads to. To be taken
    /// before the file is read, so that a change meanwhile makes another mark.
    ///
    /// `None` if it can't be looked at, or if its time tells nothing.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        let since_epoch = found.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        let modified_ns = i64::try_from(since_epoch.as_nanos()).ok()?;
        Self::new(path.to_owned(), found.len(), modified_ns)
    }
}
