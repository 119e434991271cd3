//! PyTorch model files. A compiled model's source contains enough for a configuration; for other
//! files, the user has to write one.

use std::ffi::OsStr;
use std::path::Path;

use galatea_backend_pytorch::{FileDescription, describe};

/// The name of a compiled model's file in a version directory.
pub(super) const USUAL: &str = "model.pt2";

/// The extensions of files that PyTorch writes.
const ENDINGS: [&str; 3] = ["pt", "pt2", "pth"];

/// Returns true if the file has one of PyTorch's extensions.
pub(super) fn is_torch_file(path: &Path) -> bool {
    path.extension().and_then(OsStr::to_str).is_some_and(|ending| ENDINGS.contains(&ending))
}

/// The configuration for a file, or the reason why the user has to write it. `name` is the model's
/// name.
pub(super) fn config(path: &Path, name: &str) -> Result<String, String> {
    match describe(path) {
        Ok(FileDescription::Complete(config)) => Ok(config),
        Ok(FileDescription::Incomplete { missing, example }) => {
            let file = if path.extension() == Some(OsStr::new("pt2")) { USUAL } else { "model.pt" };
            Err(format!(
                "'{}' {missing}: put it into a directory as {name}/1/{file}, write \
                 {name}/config.pbtxt such as the following, with the names, types and sizes of the \
                 model, and serve {name} (docs/pytorch.md)\n\n{example}",
                path.display()
            ))
        }
        Err(status) => Err(status.message().to_owned()),
    }
}
