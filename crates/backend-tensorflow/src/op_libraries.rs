//! Libraries with custom operators: `model_operations` of a configuration.

use std::path::Path;

use galatea_backend::ModelFiles;
use galatea_infer::Status;

use crate::api::Library;

/// Opens the libraries in a configuration. As in Triton, a path is relative to the server's working
/// directory. If there is no such file, the path is relative to the model's directory, so that
/// repositories can be moved. The system's loader searches for other names. The server rejects
/// names from clients before they reach this module.
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
