//! Directories for agents to fill.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

/// The maximum number of names to try for a directory.
const ATTEMPTS_MAX: u32 = 1_000;

/// Creates directories for agents to fill.
pub(super) struct AgentDirectories {
    parent: PathBuf,
    next: AtomicU64,
}

impl AgentDirectories {
    /// Uses `parent` as the parent of all directories.
    pub(super) fn new(parent: &Path) -> Self {
        Self { parent: parent.to_owned(), next: AtomicU64::new(0) }
    }

    /// Creates an empty directory that only this user can enter.
    pub(super) fn create(&self) -> io::Result<PathBuf> {
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700);
        for _ in 0..ATTEMPTS_MAX {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let path = self.parent.join(format!("galatea-agent-{}-{number}", std::process::id()));
            match builder.create(&path) {
                Ok(()) => return Ok(path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other(format!("no free name in '{}'", self.parent.display())))
    }
}
