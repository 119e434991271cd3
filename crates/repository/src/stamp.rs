//! When the files of a model changed last.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::path::Path;

use galatea_policy::Stamp;
use rustix::fs::FileType;

use crate::ModelDirectory;
use crate::beneath;
use crate::scan::version_number;

const NS_PER_S: i64 = 1_000_000_000;

/// The times of everything in a model's directory.
///
/// As in the original, what can't be looked at counts as never changed. A link
/// in the model's directory counts for what it leads to; links below that are
/// not gone into, because they may lead round in circles.
pub(crate) struct Times {
    own: i64,
    entries: Vec<(OsString, i64)>,
}

impl Times {
    pub(crate) fn of(directory: &ModelDirectory) -> Self {
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

    /// What it comes to; `config` is the entry that holds the configuration.
    pub(crate) fn stamp(self, config: Option<&OsStr>) -> Stamp {
        let mut stamp = Stamp { newest: self.own, ..Stamp::default() };
        for (name, newest) in self.entries {
            stamp.newest = stamp.newest.max(newest);
            match name.to_str().map(version_number) {
                Some(Ok(number)) => {
                    stamp.versions.insert(number, newest);
                }
                Some(Err(_)) | None if config == Some(&name) => {}
                Some(Err(_)) | None => stamp.shared = stamp.shared.max(newest),
            }
        }
        stamp
    }
}

struct Visit<'a> {
    directory: &'a ModelDirectory,
}

impl Visit<'_> {
    fn time(&self, inside: &Path) -> Option<(i64, FileType)> {
        let path = self.directory.prefixed(inside);
        let handle = beneath::locate(self.directory.boundary().as_fd(), &path).ok()?;
        let status = rustix::fs::fstat(&handle).ok()?;
        let ns = i64::try_from(status.st_mtime_nsec).unwrap_or_default();
        let time = status.st_mtime.saturating_mul(NS_PER_S).saturating_add(ns);
        Some((time, FileType::from_raw_mode(status.st_mode)))
    }

    /// The newest time of a file, or of a directory and everything in it.
    fn newest(&self, inside: &Path) -> i64 {
        let Some((mut newest, kind)) = self.time(inside) else { return 0 };
        if kind != FileType::Directory {
            return newest;
        }
        let boundary = self.directory.boundary().as_fd();
        let entries = beneath::list_kinds(boundary, &self.directory.prefixed(inside));
        for (name, kind) in entries.unwrap_or_default() {
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

#[cfg(test)]
mod tests {
    use std::fs::{File, FileTimes};
    use std::os::unix::fs::symlink;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::directory::tests::Scratch;
    use crate::{Finding, Repository, ScanOptions};

    const SECOND: i64 = NS_PER_S;

    fn touch(scratch: &Scratch, path: &str, seconds: u64) {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let file = File::open(scratch.path().join(path)).unwrap();
        file.set_times(FileTimes::new().set_modified(time)).unwrap();
    }

    fn look(scratch: &Scratch, config_name: Option<&str>) -> Stamp {
        let repository = Repository::open([scratch.path().join("r")]).unwrap();
        let options = ScanOptions { config_name: config_name.map(str::to_owned) };
        match repository.find("m", &options) {
            Finding::Model(source) => source.stamp,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn everything_in_the_directory_counts_where_it_belongs() {
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
        let same = look(&scratch, None);
        let versions = [(1, 10 * SECOND), (2, 10 * SECOND)].into();
        assert_eq!(same, Stamp { newest: 10 * SECOND, versions, shared: 10 * SECOND });

        touch(&scratch, "r/m/config.pbtxt", 20);
        let stamp = look(&scratch, None);
        assert_eq!((stamp.newest, stamp.shared), (20 * SECOND, 10 * SECOND));
        touch(&scratch, "r/m/2/deep/er/weights", 30);
        let stamp = look(&scratch, None);
        assert_eq!(stamp.newest, 30 * SECOND);
        assert_eq!(stamp.versions, [(1, 10 * SECOND), (2, 30 * SECOND)].into());
        touch(&scratch, "r/m/configs/x.pbtxt", 40);
        assert_eq!(look(&scratch, None).shared, 40 * SECOND, "a configuration that isn't used");
        assert_eq!(look(&scratch, Some("x")).shared, 20 * SECOND, "the other isn't used now");
        touch(&scratch, "r/m", 50);
        let stamp = look(&scratch, None);
        assert_eq!((stamp.newest, stamp.shared), (50 * SECOND, 40 * SECOND));
    }
}
