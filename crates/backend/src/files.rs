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
}
