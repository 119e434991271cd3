//! The directory of one model version, as seen by its backend.

use std::path::{Path, PathBuf};

use galatea_backend::{FileFingerprint, FileReadLimit, ModelFiles};
use galatea_infer::Status;

use crate::directory::ModelDirectory;
use crate::modification::{file_fingerprints, version_bytes};

/// The subdirectory of a model's directory that contains initial-state files.
const INITIAL_STATE_DIRECTORY: &str = "initial_state";

/// The subdirectory of a model's directory that contains warmup data.
const WARMUP_DIRECTORY: &str = "warmup";

/// The directory of one version of a model.
#[derive(Clone, Debug)]
pub struct VersionDirectory {
    model: ModelDirectory,
    name: PathBuf,
    path: PathBuf,
    version: i64,
}

impl ModelDirectory {
    /// Returns the directory of one of the model's versions.
    #[must_use]
    pub fn version_directory(&self, version: i64) -> VersionDirectory {
        let name = PathBuf::from(version.to_string());
        VersionDirectory { path: self.path().join(&name), name, version, model: self.clone() }
    }

    /// Returns the sizes of all files of one of the model's versions, in bytes. The sizes of a
    /// model in a bucket come from the bucket's listing, so its files needn't have been fetched.
    #[must_use]
    pub fn version_bytes(&self, version: i64) -> u64 {
        self.listed_version_bytes(version).unwrap_or_else(|| version_bytes(self, version))
    }
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

    fn fetch_ahead(&self) {
        self.model.fetch_ahead();
    }

    fn fetch(&self) -> Result<(), Status> {
        self.model.fetch()
    }

    /// Resolves and checks a file that is opened by path later. Another process may change the file
    /// in between, but a process that can do so could put any file there anyway.
    fn resolve(&self, name: &str) -> Result<PathBuf, Status> {
        self.model.resolve_in(&self.name, name)
    }

    fn resolve_in_model_directory(&self, name: &str) -> Result<PathBuf, Status> {
        self.model.resolve_entry(name)
    }

    fn read_in_model_directory(&self, name: &str, size: FileReadLimit) -> Result<Vec<u8>, Status> {
        self.model.read_in(Path::new(""), name, size)
    }

    fn fingerprints(&self) -> Option<Vec<FileFingerprint>> {
        file_fingerprints(&self.model, &self.name)
    }

    fn read_initial_state(&self, name: &str, size: FileReadLimit) -> Result<Vec<u8>, Status> {
        self.model.read_in(Path::new(INITIAL_STATE_DIRECTORY), name, size)
    }

    fn read_warmup(&self, name: &str, size: FileReadLimit) -> Result<Vec<u8>, Status> {
        self.model.read_text_file(Path::new(WARMUP_DIRECTORY), name, size)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use galatea_infer::Code;

    use super::*;
    use crate::testing::ScratchDirectory;
    use crate::{ModelRepositories, ScanOptions};

    fn model(scratch: &ScratchDirectory, name: &str) -> ModelDirectory {
        let repository = ModelRepositories::open([scratch.path().join("repository")]).unwrap();
        let scan = repository.scan(&ScanOptions::default());
        scan.models.into_iter().find(|model| model.name == name).unwrap().directory
    }

    fn check(directory: &VersionDirectory, name: &str, expected: Result<&str, Code>) {
        let outcome = directory.resolve(name).map_err(|status| status.code());
        assert_eq!(outcome, expected.map(|path| directory.version_path().join(path)), "{name:?}");
    }

    #[test]
    fn names_lead_only_down_into_the_version() {
        let scratch = ScratchDirectory::new();
        scratch.file("repository/a/1/model.onnx", "");
        scratch.file("repository/a/1/folder/part", "");
        scratch.file("repository/a/2/model.onnx", "");
        scratch.file("repository/shared/weights", "");
        scratch.file("outside/secret", "");
        let version_path = scratch.path().join("repository/a/1");
        symlink("../../shared/weights", version_path.join("shared")).unwrap();
        symlink("../../../outside/secret", version_path.join("outside")).unwrap();
        symlink("/etc/passwd", version_path.join("absolute")).unwrap();
        let version = model(&scratch, "a").version_directory(1);
        check(&version, "model.onnx", Ok("model.onnx"));
        check(&version, "folder", Ok("folder"));
        check(&version, "folder/part", Ok("folder/part"));
        check(&version, "shared", Ok("shared"));
        // The operator created these links.
        check(&version, "outside", Ok("outside"));
        check(&version, "absolute", Ok("absolute"));
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
    fn a_version_has_the_bytes_of_its_files() {
        let scratch = ScratchDirectory::new();
        scratch.file("repository/a/1/model.onnx", "12345");
        scratch.file("repository/a/1/folder/part", "678");
        scratch.file("repository/a/2/model.onnx", "1");
        scratch.file("repository/a/config.pbtxt", "");
        scratch.file("elsewhere/weights", "12345678");
        symlink("../../../elsewhere", scratch.path().join("repository/a/1/linked")).unwrap();
        symlink(".", scratch.path().join("repository/a/1/circle")).unwrap();
        let model = model(&scratch, "a");
        assert_eq!([1, 2, 3].map(|version| model.version_bytes(version)), [16, 1, 0]);
    }

    #[test]
    fn a_linked_model_directory_is_followed() {
        let scratch = ScratchDirectory::new();
        scratch.file("elsewhere/model/1/model.onnx", "");
        scratch.file("elsewhere/other", "");
        scratch.file("repository/x/1/y", "");
        symlink("../elsewhere/model", scratch.path().join("repository/linked")).unwrap();
        symlink("../../other", scratch.path().join("elsewhere/model/1/linked")).unwrap();
        let version = model(&scratch, "linked").version_directory(1);
        check(&version, "model.onnx", Ok("model.onnx"));
        check(&version, "linked", Ok("linked"));
        check(&version, "../../other", Err(Code::InvalidArgument));
    }

    #[test]
    fn a_model_resolves_its_own_files() {
        let scratch = ScratchDirectory::new();
        scratch.file("repository/a/labels.txt", "");
        scratch.file("repository/b/labels.txt", "");
        let directory = model(&scratch, "a");
        let expected = scratch.path().join("repository/a/labels.txt");
        assert_eq!(directory.resolve_entry("labels.txt"), Ok(expected.clone()));
        let code = directory.resolve_entry("../b/labels.txt").unwrap_err().code();
        assert_eq!(code, Code::InvalidArgument);
        let version = directory.version_directory(1);
        assert_eq!(version.resolve_in_model_directory("labels.txt"), Ok(expected));
        let code = version.resolve_in_model_directory("../b/labels.txt").unwrap_err().code();
        assert_eq!(code, Code::InvalidArgument);
    }

    #[test]
    // row: IMP-05
    fn initial_states_lie_beside_the_versions_and_have_the_expected_size() {
        let scratch = ScratchDirectory::new();
        scratch.file("repository/a/1/model.onnx", "");
        scratch.file("repository/a/initial_state/zeros", "0123");
        scratch.file("repository/a/config.pbtxt", "");
        scratch.file("outside/shared", "0123");
        let states = scratch.path().join("repository/a/initial_state");
        symlink("../../../outside/shared", states.join("linked")).unwrap();
        symlink("zeros", states.join("same")).unwrap();
        std::fs::create_dir(states.join("folder")).unwrap();
        let version = model(&scratch, "a").version_directory(1);
        let read = |name: &str, size| version.read_initial_state(name, size);
        let beside = |name: &str| version.read_in_model_directory(name, FileReadLimit::AtMost(9));
        assert_eq!(beside("config.pbtxt").unwrap(), b"");
        assert_eq!(beside("initial_state/zeros").unwrap(), b"0123");
        for leading_out in ["../b", "/etc/passwd", "initial_state/../../b", ""] {
            let status = beside(leading_out).unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument, "{leading_out:?}");
        }
        assert_eq!(read("zeros", FileReadLimit::Beginning(3)).unwrap(), b"012");
        assert_eq!(read("linked", FileReadLimit::Beginning(4)).unwrap(), b"0123");
        assert_eq!(read("same", FileReadLimit::AtMost(4)).unwrap(), b"0123");
        let missing = version.read_warmup("zeros", FileReadLimit::AtMost(4)).unwrap_err();
        let path = scratch.path().join("repository/a/warmup/zeros");
        let text = format!(
            "failed to open text file for read {}: No such file or directory",
            path.display()
        );
        assert_eq!((missing.code(), missing.message()), (Code::Internal, text.as_str()));
        scratch.file("repository/a/warmup/zeros", "45");
        assert_eq!(version.read_warmup("zeros", FileReadLimit::AtMost(4)).unwrap(), b"45");
        let refused = |name: &str, size, code, part: &str| {
            let status = read(name, size).unwrap_err();
            assert_eq!(status.code(), code, "{status}");
            assert!(status.message().contains(part), "{status}");
        };
        let invalid = Code::InvalidArgument;
        let four = FileReadLimit::Beginning(4);
        refused("zeros", FileReadLimit::AtMost(3), invalid, "but may have 3 at most");
        refused("nothing", four, Code::NotFound, "initial_state/nothing'");
        refused("folder", four, invalid, "not a regular file");
        refused("../config.pbtxt", four, invalid, "must stay inside");
        refused("/etc/passwd", four, invalid, "must stay inside");
        refused("", four, invalid, "must stay inside");
    }
}
