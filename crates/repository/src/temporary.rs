//! Directories for files that only one model uses.

use std::path::PathBuf;

/// A directory that is removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct TemporaryDirectory {
    pub(crate) path: PathBuf,
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        // A directory that can't be removed is no reason to stop serving.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
