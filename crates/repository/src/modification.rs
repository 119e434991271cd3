//! When the files of a model changed last.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

use galatea_backend::FileFingerprint;
use galatea_policy::ModificationTimes;
use rustix::fs::{FileType, Stat};

use crate::beneath::OpenDirectory;
use crate::directory::ModelDirectory;
use crate::version::version_number;

const NS_PER_S: i64 = 1_000_000_000;

/// The times of everything in a model's directory.
///
/// As in Triton, an entry that can't be examined counts as never changed, and a link counts
/// as its target. A directory that a link leads back to is not entered again.
pub(crate) struct DirectoryTimes {
    own: i64,
    entries: Vec<(OsString, i64)>,
}

impl DirectoryTimes {
    pub(crate) fn read(directory: &ModelDirectory) -> Self {
        let Ok(directory) = directory.open() else { return Self { own: 0, entries: Vec::new() } };
        let visit = Visit { directory };
        let own = visit.status(Path::new(""));
        let mut entered = own.iter().map(identity).collect();
        let time = |name: OsString| {
            let newest = visit.newest(Path::new(&name), &mut entered);
            (name, newest)
        };
        Self {
            own: own.map_or(0, |status| changed_ns(&status)),
            entries: visit
                .entries(Path::new(""))
                .unwrap_or_default()
                .into_iter()
                .map(time)
                .collect(),
        }
    }

    /// The model's times by these times. `config` is the entry that holds the configuration.
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

/// The fingerprints of a version's files and of the files beside the versions, sorted by
/// path. `None` if a file can't be examined, links form a circle, or a file was changed too recently for its time to identify its content.
pub(crate) fn file_fingerprints(
    directory: &ModelDirectory,
    version: &Path,
) -> Option<Vec<FileFingerprint>> {
    let visit = Visit { directory: directory.open().ok()? };
    let mut entered = visit.status(Path::new("")).iter().map(identity).collect();
    let mut fingerprints = Vec::new();
    for name in visit.entries(Path::new("")).ok()? {
        let name = Path::new(&name);
        let number = name.to_str().map(version_number);
        if name == version || number.is_none_or(|number| number.is_err()) {
            visit.add_fingerprints(name, &mut entered, &mut fingerprints)?;
        }
    }
    fingerprints.sort_unstable();
    Some(fingerprints)
}

/// Directories from the model's down to one, each by device and inode.
type Entered = Vec<(u64, u64)>;

fn identity(status: &Stat) -> (u64, u64) {
    (status.st_dev, status.st_ino)
}

struct Visit {
    directory: OpenDirectory,
}

impl Visit {
    fn status(&self, inside: &Path) -> Option<Stat> {
        let handle = self.directory.locate(inside).ok()?;
        rustix::fs::fstat(&handle).ok()
    }

    fn entries(&self, inside: &Path) -> io::Result<Vec<OsString>> {
        self.directory.list(inside)
    }

    /// Adds the fingerprint of a file, or of each file in a directory.
    fn add_fingerprints(
        &self,
        inside: &Path,
        entered: &mut Entered,
        fingerprints: &mut Vec<FileFingerprint>,
    ) -> Option<()> {
        let status = self.status(inside)?;
        if FileType::from_raw_mode(status.st_mode) != FileType::Directory {
            let byte_size = u64::try_from(status.st_size).ok()?;
            let modified_ns = modified_ns(&status);
            fingerprints.push(FileFingerprint::new(inside.to_owned(), byte_size, modified_ns)?);
            return Some(());
        }
        if entered.contains(&identity(&status)) {
            return None;
        }
        entered.push(identity(&status));
        for name in self.entries(inside).ok()? {
            // Python creates it when a model is loaded.
            if name != "__pycache__" {
                self.add_fingerprints(&inside.join(name), entered, fingerprints)?;
            }
        }
        entered.pop();
        Some(())
    }

    /// The newest time of a file, or of a directory and everything in it.
    fn newest(&self, inside: &Path, entered: &mut Entered) -> i64 {
        let Some(status) = self.status(inside) else { return 0 };
        let mut newest = changed_ns(&status);
        let is_directory = FileType::from_raw_mode(status.st_mode) == FileType::Directory;
        if !is_directory || entered.contains(&identity(&status)) {
            return newest;
        }
        entered.push(identity(&status));
        for name in self.entries(inside).unwrap_or_default() {
            newest = newest.max(self.newest(&inside.join(name), entered));
        }
        entered.pop();
        newest
    }
}

/// As in Triton, the time at which the file was put in its place counts too: a directory
/// that replaces another one may be older.
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
    use crate::testing::Scratch;
    use crate::{Lookup, Repository, ScanOptions};

    /// Later than the time at which any file is put in its place.
    const FUTURE_S: u64 = 4_000_000_000;

    fn ns(seconds: u64) -> i64 {
        i64::try_from(FUTURE_S + seconds).unwrap() * NS_PER_S
    }

    fn touch(scratch: &Scratch, path: &str, seconds: u64) {
        touch_at(scratch, path, FUTURE_S + seconds);
    }

    fn touch_at(scratch: &Scratch, path: &str, seconds: u64) {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let file = File::open(scratch.path().join(path)).unwrap();
        file.set_times(FileTimes::new().set_modified(time)).unwrap();
    }

    fn times_of(scratch: &Scratch, config_name: Option<&str>) -> ModificationTimes {
        let repository = Repository::open([scratch.path().join("r")]).unwrap();
        let config_name = config_name.map(str::to_owned);
        let options = ScanOptions { config_name, ..ScanOptions::default() };
        match repository.find("m", &options) {
            Lookup::Models(mut sources) => sources.remove(0).modified,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_file_counts_for_its_version_or_for_what_versions_share() {
        let scratch = Scratch::new();
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
        let scratch = Scratch::new();
        let file = |path: &str, text: &str| scratch.file(&format!("r/m/{path}"), text);
        let fingerprints = || {
            let repository = Repository::open([scratch.path().join("r")]).unwrap();
            let Lookup::Models(models) = repository.find("m", &ScanOptions::default()) else {
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
