//! Fingerprints of a plug-in's files, taken before the files are read.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use galatea_backend::FileFingerprint;

use super::search::BackendLibrary;

/// A file count that no backend reaches. Directories with more files aren't fingerprinted.
const FILES_MAX: usize = 4096;

/// The fingerprints of the library and of all files in its directory and in the backend's
/// directory, excluding subdirectories, sorted by path. `None` if they can't be determined.
pub(crate) fn file_fingerprints(found: &BackendLibrary) -> Option<Vec<FileFingerprint>> {
    let mut files = BTreeSet::from([found.library.clone()]);
    for directory in [found.library.parent()?, &found.directory] {
        add_files(directory, &mut files)?;
    }
    files.iter().map(|path| FileFingerprint::of(path)).collect()
}

fn add_files(directory: &Path, files: &mut BTreeSet<PathBuf>) -> Option<()> {
    for entry in fs::read_dir(directory).ok()? {
        let path = entry.ok()?.path();
        if fs::metadata(&path).ok()?.is_dir() {
            continue;
        }
        files.insert(path);
        if files.len() > FILES_MAX {
            return None;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use std::fs::{File, FileTimes};
    use std::os::unix::fs::symlink;
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::testing::Folder;

    fn touch(folder: &Folder, name: &str, seconds: u64) {
        let time = UNIX_EPOCH + Duration::from_secs(seconds);
        let file = File::open(folder.path().join(name)).unwrap();
        file.set_times(FileTimes::new().set_modified(time)).unwrap();
    }

    #[test]
    fn changed_files_have_other_fingerprints() {
        const TIME: u64 = 1_000_000_000;
        let folder = Folder::new();
        let names = ["python/libtriton_python.so", "python/stub", "own/model.py"];
        for name in names {
            folder.file(name);
            touch(&folder, name, TIME);
        }
        let found = BackendLibrary {
            library: folder.path().join(names[0]),
            directory: folder.path().join("own"),
            settings_name: String::from("python"),
            runtime: None,
            environment: None,
        };
        let before = file_fingerprints(&found).unwrap();
        let paths: Vec<&Path> = before.iter().map(FileFingerprint::path).collect();
        assert_eq!(paths, [names[2], names[0], names[1]].map(|name| folder.path().join(name)));
        folder.file("own/__pycache__/model.pyc");
        assert_eq!(file_fingerprints(&found).unwrap(), before, "directories are not gone into");
        for name in names {
            touch(&folder, name, TIME + 1);
            assert_ne!(file_fingerprints(&found).unwrap(), before, "{name}");
            touch(&folder, name, 1);
            assert_eq!(
                file_fingerprints(&found),
                None,
                "{name} may have changed and kept its time"
            );
            touch(&folder, name, TIME);
        }
        assert_eq!(file_fingerprints(&found).unwrap(), before);
        symlink("nowhere", folder.path().join("own/link")).unwrap();
        assert_eq!(file_fingerprints(&found), None);
    }
}
