//! Models whose files come with their load request.
//!
//! Backends open files by path, so the files are written to a separate directory. Only this user
//! can enter it, and it is removed when the last user of the model is dropped.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use galatea_infer::Status;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::beneath::{self, SymlinkPolicy};
use crate::directory::ModelDirectory;
use crate::source::{CONFIG_FILE, ScannedModel};
use crate::temporary::TemporaryDirectories;

/// A factory for models whose files are in memory.
#[derive(Debug)]
pub struct UploadedModelFactory {
    directories: TemporaryDirectories,
}

impl UploadedModelFactory {
    /// Creates directories in `parent`.
    #[must_use]
    pub fn new(parent: impl Into<PathBuf>) -> Self {
        Self { directories: TemporaryDirectories::new(parent.into()) }
    }

    /// Creates a model from these files, keyed by path in the model's directory. Its configuration
    /// is not read from them; the text is a file that backends may read.
    ///
    /// # Errors
    ///
    /// Returns `InvalidArgument` if a path leads out of the directory or goes through a file, and
    /// `Internal` if a file can't be written.
    pub fn create(
        &self,
        name: &str,
        config: Option<&str>,
        files: &[(String, Vec<u8>)],
    ) -> Result<ScannedModel, Status> {
        let failed = |error: io::Error| {
            Status::internal(format!("can't keep the files of model '{name}': {error}"))
        };
        let temporary = self.directories.create().map_err(failed)?;
        let handle = beneath::open_directory(&temporary.path).map_err(failed)?;
        if let Some(text) = config {
            write(&handle, Path::new(CONFIG_FILE), text.as_bytes()).map_err(failed)?;
        }
        for (path, content) in files {
            let inside = inside(path)?;
            write(&handle, &inside, content).map_err(|error| write_error(path, &error))?;
        }
        let directory = ModelDirectory::new(temporary.path.clone(), SymlinkPolicy::Beneath);
        let source = ScannedModel::without_config(name, directory.with_temporary(temporary));
        source.map_err(|reason| Status::internal(format!("model '{name}': {reason}")))
    }
}

/// Resolves a client's path relative to the model's directory: `/a` becomes `a`, and `a/../b`
/// becomes `b`. There are no links, so the file system need not be consulted.
fn inside(path: &str) -> Result<PathBuf, Status> {
    let refused = || {
        Status::invalid_argument(format!(
            "Invalid file parameter 'file:{}' must stay within model directory.",
            path.escape_debug()
        ))
    };
    let mut inside = PathBuf::new();
    for component in Path::new(path).components() {
        match component {
            Component::Normal(name) => inside.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir if inside.pop() => {}
            Component::ParentDir | Component::Prefix(_) => return Err(refused()),
        }
    }
    if inside.as_os_str().is_empty() || path.contains('\0') {
        return Err(refused());
    }
    Ok(inside)
}

/// Writes a file. Each directory on its path is created or opened within its parent, without
/// following links.
fn write(root: &OwnedFd, path: &Path, content: &[u8]) -> io::Result<()> {
    let Some(name) = path.file_name() else { return Err(io::Error::other("it has no name")) };
    let mut reached: Option<OwnedFd> = None;
    for component in path.parent().into_iter().flat_map(Path::components) {
        let from = reached.as_ref().unwrap_or(root).as_fd();
        match rustix::fs::mkdirat(from, component.as_os_str(), Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let next = rustix::fs::openat(from, component.as_os_str(), flags, Mode::empty())?;
        reached = Some(next);
    }
    let from = reached.as_ref().unwrap_or(root).as_fd();
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(from, name, flags, Mode::RUSR | Mode::WUSR)?;
    File::from(file).write_all(content)
}

fn write_error(path: &str, error: &io::Error) -> Status {
    let path = path.escape_debug();
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOTDIR | Errno::ISDIR) => Status::invalid_argument(format!(
            "file '{path}' and another one can't both be: one of them is the other's directory"
        )),
        _ => Status::internal(format!("can't write file '{path}': {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use galatea_backend::ModelFiles;
    use galatea_infer::Code;

    use super::*;
    use crate::testing::ScratchDirectory;

    fn files(paths: &[&str]) -> Vec<(String, Vec<u8>)> {
        paths.iter().map(|path| ((*path).to_owned(), path.as_bytes().to_vec())).collect()
    }

    #[test]
    fn files_exist_until_their_last_user_is_dropped() {
        let scratch = ScratchDirectory::new();
        let overlays = UploadedModelFactory::new(scratch.path());
        let paths = ["1/model.onnx", "1/deep/weights", "labels.txt", "3/model.onnx"];
        let source = overlays.create("m", None, &files(&paths)).unwrap();
        let numbers: Vec<i64> = source.versions.iter().map(|version| version.number).collect();
        assert_eq!(numbers, [1, 3]);
        assert_eq!(source.versions[0].files, ["deep", "model.onnx"]);
        let version = source.directory.version_directory(1);
        let mode = std::fs::metadata(version.model_path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        drop(source);
        let weights = version.resolve("deep/weights").unwrap();
        assert_eq!(std::fs::read(weights).unwrap(), b"1/deep/weights");
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 1);
        drop(version);
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
    }

    #[test]
    fn cve_2023_31036_no_file_leaves_the_directory() {
        let scratch = ScratchDirectory::new();
        let parent = scratch.path().join("parent");
        std::fs::create_dir(&parent).unwrap();
        let overlays = UploadedModelFactory::new(&parent);
        for path in ["../x", "1/../../x", "/../x", "", "a\0b", "..", "/", "1/.."] {
            let status = overlays.create("m", None, &files(&["1/model.onnx", path])).unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument, "{path:?}");
        }
        for clash in [["1", "1/model.onnx"], ["1/model.onnx", "1"]] {
            let status = overlays.create("m", None, &files(&clash)).unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        }
        assert_eq!(std::fs::read_dir(&parent).unwrap().count(), 0, "nothing is left");
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 1, "nothing got out");
    }

    #[test]
    fn paths_start_in_the_directory() {
        let scratch = ScratchDirectory::new();
        let overlays = UploadedModelFactory::new(scratch.path());
        let paths = ["/1/model.onnx", "./1/../2/x", "//etc/passwd", "a/.././b"];
        let source = overlays.create("m", Some("backend: \"b\""), &files(&paths)).unwrap();
        let read = |path: &str| std::fs::read(source.directory.path().join(path)).unwrap();
        for (path, asked) in ["1/model.onnx", "2/x", "etc/passwd", "b"].into_iter().zip(paths) {
            assert_eq!(read(path), asked.as_bytes(), "{path}");
        }
        assert_eq!(read("config.pbtxt"), b"backend: \"b\"");
        let own = [(String::from("config.pbtxt"), b"its own".to_vec())];
        let source = overlays.create("m", Some("given"), &own).unwrap();
        let kept = std::fs::read(source.directory.path().join("config.pbtxt")).unwrap();
        assert_eq!(kept, b"its own");
    }
}
