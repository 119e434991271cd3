//! Checks of counts and lengths that both protocols share, with the same errors.

use galatea_gate::limits::Limits;
use galatea_infer::Status;

/// The error for a shape with more than [`Limits::DIMS_MAX`] dimensions.
pub(crate) fn too_many_dims() -> Status {
    Status::invalid_argument(format!("shape has more than {} dimensions", Limits::DIMS_MAX))
}

/// The error for a request with more than [`Limits::PARAMETERS_MAX`] parameters.
pub(crate) fn too_many_parameters() -> Status {
    Status::invalid_argument(format!("request has more than {} parameters", Limits::PARAMETERS_MAX))
}

/// Refuses a name that is too long. The name is not repeated.
pub(crate) fn check_name(what: &str, bytes: usize) -> Result<(), Status> {
    if bytes <= Limits::NAME_BYTES_MAX {
        return Ok(());
    }
    Err(Status::invalid_argument(format!(
        "{what} name of {bytes} bytes is longer than {} bytes",
        Limits::NAME_BYTES_MAX
    )))
}

/// The number of files in a request to load a model.
#[derive(Debug, Default)]
pub(crate) struct FileCount(usize);

impl FileCount {
    /// Adds a parameter, by its name, if it is a file.
    pub(crate) fn add(&mut self, parameter: &str) -> Result<(), Status> {
        if !parameter.starts_with("file:") {
            return Ok(());
        }
        if self.0 >= Limits::LOAD_FILES_MAX {
            return Err(Status::invalid_argument(format!(
                "load request has more than {} files",
                Limits::LOAD_FILES_MAX
            )));
        }
        self.0 = self.0.saturating_add(1);
        let directories = parameter.bytes().filter(|byte| *byte == b'/').count();
        if directories > Limits::LOAD_FILE_DEPTH_MAX {
            return Err(Status::invalid_argument(format!(
                "load parameter has a path of more than {} directories",
                Limits::LOAD_FILE_DEPTH_MAX
            )));
        }
        Ok(())
    }
}
