//! Files of PyTorch's models. A compiled model has its configuration in its source; the others need
//! one that a user writes.

use std::ffi::OsStr;
use std::path::Path;

use galatea_backend_pytorch::{FileDescription, describe};

/// The name of a compiled model in a version.
pub(super) const USUAL: &str = "model.pt2";

/// Endings of files that PyTorch writes.
const ENDINGS: [&str; 3] = ["pt", "pt2", "pth"];

/// Returns true if the ending of a file is one of PyTorch's.
pub(super) fn is_torch_file(path: &Path) -> bool {
    path.extension().and_then(OsStr::to_str).is_some_and(|ending| ENDINGS.contains(&ending))
}

/// The configuration of a file, or the reason why it needs a user's. The name is that of the model.
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
