//! A model's directory and those of its versions, as backends see them.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use galatea_backend::{ExpectedFileSize, FileFingerprint, ModelFiles};
use galatea_infer::Status;
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::beneath;
use crate::overlay::TemporaryDirectory;
use crate::stamp::marks;

/// The directory in a model's directory where the states that its sequences
/// begin with lie.
const INITIAL_STATE_DIRECTORY: &str = "initial_state";

/// The directory in a model's directory with the data of warmup samples.
const WARMUP_DIRECTORY: &str = "warmup";

/// The directory of a model, with the handle that bounds it.
#[derive(Clone, Debug)]
pub struct ModelDirectory {
    path: PathBuf,
    /// Links inside the model's directory may lead to anywhere below this.
    boundary: Arc<OwnedFd>,
    /// The way from the boundary to the model's directory.
    prefix: PathBuf,
    /// Removes the directory when nobody uses it any more.
    _guard: Option<Arc<TemporaryDirectory>>,
}

impl ModelDirectory {
    pub(crate) const fn new(path: PathBuf, boundary: Arc<OwnedFd>, prefix: PathBuf) -> Self {
        Self { path, boundary, prefix, _guard: None }
    }

    /// The same directory, which goes with the last that uses it.
    pub(crate) fn kept_by(self, guard: Arc<TemporaryDirectory>) -> Self {
        Self { _guard: Some(guard), ..self }
    }

    /// Where the directory is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file or directory in the model's directory, for names
    /// that come out of a configuration.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if `name` leads out of the directory or is neither a file
    /// nor a directory, `NotFound` if nothing is there.
    pub fn resolve(&self, name: &str) -> Result<PathBuf, Status> {
        self.resolve_in(Path::new(""), name)
    }

    /// The directory of one of its versions.
    #[must_use]
    pub fn version(&self, version: i64) -> VersionDirectory {
        let name = PathBuf::from(version.to_string());
        VersionDirectory { path: self.path.join(&name), name, version, model: self.clone() }
    }

    pub(crate) fn boundary(&self) -> &OwnedFd {
        &self.boundary
    }

    /// The way from the boundary to something in the model's directory; an
    /// empty `name` is the directory itself.
    pub(crate) fn prefixed(&self, name: &Path) -> PathBuf {
        let path = self.prefix.join(name);
        if path.as_os_str().is_empty() { PathBuf::from(".") } else { path }
    }

    fn resolve_in(&self, folder: &Path, name: &str) -> Result<PathBuf, Status> {
        let inside = folder.join(checked_relative(name)?);
        match beneath::locate(self.boundary.as_fd(), &self.prefixed(&inside)) {
            Ok(handle) => {
                let kind = beneath::file_type(&handle).map_err(io::Error::from);
                // Whoever opens a named pipe waits until somebody writes to it.
                match kind {
                    Ok(FileType::RegularFile | FileType::Directory) => Ok(self.path.join(inside)),
                    Ok(_) => {
                        let error = io::Error::other("neither a file nor a directory");
                        Err(self.not_opened(&inside, name, error))
                    }
                    Err(error) => Err(self.not_opened(&inside, name, error)),
                }
            }
            Err(error) => Err(self.not_opened(&inside, name, error.into())),
        }
    }

    fn read_in(
        &self,
        folder: &Path,
        name: &str,
        size: ExpectedFileSize,
    ) -> Result<Vec<u8>, Status> {
        let inside = folder.join(checked_relative(name)?);
        let content = beneath::open_file(self.boundary.as_fd(), &self.prefixed(&inside))
            .map_err(|error| self.not_opened(&inside, name, error))?;
        read_sized(content, size).map_err(|reason| {
            let path = self.path.join(&inside);
            Status::invalid_argument(format!("file '{}' {reason}", path.display()))
        })
    }

    fn not_opened(&self, inside: &Path, name: &str, error: io::Error) -> Status {
        let path = self.path.join(inside);
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::XDEV) => leads_out(name),
            Some(Errno::NOENT | Errno::NOTDIR) => {
                Status::not_found(format!("there is no '{}'", path.display()))
            }
            _ => Status::invalid_argument(format!("can't open '{}': {error}", path.display())),
        }
    }
}

/// Reads a whole file of the size that is expected. The size is asked for first,
/// so that a file that is much too long is not read.
fn read_sized(file: File, size: ExpectedFileSize) -> Result<Vec<u8>, String> {
    let cannot = |error: io::Error| format!("can't be read: {error}");
    let length = file.metadata().map_err(cannot)?.len();
    let bytes_max = match size {
        ExpectedFileSize::Exactly(expected) => expected,
        ExpectedFileSize::AtMost(bytes_max) => bytes_max,
    };
    let fits = |length: u64| match size {
        ExpectedFileSize::Exactly(expected) if length != expected => {
            Err(format!("has {length} bytes, but {expected} are expected"))
        }
        ExpectedFileSize::AtMost(bytes_max) if length > bytes_max => {
            Err(format!("has {length} bytes, but may have {bytes_max} at most"))
        }
        ExpectedFileSize::Exactly(_) | ExpectedFileSize::AtMost(_) => Ok(()),
    };
    fits(length)?;
    let mut bytes = Vec::new();
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes).map_err(cannot)?;
    // It may have changed since.
    fits(u64::try_from(bytes.len()).unwrap_or(u64::MAX))?;
    Ok(bytes)
}

/// A name from a configuration may go down, never up or elsewhere, whatever
/// lies there: `a/../b` is refused even where it would stay inside.
pub(crate) fn checked_relative(name: &str) -> Result<&Path, Status> {
    let path = Path::new(name);
    let goes_down = path.components().all(|part| matches!(part, Component::Normal(_)));
    if name.is_empty() || name.contains('\0') || !goes_down {
        return Err(leads_out(name));
    }
    Ok(path)
}

fn leads_out(name: &str) -> Status {
    Status::invalid_argument(format!(
        "file name '{}' must stay inside the model's directory",
        name.escape_debug()
    ))
}

/// The directory of one version of a model.
#[derive(Clone, Debug)]
pub struct VersionDirectory {
    model: ModelDirectory,
    name: PathBuf,
    path: PathBuf,
    version: i64,
}

impl ModelFiles for VersionDirectory {
    fn model_path(&self) -> &Path {
        self.model.path()
    }

    fn version(&self) -> i64 {
        self.version
    }

    fn version_path(&self) -> &Path {
        &self.path
    }

    /// The file is checked now and opened later by its path. Whoever can
    /// change the repository in between could put the file there as well.
    fn resolve(&self, name: &str) -> Result<PathBuf, Status> {
        self.model.resolve_in(&self.name, name)
    }

    fn resolve_beside_versions(&self, name: &str) -> Result<PathBuf, Status> {
        self.model.resolve(name)
    }

    fn read_beside_versions(&self, name: &str, size: ExpectedFileSize) -> Result<Vec<u8>, Status> {
        self.model.read_in(Path::new(""), name, size)
    }

    fn fingerprints(&self) -> Option<Vec<FileFingerprint>> {
        marks(&self.model, &self.name)
    }

    fn read_initial_state(&self, name: &str, size: ExpectedFileSize) -> Result<Vec<u8>, Status> {
        self.model.read_in(Path::new(INITIAL_STATE_DIRECTORY), name, size)
    }

    fn read_warmup(&self, name: &str, size: ExpectedFileSize) -> Result<Vec<u8>, Status> {
        self.model.read_in(Path::new(WARMUP_DIRECTORY), name, size)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicU32, Ordering};

    use galatea_infer::Code;

    use super::*;
    use crate::{Repository, ScanOptions};

    /// A directory that vanishes with its value.
    pub(crate) struct Scratch(PathBuf);

    impl Scratch {
        pub(crate) fn new() -> Self {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("galatea-repository-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }

        pub(crate) fn path(&self) -> &Path {
            &self.0
        }

        pub(crate) fn file(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn model(scratch: &Scratch, name: &str) -> ModelDirectory {
        let repository = Repository::open([scratch.path().join("repository")]).unwrap();
        let scan = repository.scan(&ScanOptions::default());
        scan.models.into_iter().find(|model| model.name == name).unwrap().directory
    }

    fn check(directory: &VersionDirectory, name: &str, expected: Result<&str, Code>) {
        let outcome = directory.resolve(name).map_err(|status| status.code());
        assert_eq!(outcome, expected.map(|path| directory.version_path().join(path)), "{name:?}");
    }

    #[test]
    fn names_lead_down_into_the_version_only() {
        let scratch = Scratch::new();
        scratch.file("repository/a/1/model.onnx", "");
        scratch.file("repository/a/1/folder/part", "");
        scratch.file("repository/a/2/model.onnx", "");
        scratch.file("repository/shared/weights", "");
        scratch.file("outside/secret", "");
        let version_path = scratch.path().join("repository/a/1");
        symlink("../../shared/weights", version_path.join("shared")).unwrap();
        symlink("../../../outside/secret", version_path.join("leak")).unwrap();
        symlink("/etc/passwd", version_path.join("absolute")).unwrap();
        let version = model(&scratch, "a").version(1);
        check(&version, "model.onnx", Ok("model.onnx"));
        check(&version, "folder", Ok("folder"));
        check(&version, "folder/part", Ok("folder/part"));
        check(&version, "shared", Ok("shared"));
        check(&version, "leak", Err(Code::InvalidArgument));
        check(&version, "absolute", Err(Code::InvalidArgument));
        check(&version, "../2/model.onnx", Err(Code::InvalidArgument));
        check(&version, "folder/../model.onnx", Err(Code::InvalidArgument));
        check(&version, "/etc/passwd", Err(Code::InvalidArgument));
        check(&version, "", Err(Code::InvalidArgument));
        check(&version, "a\0b", Err(Code::InvalidArgument));
        check(&version, "nothing", Err(Code::NotFound));
        let pipe = version_path.join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, pipe, rustix::fs::Mode::RWXU).unwrap();
        check(&version, "pipe", Err(Code::InvalidArgument));
    }

    #[test]
    fn a_linked_model_directory_bounds_itself() {
        let scratch = Scratch::new();
        scratch.file("elsewhere/model/1/model.onnx", "");
        scratch.file("elsewhere/other", "");
        scratch.file("repository/x/1/y", "");
        symlink("../elsewhere/model", scratch.path().join("repository/linked")).unwrap();
        symlink("../../other", scratch.path().join("elsewhere/model/1/leak")).unwrap();
        let version = model(&scratch, "linked").version(1);
        check(&version, "model.onnx", Ok("model.onnx"));
        check(&version, "leak", Err(Code::InvalidArgument));
    }

    #[test]
    fn a_model_resolves_its_own_files() {
        let scratch = Scratch::new();
        scratch.file("repository/a/labels.txt", "");
        scratch.file("repository/b/labels.txt", "");
        let directory = model(&scratch, "a");
        let expected = scratch.path().join("repository/a/labels.txt");
        assert_eq!(directory.resolve("labels.txt"), Ok(expected.clone()));
        let code = directory.resolve("../b/labels.txt").unwrap_err().code();
        assert_eq!(code, Code::InvalidArgument);
        let version = directory.version(1);
        assert_eq!(version.resolve_beside_versions("labels.txt"), Ok(expected));
        let code = version.resolve_beside_versions("../b/labels.txt").unwrap_err().code();
        assert_eq!(code, Code::InvalidArgument);
    }

    #[test]
    fn initial_states_lie_beside_the_versions_and_have_the_size_that_is_expected() {
        let scratch = Scratch::new();
        scratch.file("repository/a/1/model.onnx", "");
        scratch.file("repository/a/initial_state/zeros", "0123");
        scratch.file("repository/a/config.pbtxt", "");
        scratch.file("outside/secret", "0123");
        let states = scratch.path().join("repository/a/initial_state");
        symlink("../../../outside/secret", states.join("leak")).unwrap();
        symlink("zeros", states.join("same")).unwrap();
        std::fs::create_dir(states.join("folder")).unwrap();
        let version = model(&scratch, "a").version(1);
        let read = |name: &str, size| version.read_initial_state(name, size);
        let beside = |name: &str| version.read_beside_versions(name, ExpectedFileSize::AtMost(9));
        assert_eq!(beside("config.pbtxt").unwrap(), b"");
        assert_eq!(beside("initial_state/zeros").unwrap(), b"0123");
        for leading_out in ["../b", "/etc/passwd", "initial_state/leak", ""] {
            let status = beside(leading_out).unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument, "{leading_out:?}");
        }
        assert_eq!(read("zeros", ExpectedFileSize::Exactly(4)).unwrap(), b"0123");
        assert_eq!(read("same", ExpectedFileSize::AtMost(4)).unwrap(), b"0123");
        assert_eq!(
            version.read_warmup("zeros", ExpectedFileSize::AtMost(4)).unwrap_err().code(),
            Code::NotFound
        );
        scratch.file("repository/a/warmup/zeros", "45");
        assert_eq!(version.read_warmup("zeros", ExpectedFileSize::AtMost(4)).unwrap(), b"45");
        let refused = |name: &str, size, code, part: &str| {
            let status = read(name, size).unwrap_err();
            assert_eq!(status.code(), code, "{status}");
            assert!(status.message().contains(part), "{status}");
        };
        let invalid = Code::InvalidArgument;
        let exactly = ExpectedFileSize::Exactly;
        refused("zeros", exactly(5), invalid, "zeros' has 4 bytes, but 5 are expected");
        refused("zeros", exactly(3), invalid, "zeros' has 4 bytes, but 3 are expected");
        refused("zeros", ExpectedFileSize::AtMost(3), invalid, "but may have 3 at most");
        refused("nothing", exactly(4), Code::NotFound, "initial_state/nothing'");
        refused("folder", exactly(4), invalid, "not a regular file");
        refused("leak", exactly(4), invalid, "must stay inside the model's directory");
        refused("../config.pbtxt", exactly(0), invalid, "must stay inside");
        refused("/etc/passwd", exactly(0), invalid, "must stay inside");
        refused("", exactly(0), invalid, "must stay inside");
    }
}
