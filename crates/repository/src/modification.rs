//! The modification times of a model's files.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use galatea_backend::FileFingerprint;
use galatea_policy::ModificationTimes;
use rustix::fs::Stat;

use crate::directory::ModelDirectory;
use crate::version::version_number;
use crate::walk::{DirectoryWalk, EnteredDirectories, VisitResult};

const NS_PER_S: i64 = 1_000_000_000;

/// The times of everything in a model's directory.
///
/// As in Triton, an entry that can't be examined counts as never changed, and a link counts as its
/// target. Directories that the walk doesn't enter contribute their own times.
pub(crate) struct DirectoryTimes {
    own: i64,
    entries: Vec<(OsString, i64)>,
    /// True if the walk ended before it had visited everything.
    pub(crate) is_cut: bool,
}

impl DirectoryTimes {
    pub(crate) fn read(directory: &ModelDirectory) -> Self {
        let Some((mut walk, own)) = DirectoryWalk::begin(directory) else {
            return Self { own: 0, entries: Vec::new(), is_cut: false };
        };
        let time = |name: OsString| {
            let newest = newest(&mut walk, Path::new(&name), &mut EnteredDirectories::default());
            (name, newest)
        };
        let entries = own.entries.into_iter().map(time).collect();
        Self { own: changed_ns(&own.status), entries, is_cut: walk.is_cut() }
    }

    /// Converts these times to the model's times. `config` is the entry that contains the
    /// configuration.
    pub(crate) fn into_model_times(self, config: Option<&OsStr>) -> ModificationTimes {
        let mut modified = ModificationTimes { newest: self.own, ..ModificationTimes::default() };
        for (name, newest) in self.entries {
            modified.newest = modified.newest.max(newest);
            match name.to_str().map(version_number) {
                Some(Ok(number)) => {
                    modified.versions.insert(number, newest);
                }
                Some(Err(_)) | None if config == Some(&name) => {}
                Some(Err(_)) | None => modified.shared = modified.shared.max(newest),
            }
        }
        modified
    }
}

/// Returns the fingerprints of a version's files and of the files next to the versions, sorted by
/// path. `None` if a file can't be examined, a directory isn't entered, or a file was changed too
/// recently for its time to identify its content.
pub(crate) fn file_fingerprints(
    directory: &ModelDirectory,
    version: &Path,
) -> Option<Vec<FileFingerprint>> {
    let (mut walk, own) = DirectoryWalk::begin(directory)?;
    let mut fingerprints = Vec::new();
    for name in own.entries {
        let name = Path::new(&name);
        let number = name.to_str().map(version_number);
        if name == version || number.is_none_or(|number| number.is_err()) {
            add_fingerprints(
                &mut walk,
                name,
                &mut EnteredDirectories::default(),
                &mut fingerprints,
            )?;
        }
    }
    fingerprints.sort_unstable();
    (!walk.is_cut()).then_some(fingerprints)
}

/// The sizes of all files in a version's directory, in bytes. Files that can't be examined count as
/// empty.
pub(crate) fn version_bytes(directory: &ModelDirectory, version: i64) -> u64 {
    let Some((mut walk, _)) = DirectoryWalk::begin(directory) else { return 0 };
    let name = version.to_string();
    file_bytes(&mut walk, Path::new(&name), &mut EnteredDirectories::default())
}

fn file_bytes(walk: &mut DirectoryWalk, inside: &Path, entered: &mut EnteredDirectories) -> u64 {
    match walk.visit(inside, entered) {
        VisitResult::File(status) => u64::try_from(status.st_size).unwrap_or(0),
        VisitResult::Directory(directory) => {
            let names = directory.entries.into_iter();
            let sizes = names.map(|name| file_bytes(walk, &inside.join(name), entered));
            sizes.fold(0, u64::saturating_add)
        }
        VisitResult::NotEntered(_) | VisitResult::Nothing => 0,
    }
}

/// Adds the fingerprint of a file, or of each file in a directory.
fn add_fingerprints(
    walk: &mut DirectoryWalk,
    inside: &Path,
    entered: &mut EnteredDirectories,
    fingerprints: &mut Vec<FileFingerprint>,
) -> Option<()> {
    match walk.visit(inside, entered) {
        VisitResult::File(status) => {
            let byte_size = u64::try_from(status.st_size).ok()?;
            let modified_ns = modified_ns(&status);
            fingerprints.push(FileFingerprint::new(inside.to_owned(), byte_size, modified_ns)?);
        }
        VisitResult::Directory(directory) => {
            // Python creates this directory when a model is loaded.
            for name in directory.entries.into_iter().filter(|name| name != "__pycache__") {
                add_fingerprints(walk, &inside.join(name), entered, fingerprints)?;
            }
        }
        VisitResult::NotEntered(_) | VisitResult::Nothing => return None,
    }
    Some(())
}

/// Returns the newest time of a file, or of a directory and everything in it.
fn newest(walk: &mut DirectoryWalk, inside: &Path, entered: &mut EnteredDirectories) -> i64 {
    match walk.visit(inside, entered) {
        VisitResult::File(status) | VisitResult::NotEntered(status) => changed_ns(&status),
        VisitResult::Directory(directory) => {
            let times = directory.entries.into_iter().map(|name| {
                let inside = inside.join(name);
                newest(walk, &inside, entered)
            });
            times.fold(changed_ns(&directory.status), i64::max)
        }
        VisitResult::Nothing => 0,
    }
}

/// The time of the last change. As in Triton, the time at which the file was moved into place also
/// counts, because a directory that replaces another may be older.
fn changed_ns(status: &Stat) -> i64 {
    let ns = i64::try_from(status.st_ctime_nsec).unwrap_or_default();
    let changed = status.st_ctime.saturating_mul(NS_PER_S).saturating_add(ns);
    modified_ns(status).max(changed)
}

fn modified_ns(status: &Stat) -> i64 {
    let ns = i64::try_from(status.st_mtime_nsec).unwrap_or_default();
    status.st_mtime.saturating_mul(NS_PER_S).saturating_add(ns)
}

#[cfg(test)]
mod tests {
    use std::fs::{File, FileTimes};
    use std::os::unix::fs::symlink;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::testing::ScratchDirectory;
    use crate::{LookupResult, ModelRepositories, ScanOptions};

    /// A time in the future, later than any real change.
    const FUTURE_S: u64 = 4_000_000_000;

    fn ns(seconds: u64) -> i64 {
        i64::try_from(FUTURE_S + seconds).unwrap() * NS_PER_S
    }

    fn touch(scratch: &ScratchDirectory, path: &str, seconds: u64) {
        touch_at(scratch, path, FUTURE_S + seconds);
    }

    fn touch_at(scratch: &ScratchDirectory, path: &str, seconds: u64) {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let file = File::open(scratch.path().join(path)).unwrap();
        file.set_times(FileTimes::new().set_modified(time)).unwrap();
    }

    fn times_of(scratch: &ScratchDirectory, config_name: Option<&str>) -> ModificationTimes {
        let repository = ModelRepositories::open([scratch.path().join("r")]).unwrap();
        let config_name = config_name.map(str::to_owned);
        let options = ScanOptions { config_name, ..ScanOptions::default() };
        match repository.find("m", &options) {
            LookupResult::Models(mut sources) => sources.remove(0).modified,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_file_counts_for_its_version_or_for_what_versions_share() {
        let scratch = ScratchDirectory::new();
        let files = [
            "r/m/config.pbtxt",
            "r/m/configs/x.pbtxt",
            "r/m/labels.txt",
            "r/m/1/model.onnx",
            "r/m/2/deep/er/weights",
        ];
        files.iter().for_each(|path| scratch.file(path, ""));
        symlink("..", scratch.path().join("r/m/2/deep/round")).unwrap();
        let folders = ["r/m/2/deep/er", "r/m/2/deep", "r/m/2", "r/m/1", "r/m/configs", "r/m"];
        files.iter().chain(&folders).for_each(|path| touch(&scratch, path, 10));
        let same = times_of(&scratch, None);
        let versions = [(1, ns(10)), (2, ns(10))].into();
        assert_eq!(same, ModificationTimes { newest: ns(10), versions, shared: ns(10) });

        touch(&scratch, "r/m/config.pbtxt", 20);
        let modified = times_of(&scratch, None);
        assert_eq!((modified.newest, modified.shared), (ns(20), ns(10)));
        touch(&scratch, "r/m/2/deep/er/weights", 30);
        let modified = times_of(&scratch, None);
        assert_eq!(modified.newest, ns(30));
        assert_eq!(modified.versions, [(1, ns(10)), (2, ns(30))].into());
        touch(&scratch, "r/m/configs/x.pbtxt", 40);
        assert_eq!(times_of(&scratch, None).shared, ns(40), "a configuration that isn't used");
        assert_eq!(times_of(&scratch, Some("x")).shared, ns(20), "the other isn't used now");
        touch(&scratch, "r/m", 50);
        let modified = times_of(&scratch, None);
        assert_eq!((modified.newest, modified.shared), (ns(50), ns(40)));
    }

    #[test]
    fn fingerprints_tell_changed_files_of_a_version() {
        let scratch = ScratchDirectory::new();
        let file = |path: &str, text: &str| scratch.file(&format!("r/m/{path}"), text);
        let fingerprints = || {
            let repository = ModelRepositories::open([scratch.path().join("r")]).unwrap();
            let LookupResult::Models(models) = repository.find("m", &ScanOptions::default()) else {
                panic!("there is no model")
            };
            let found = file_fingerprints(&models[0].directory, Path::new("1"));
            found.map(|files| {
                let shown =
                    |file: &FileFingerprint| (file.path().display().to_string(), file.byte_size());
                (files.iter().map(shown).collect::<Vec<_>>(), files)
            })
        };
        for (path, text) in
            [("1/model", "abc"), ("1/deep/er", ""), ("2/model", "x"), ("labels", "l")]
        {
            file(path, text);
        }
        let (shown, before) = fingerprints().unwrap();
        let expected = [("1/deep/er", 0), ("1/model", 3), ("labels", 1)];
        assert_eq!(shown, expected.map(|(path, size)| (String::from(path), size)));
        file("2/model", "other");
        file("1/__pycache__/model.pyc", "compiled");
        assert_eq!(fingerprints().unwrap().1, before);
        touch_at(&scratch, "r/m/1/model", 1_000_000_000);
        assert_ne!(fingerprints().unwrap().1, before);
        touch_at(&scratch, "r/m/1/deep/er", 1);
        assert!(fingerprints().is_none(), "a file that may have changed and kept its time");
        touch_at(&scratch, "r/m/1/deep/er", 1_000_000_000);
        assert!(fingerprints().is_some());
        symlink("../deep", scratch.path().join("r/m/1/deep/link")).unwrap();
        assert!(fingerprints().is_none(), "a circle");
    }
}
