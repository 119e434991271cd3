//! Fingerprints of backends and their files, used to detect changes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::UNIX_EPOCH;

use crate::FileFingerprint;

/// The state that a backend's responses depend on, in addition to models and requests. A cache that
/// outlives the server uses it to decide whether its responses are still valid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendFingerprint {
    /// The version of the backend or of the library that it wraps; empty if unknown.
    pub version: String,
    /// The backend's command-line settings.
    pub settings: BTreeMap<String, String>,
    /// The backend's files, sorted by path.
    pub files: Vec<FileFingerprint>,
}

impl BackendFingerprint {
    /// Creates the fingerprint of a backend without settings or files, of which only the version
    /// can change.
    #[must_use]
    pub fn from_version(version: &str) -> Self {
        Self { version: version.to_owned(), ..Self::default() }
    }
}

impl FileFingerprint {
    /// Takes the fingerprint of the file at `path`, or of a link's target. Call this before reading
    /// the file, so that a change during the read results in a different fingerprint.
    ///
    /// `None` if the metadata can't be read or the modification time is meaningless.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        let since_epoch = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        let modified_ns = i64::try_from(since_epoch.as_nanos()).ok()?;
        Self::new(path.to_owned(), metadata.len(), modified_ns)
    }
}
