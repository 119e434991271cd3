//! Checks of counts and lengths that both protocols share, with the same errors.

use galatea_infer::Status;

/// The limits on the contents of a message. Flags change the limits that are fields.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MessageLimits {
    /// The maximum length of a body, and of a tensor decoded from a body, in bytes. It also limits
    /// gRPC calls that load a model.
    pub input_bytes_max: u64,
}

impl MessageLimits {
    /// The default of [`MessageLimits::input_bytes_max`]: 64 MiB, as in Triton.
    pub const DEFAULT_INPUT_BYTES_MAX: u64 = 1 << 26;
    /// The maximum nesting depth of arrays and objects in JSON, as in Triton.
    pub const JSON_DEPTH_MAX: usize = 100;
    /// The maximum number of inputs in a request, and of requested outputs.
    ///
    /// Triton has no such limit. This limit far exceeds the interface of any model, and prevents a
    /// small body from naming millions of tensors.
    pub const TENSORS_MAX: usize = 4096;
    /// The maximum number of dimensions of a tensor.
    ///
    /// A dimension takes one byte in a gRPC message and eight bytes in memory. No framework
    /// supports more than 64 dimensions.
    pub const DIMS_MAX: usize = 256;
    /// The maximum number of parameters of a request, including those of its tensors.
    ///
    /// The limit allows three parameters for each tensor of the largest request.
    pub const PARAMETERS_MAX: usize = 65_536;
    /// The maximum length of a tensor or parameter name, in bytes.
    ///
    /// Names are compared, and repeated in messages. Exporters produce names of hundreds of
    /// characters.
    pub const NAME_BYTES_MAX: usize = 4096;
    /// The maximum number of bytes in a call that changes settings, about a thousand times the size
    /// of all settings. Lists in such a call are stored as a whole.
    pub const SETTINGS_BYTES_MAX: u64 = 1 << 20;
    /// The maximum number of elements in an output that is turned into classes, per batch element,
    /// as in Triton.
    pub const CLASSIFIED_ELEMENTS_MAX: usize = 1_000_000;
    /// The maximum size of the classes of one output, in bytes. A value can have three hundred
    /// digits, and a label can have any length.
    pub const CLASS_BYTES_MAX: usize = 256 << 20;
    /// The maximum length of a string correlation ID in bytes, as in Triton.
    pub const CORRELATION_ID_BYTES_MAX: usize = 128;
    /// The maximum number of files in a model load request.
    pub const LOAD_FILES_MAX: usize = 4096;
    /// The maximum number of directories in the path of a file in a model load request. Each
    /// directory is created.
    pub const LOAD_FILE_DEPTH_MAX: usize = 16;
}

impl Default for MessageLimits {
    fn default() -> Self {
        Self { input_bytes_max: Self::DEFAULT_INPUT_BYTES_MAX }
    }
}

/// The error for a shape with more than [`MessageLimits::DIMS_MAX`] dimensions.
pub fn too_many_dims_error() -> Status {
    Status::invalid_argument(format!("shape has more than {} dimensions", MessageLimits::DIMS_MAX))
}

/// The error for a request with more than [`MessageLimits::PARAMETERS_MAX`] parameters.
pub fn too_many_parameters_error() -> Status {
    Status::invalid_argument(format!(
        "request has more than {} parameters",
        MessageLimits::PARAMETERS_MAX
    ))
}

/// Refuses a name that is too long. The error does not repeat the name.
pub fn check_name_length(what: &str, bytes: usize) -> Result<(), Status> {
    if bytes <= MessageLimits::NAME_BYTES_MAX {
        return Ok(());
    }
    Err(Status::invalid_argument(format!(
        "{what} name of {bytes} bytes is longer than {} bytes",
        MessageLimits::NAME_BYTES_MAX
    )))
}

/// Counts the files in a model load request.
#[derive(Debug, Default)]
pub struct LoadFileCount(usize);

impl LoadFileCount {
    /// Counts a parameter, identified by its name, if it is a file.
    pub fn count_if_file(&mut self, parameter: &str) -> Result<(), Status> {
        if !parameter.starts_with("file:") {
            return Ok(());
        }
        if self.0 >= MessageLimits::LOAD_FILES_MAX {
            return Err(Status::invalid_argument(format!(
                "load request has more than {} files",
                MessageLimits::LOAD_FILES_MAX
            )));
        }
        self.0 = self.0.saturating_add(1);
        let directories = parameter.bytes().filter(|byte| *byte == b'/').count();
        if directories > MessageLimits::LOAD_FILE_DEPTH_MAX {
            return Err(Status::invalid_argument(format!(
                "load parameter has a path of more than {} directories",
                MessageLimits::LOAD_FILE_DEPTH_MAX
            )));
        }
        Ok(())
    }
}
