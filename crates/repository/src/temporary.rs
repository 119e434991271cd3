//! Directories for the files of a single model.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::Mode;
use rustix::io::Errno;

/// The maximum number of names to try for a directory.
const ATTEMPTS_MAX: u32 = 1_000;

/// A directory that is removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct TemporaryDirectory {
    pub(crate) path: PathBuf,
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        // A failure to remove a directory is no reason to stop serving.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A factory for directories that only this user can enter.
#[derive(Debug)]
pub(crate) struct TemporaryDirectories {
    parent: PathBuf,
    next: AtomicU64,
    /// The hasher state that turns numbers into names, differently in each process.
    names: RandomState,
}

impl TemporaryDirectories {
    pub(crate) fn new(parent: PathBuf) -> Self {
        Self { parent, next: AtomicU64::new(0), names: RandomState::new() }
    }

    pub(crate) fn parent(&self) -> &Path {
        &self.parent
    }

    /// Returns a name that reveals nothing about this process, because backends may repeat it in
    /// their messages.
    fn next_name(&self) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        format!("galatea-{:016x}", self.names.hash_one(number))
    }

    pub(crate) fn create(&self) -> io::Result<TemporaryDirectory> {
        for _ in 0..ATTEMPTS_MAX {
            let path = self.parent.join(self.next_name());
            match rustix::fs::mkdirat(rustix::fs::CWD, &path, Mode::RWXU) {
                Ok(()) => return Ok(TemporaryDirectory { path }),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::other(format!("no free name in '{}'", self.parent.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ScratchDirectory;

    #[test]
    fn an_existing_directory_is_left_alone() {
        let scratch = ScratchDirectory::new();
        let directories = TemporaryDirectories::new(scratch.path().to_owned());
        let taken = scratch.path().join(directories.next_name());
        directories.next.store(0, Ordering::Relaxed);
        std::fs::create_dir(&taken).unwrap();
        let made = directories.create().unwrap();
        assert_ne!(made.path, taken);
        drop(made);
        assert!(taken.exists());
    }
}
