//! Checks of counts and lengths that both protocols share, with the same errors.

use galatea_gate::limits::Limits;
use galatea_infer::Status;
use galatea_tensor::{DataType, Shape};

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

/// The number of elements of a request's BYTES tensors, which is limited.
#[derive(Debug, Default)]
pub(crate) struct StringCount(u64);

impl StringCount {
    /// Adds the elements of an input, each of at least four bytes: as many as its shape announces and its bytes hold. If
    /// these differ, admission refuses the request.
    pub(crate) fn add(
        &mut self,
        datatype: DataType,
        shape: &Shape,
        bytes: usize,
    ) -> Result<(), Status> {
        if datatype != DataType::Bytes {
            return Ok(());
        }
        let held = u64::try_from(bytes).unwrap_or(u64::MAX) >> 2;
        self.0 = self.0.saturating_add(shape.element_count().min(held));
        if self.0 <= Limits::STRINGS_MAX { Ok(()) } else { Err(too_many_strings()) }
    }
}

/// The error for a request with more than [`Limits::STRINGS_MAX`] strings.
pub(crate) fn too_many_strings() -> Status {
    Status::invalid_argument(format!(
        "request has more than {} elements of type BYTES",
        Limits::STRINGS_MAX
    ))
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
