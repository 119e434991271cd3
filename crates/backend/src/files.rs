//! The files of one version of a model.

use std::path::{Path, PathBuf};

use galatea_infer::Status;

/// A version directory: backends reach a model's files through it alone.
pub trait ModelFiles: Send + Sync {
    /// The model's directory, which holds `config.pbtxt` and the versions.
    fn model_path(&self) -> &Path;

    /// The version's number.
    fn version(&self) -> i64;

    /// The version's directory.
    fn version_path(&self) -> &Path;

    /// The path of a file or directory below the version's directory.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if `name` leads out of that directory, `NotFound` if
    /// nothing is there.
    fn resolve(&self, name: &str) -> Result<PathBuf, Status>;

    /// Reads a file in the model's directory, beside the configuration. Unless
    /// said otherwise there is none.
    ///
    /// # Errors
    ///
    /// As with [`ModelFiles::read_initial_state`].
    fn read_beside_versions(&self, name: &str, size: FileSize) -> Result<Vec<u8>, Status> {
        let _ = size;
        Err(Status::not_found(format!("there is no '{name}': the model has no files")))
    }

    /// What tells the files of this version, and those beside all versions, from what
    /// they may be another time: sorted by path. `None` if that can't be told.
    fn marks(&self) -> Option<Vec<FileMark>> {
        None
    }

    /// Reads a file in `initial_state`, a directory beside the versions. Unless
    /// said otherwise there is none.
    ///
    /// # Errors
    ///
    /// As with [`ModelFiles::resolve`]; `InvalidArgument` also if it is no
    /// regular file or of another size. The message names the file.
    fn read_initial_state(&self, name: &str, size: FileSize) -> Result<Vec<u8>, Status> {
        let _ = size;
        Err(Status::not_found(format!("there is no '{name}': the model has no initial_state")))
    }

    /// Reads a file in `warmup`, a directory beside the versions. Unless said
    /// otherwise there is none.
    ///
    /// # Errors
    ///
    /// As with [`ModelFiles::read_initial_state`].
    fn read_warmup(&self, name: &str, size: FileSize) -> Result<Vec<u8>, Status> {
        let _ = size;
        Err(Status::not_found(format!("there is no '{name}': the model has no warmup")))
    }
}

/// What can be seen of a file or directory without reading it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileMark {
    /// The path from the model's directory on.
    pub path: PathBuf,
    /// Its size; 0 for a directory.
    pub byte_size: u64,
    /// When its contents changed last, in nanoseconds since the epoch.
    pub modified_ns: i64,
}

/// How many bytes a file is to have.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum FileSize {
    /// This many.
    Exactly(u64),
    /// Any number up to this.
    AtMost(u64),
}
