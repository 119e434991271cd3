//! Folders for temporary files.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Creates a folder in `parent` that only this user can access. The folder's name starts with
/// `kind`.
pub(crate) fn private(parent: &Path, kind: &str) -> io::Result<PathBuf> {
    let mut builder = fs::DirBuilder::new();
    builder.mode(0o700);
    let id = std::process::id();
    for number in 0..u32::MAX {
        let folder = parent.join(format!("{kind}_{id}_{number}"));
        match builder.create(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}
