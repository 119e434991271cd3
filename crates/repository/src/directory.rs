//! A model's directory and those of its versions, as backends see them.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use galatea_backend::ModelFiles;
use galatea_infer::Status;
use rustix::io::Errno;

use crate::beneath;

/// The directory of a model, with the handle that bounds it.
#[derive(Clone, Debug)]
pub struct ModelDirectory {
    path: PathBuf,
    /// Links inside the model's directory may lead to anywhere below this.
    boundary: Arc<OwnedFd>,
    /// The way from the boundary to the model's directory.
    prefix: PathBuf,
}

impl ModelDirectory {
    pub(crate) const fn new(path: PathBuf, boundary: Arc<OwnedFd>, prefix: PathBuf) -> Self {
        Self { path, boundary, prefix }
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
    /// `InvalidArgument` if `name` leads out of the directory, `NotFound` if
    /// nothing is there.
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
        let relative = checked_relative(name)?;
        let inside = folder.join(relative);
        match beneath::locate(self.boundary.as_fd(), &self.prefixed(&inside)) {
            Ok(_) => Ok(self.path.join(inside)),
            Err(Errno::XDEV) => Err(leads_out(name)),
            Err(Errno::NOENT | Errno::NOTDIR) => {
                let path = self.path.join(inside);
                Err(Status::not_found(format!("there is no '{}'", path.display())))
            }
            Err(error) => {
                let path = self.path.join(inside);
                let reason = std::io::Error::from(error);
                Err(Status::invalid_argument(format!("can't open '{}': {reason}", path.display())))
            }
        }
    }
}

/// A name from a configuration may go down, never up or elsewhere, whatever
/// lies there: `a/../b` is refused even where it would stay inside.
fn checked_relative(name: &str) -> Result<&Path, Status> {
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
        assert_eq!(directory.resolve("labels.txt"), Ok(expected));
        let code = directory.resolve("../b/labels.txt").unwrap_err().code();
        assert_eq!(code, Code::InvalidArgument);
    }
}
