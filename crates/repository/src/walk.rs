//! A walk over everything in a model's directory. It terminates regardless of the targets of links.
//!
//! A link is followed as if its target were in its place. The walk does not enter a directory that
//! this branch of the walk has already entered, a directory that contains the repository, or a file
//! system that exposes kernel state.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, Stat};

use crate::beneath::OpenDirectory;
use crate::directory::ModelDirectory;

/// The maximum depth. Deeper directories are not entered.
const DEPTH_MAX: usize = 64;
/// The maximum number of files and directories to examine in a model.
pub(crate) const ENTRIES_MAX: usize = 1 << 18;

/// The types of file systems whose files are generated on access.
const PROC: i64 = 0x9fa0;
const SYSFS: i64 = 0x6265_6572;

/// A directory's identity: its device and inode.
type Identity = (u64, u64);

/// The directories that one branch of a walk has entered.
#[derive(Default)]
pub(crate) struct EnteredDirectories(HashSet<Identity>);

/// The result of visiting a path.
pub(crate) enum VisitResult {
    /// A file, or anything else that is not a directory.
    File(Stat),
    /// A directory to enter.
    Directory(Directory),
    /// A directory that must not be entered.
    NotEntered(Stat),
    /// No entry: the path can't be examined, or the limit has been reached.
    Nothing,
}

/// A directory and the names in it.
pub(crate) struct Directory {
    pub(crate) status: Stat,
    pub(crate) entries: Vec<OsString>,
}

/// A walk through a model's directory.
pub(crate) struct DirectoryWalk {
    directory: OpenDirectory,
    /// The model's directory and the directories that contain the repository.
    above: HashSet<Identity>,
    /// True if the model's directory itself contains the repository.
    is_above: bool,
    entries_left: usize,
}

impl DirectoryWalk {
    /// Begins at the model's directory. Returns `None` if the directory can't be examined.
    pub(crate) fn begin(directory: &ModelDirectory) -> Option<(Self, Directory)> {
        let opened = directory.open().ok()?;
        let handle = opened.locate(Path::new("")).ok()?;
        let status = rustix::fs::fstat(&handle).ok()?;
        let mut above = directory.path().parent().map(and_above).unwrap_or_default();
        let is_above = !above.insert(identity(&status));
        let mut walk = Self { directory: opened, above, is_above, entries_left: ENTRIES_MAX };
        let entries = if is_of_kernel(&handle) { Vec::new() } else { walk.entries(Path::new("")) };
        Some((walk, Directory { status, entries }))
    }

    /// Returns true if some entries have not been examined.
    pub(crate) const fn is_cut(&self) -> bool {
        self.entries_left == 0
    }

    /// Visits a path in the model's directory.
    pub(crate) fn visit(&mut self, inside: &Path, entered: &mut EnteredDirectories) -> VisitResult {
        let Ok(handle) = self.directory.locate(inside) else { return VisitResult::Nothing };
        let Ok(status) = rustix::fs::fstat(&handle) else { return VisitResult::Nothing };
        if FileType::from_raw_mode(status.st_mode) != FileType::Directory {
            return VisitResult::File(status);
        }
        let is_barred = self.is_above
            || self.above.contains(&identity(&status))
            || inside.components().count() > DEPTH_MAX
            || is_of_kernel(&handle);
        if is_barred || !entered.0.insert(identity(&status)) {
            return VisitResult::NotEntered(status);
        }
        let entries = self.entries(inside);
        VisitResult::Directory(Directory { status, entries })
    }

    /// The names in a directory, up to the number that may still be examined.
    fn entries(&mut self, inside: &Path) -> Vec<OsString> {
        let mut entries = self.directory.list(inside).unwrap_or_default();
        entries.truncate(self.entries_left);
        self.entries_left -= entries.len();
        entries
    }
}

/// A directory and all directories that contain it.
fn and_above(directory: &Path) -> HashSet<Identity> {
    let Ok(directory) = directory.canonicalize() else { return HashSet::new() };
    let statuses = directory.ancestors().filter_map(|path| rustix::fs::stat(path).ok());
    statuses.map(|status| identity(&status)).collect()
}

fn identity(status: &Stat) -> Identity {
    (status.st_dev, status.st_ino)
}

/// Returns true if the file is in one of the kernel's own file systems.
fn is_of_kernel(handle: &OwnedFd) -> bool {
    let status = rustix::fs::fstatfs(handle);
    status.is_ok_and(|status| [PROC, SYSFS].contains(&status.f_type))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::beneath::SymlinkPolicy;
    use crate::testing::ScratchDirectory;

    /// Walks through a whole model and returns the visited names.
    fn visited(scratch: &ScratchDirectory, model: &str) -> Vec<String> {
        let directory = ModelDirectory::new(scratch.path().join(model), SymlinkPolicy::Followed);
        let (mut walk, own) = DirectoryWalk::begin(&directory).unwrap();
        let mut names = Vec::new();
        let mut waiting: Vec<_> = own.entries.into_iter().map(std::path::PathBuf::from).collect();
        let mut entered = EnteredDirectories::default();
        while let Some(path) = waiting.pop() {
            names.push(path.display().to_string());
            assert!(names.len() < 1000, "the walk goes on: {names:?}");
            if let VisitResult::Directory(directory) = walk.visit(&path, &mut entered) {
                waiting.extend(directory.entries.into_iter().map(|name| path.join(name)));
            }
        }
        names.sort();
        names
    }

    #[test]
    fn links_are_followed_once_and_never_up_or_into_the_kernel() {
        let scratch = ScratchDirectory::new();
        scratch.file("elsewhere/files/weights", "");
        scratch.file("r/other/1/model.onnx", "");
        scratch.file("r/m/1/model.onnx", "");
        let link = |target: &str, path: &str| symlink(target, scratch.path().join(path)).unwrap();
        link("..", "r/m/1/model");
        link("../..", "r/m/1/repository");
        link("/", "r/m/1/root");
        link("/proc/self", "r/m/1/process");
        link("/sys", "r/m/1/system");
        link("../../../elsewhere", "r/m/1/files");
        link("../../../elsewhere/files", "r/m/1/same");
        link("..", "elsewhere/files/round");
        let expected = [
            "1",
            "1/files",
            "1/model",
            "1/model.onnx",
            "1/process",
            "1/repository",
            "1/root",
            "1/same",
            "1/same/round",
            "1/same/round/files",
            "1/same/weights",
            "1/system",
        ];
        assert_eq!(visited(&scratch, "r/m"), expected);
    }

    #[test]
    fn a_model_that_contains_its_repository_or_is_the_kernels_is_not_walked() {
        let scratch = ScratchDirectory::new();
        scratch.file("beside/file", "");
        scratch.file("r/m/1/model.onnx", "");
        symlink("..", scratch.path().join("r/up")).unwrap();
        symlink("/proc/self", scratch.path().join("r/process")).unwrap();
        assert_eq!(visited(&scratch, "r/up"), ["beside", "r"]);
        assert_eq!(visited(&scratch, "r/process"), [""; 0]);
    }

    #[test]
    fn depth_and_number_of_entries_are_bounded() {
        let scratch = ScratchDirectory::new();
        let deep = vec!["d"; DEPTH_MAX + 5].join("/");
        scratch.file(&format!("r/m/{deep}/file"), "");
        assert_eq!(visited(&scratch, "r/m").len(), DEPTH_MAX + 1);
        let directory = ModelDirectory::new(scratch.path().join("r/m"), SymlinkPolicy::Followed);
        let (mut walk, _) = DirectoryWalk::begin(&directory).unwrap();
        walk.entries_left = 1;
        let mut entered = EnteredDirectories::default();
        let mut names = |path: &str| match walk.visit(Path::new(path), &mut entered) {
            VisitResult::Directory(directory) => directory.entries.len(),
            VisitResult::File(_) | VisitResult::NotEntered(_) | VisitResult::Nothing => usize::MAX,
        };
        assert_eq!((names("d"), names("d/d")), (1, 0));
        assert!(walk.is_cut());
    }
}
