//! When the files of a model changed last.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use galatea_backend::FileFingerprint;
use galatea_policy::ModificationTimes;
use rustix::fs::{FileType, Stat};

use crate::beneath;
use crate::directory::ModelDirectory;
use crate::version::version_number;

const NS_PER_S: i64 = 1_000_000_000;

/// The times of everything in a model's directory.
///
/// As in Triton, an entry that can't be examined counts as never changed. A link in the
/// model's directory counts as its target. Links below that are not followed, because
/// they may form a cycle.
pub(crate) struct DirectoryTimes {
    own: i64,
    entries: Vec<(OsString, i64)>,
}

impl DirectoryTimes {
    pub(crate) fn read(directory: &ModelDirectory) -> Self {
        let visit = Visit { directory };
        let boundary = directory.boundary().as_fd();
        let names = beneath::list(boundary, &directory.prefixed(Path::new("")));
        let time = |name: OsString| {
            let newest = visit.newest(Path::new(&name));
            (name, newest)
        };
        Self {
            own: visit.time(Path::new("")).map_or(0, |(time, _)| time),
            entries: names.unwrap_or_default().into_iter().map(time).collect(),
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
/// path. `None` if a file can't be examined, lies behind a link that isn't followed, or
/// was changed too recently for its time to identify its content.
pub(crate) fn file_fingerprints(
    directory: &ModelDirectory,
    version: &Path,
) -> Option<Vec<FileFingerprint>> {
    let visit = Visit { directory };
    let mut fingerprints = Vec::new();
    for (name, kind) in visit.entries(Path::new("")).ok()? {
        let name = Path::new(&name);
        let number = name.to_str().map(version_number);
        if name == version || number.is_none_or(|number| number.is_err()) {
            visit.add_fingerprints(name, (kind, Depth::First), &mut fingerprints)?;
        }
    }
    fingerprints.sort_unstable();
    Some(fingerprints)
}

/// Links are followed in the model's own directory only, as for the times.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Depth {
    First,
    Below,
}

struct Visit<'a> {
    directory: &'a ModelDirectory,
}

impl Visit<'_> {
    fn time(&self, inside: &Path) -> Option<(i64, FileType)> {
        let status = self.status(inside)?;
        Some((modified_ns(&status), FileType::from_raw_mode(status.st_mode)))
    }

    fn status(&self, inside: &Path) -> Option<Stat> {
        let path = self.directory.prefixed(inside);
        let handle = beneath::locate(self.directory.boundary().as_fd(), &path).ok()?;
        rustix::fs::fstat(&handle).ok()
    }

    fn entries(&self, inside: &Path) -> io::Result<Vec<(OsString, FileType)>> {
        let boundary = self.directory.boundary().as_fd();
        beneath::list_kinds(boundary, &self.directory.prefixed(inside))
    }

    /// Adds the fingerprint of a file, or of each file in a directory.
    fn add_fingerprints(
        &self,
        inside: &Path,
        (kind, depth): (FileType, Depth),
        fingerprints: &mut Vec<FileFingerprint>,
    ) -> Option<()> {
        let status = self.status(inside)?;
        if FileType::from_raw_mode(status.st_mode) != FileType::Directory {
            let byte_size = u64::try_from(status.st_size).ok()?;
            let modified_ns = modified_ns(&status);
            fingerprints.push(FileFingerprint::new(inside.to_owned(), byte_size, modified_ns)?);
            return Some(());
        }
        if kind == FileType::Symlink && depth == Depth::Below {
            return None;
        }
        for (name, kind) in self.entries(inside).ok()? {
            // Python creates it when a model is loaded.
            if name != "__pycache__" {
                self.add_fingerprints(&inside.join(name), (kind, Depth::Below), fingerprints)?;
            }
        }
        Some(())
    }

    /// The newest time of a file, or of a directory and everything in it.
    fn newest(&self, inside: &Path) -> i64 {
        let Some((mut newest, kind)) = self.time(inside) else { return 0 };
        if kind != FileType::Directory {
            return newest;
        }
        for (name, kind) in self.entries(inside).unwrap_or_default() {
            let below = inside.join(name);
            let time = match kind {
                FileType::Symlink => self.time(&below).map_or(0, |(time, _)| time),
                _ => self.newest(&below),
            };
            newest = newest.max(time);
        }
        newest
    }
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

    const SECOND: i64 = NS_PER_S;

    fn touch(scratch: &Scratch, path: &str, seconds: u64) {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let file = File::open(scratch.path().join(path)).unwrap();
        file.set_times(FileTimes::new().set_modified(time)).unwrap();
    }

    fn times_of(scratch: &Scratch, config_name: Option<&str>) -> ModificationTimes {
        let repository = Repository::open([scratch.path().join("r")]).unwrap();
        let options = ScanOptions { config_name: config_name.map(str::to_owned) };
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
        let versions = [(1, 10 * SECOND), (2, 10 * SECOND)].into();
        assert_eq!(same, ModificationTimes { newest: 10 * SECOND, versions, shared: 10 * SECOND });

        touch(&scratch, "r/m/config.pbtxt", 20);
        let modified = times_of(&scratch, None);
        assert_eq!((modified.newest, modified.shared), (20 * SECOND, 10 * SECOND));
        touch(&scratch, "r/m/2/deep/er/weights", 30);
        let modified = times_of(&scratch, None);
        assert_eq!(modified.newest, 30 * SECOND);
        assert_eq!(modified.versions, [(1, 10 * SECOND), (2, 30 * SECOND)].into());
        touch(&scratch, "r/m/configs/x.pbtxt", 40);
        assert_eq!(times_of(&scratch, None).shared, 40 * SECOND, "a configuration that isn't used");
        assert_eq!(times_of(&scratch, Some("x")).shared, 20 * SECOND, "the other isn't used now");
        touch(&scratch, "r/m", 50);
        let modified = times_of(&scratch, None);
        assert_eq!((modified.newest, modified.shared), (50 * SECOND, 40 * SECOND));
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
        touch(&scratch, "r/m/1/model", 1_000_000_000);
        assert_ne!(fingerprints().unwrap().1, before);
        touch(&scratch, "r/m/1/deep/er", 1);
        assert!(fingerprints().is_none(), "a file that may have changed and kept its time");
        touch(&scratch, "r/m/1/deep/er", 1_000_000_000);
        assert!(fingerprints().is_some());
        symlink("../deep", scratch.path().join("r/m/1/deep/link")).unwrap();
        assert!(fingerprints().is_none(), "what is behind a link can't be told");
    }
}
