//! Libraries with custom operators: `model_operations` in a configuration.

use std::path::Path;

use galatea_backend::ModelFiles;
use galatea_infer::Status;

use crate::api::Library;

/// Opens the libraries that a configuration lists. As in Triton, a path is relative to the server's
/// working directory. If that file doesn't exist, the path is relative to the model's directory, so
/// that repositories can be moved. Other names are searched for by the system's loader. The server
/// rejects names from clients before they reach this module.
pub(crate) fn open(
    library: &Library,
    names: &[String],
    files: &dyn ModelFiles,
) -> Result<(), Status> {
    for name in names {
        let in_model = || files.resolve_in_model_directory(name).ok();
        let path = if Path::new(name).exists() { None } else { in_model() };
        let path = path.and_then(|path| path.to_str().map(str::to_owned));
        library.load_operators(path.as_deref().unwrap_or(name)).map_err(|status| {
            status.prefixed(format!("'{name}' of model_operations.op_library_filename: "))
        })?;
    }
    Ok(())
}
