//! Records the files that a template has read.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The files and their identities. A template must not fork after a file has changed, because a
/// worker with its own interpreter would read the new file.
#[derive(Debug)]
pub(super) struct Files(Vec<(PathBuf, Option<FileIdentity>)>);

/// A file's identity, which changes when the file is written or replaced.
#[derive(Debug, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    number: u64,
    length: u64,
    modified: (i64, i64),
}

impl Files {
    /// Records the current state of the files.
    pub(super) fn now(paths: impl Iterator<Item = PathBuf>) -> Self {
        Self(paths.map(|path| (identity(&path), path)).map(|(one, path)| (path, one)).collect())
    }

    /// Returns true if a file has since been written, replaced, created or removed.
    pub(super) fn have_changed(&self) -> bool {
        self.0.iter().any(|(path, known)| identity(path) != *known)
    }
}

fn identity(path: &Path) -> Option<FileIdentity> {
    let of = |file: Metadata| FileIdentity {
        device: file.dev(),
        number: file.ino(),
        length: file.size(),
        modified: (file.mtime(), file.mtime_nsec()),
    };
    path.metadata().ok().map(of)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn changes_are_seen() {
        let folder = std::env::temp_dir().join(format!("galatea-files-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let (there, other) = (folder.join("there"), folder.join("other"));
        let now = || Files::now([there.clone(), other.clone()].into_iter());
        fs::write(&there, "text").unwrap();
        let files = now();
        assert!(!files.have_changed());
        fs::write(&other, "").unwrap();
        assert!(files.have_changed(), "one was made");
        let files = now();
        fs::write(&there, "longer text").unwrap();
        assert!(files.have_changed(), "one was written");
        let files = now();
        fs::remove_file(&there).unwrap();
        assert!(files.have_changed(), "one was removed");
        fs::remove_dir_all(folder).unwrap();
    }
}
