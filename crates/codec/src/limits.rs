//! Checks of counts and lengths that both protocols share, with the same errors.

use galatea_infer::Status;

/// The limits of what a message may hold. Flags change those that are fields.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest body, and the longest tensor decoded from a body, in bytes. It is also
    /// the longest call over gRPC that loads a model.
    pub input_bytes_max: u64,
}

impl Limits {
    /// The default of [`Limits::input_bytes_max`]: 64 MiB, as in Triton.
    pub const DEFAULT_INPUT_BYTES_MAX: u64 = 1 << 26;
    /// The maximum nesting depth of arrays and objects in a JSON text, as in Triton.
    pub const JSON_DEPTH_MAX: usize = 100;
    /// The maximum number of inputs, and of requested outputs, of a request.
    ///
    /// Triton has no such limit. This one is far above any model's interface and
    /// keeps a small body from naming millions of tensors.
    pub const TENSORS_MAX: usize = 4096;
    /// The maximum number of dimensions of a tensor.
    ///
    /// A dimension takes one byte of a gRPC message and eight in memory. No framework has
    /// more than 64 dimensions.
    pub const DIMS_MAX: usize = 256;
    /// The maximum number of parameters of a request, those of its tensors included.
    ///
    /// Three for each tensor of the largest request fit.
    pub const PARAMETERS_MAX: usize = 65_536;
    /// The maximum length of the name of a tensor or parameter, in bytes.
    ///
    /// Names are compared, and repeated in messages. Exporters make names of hundreds of
    /// characters.
    pub const NAME_BYTES_MAX: usize = 4096;
    /// The maximum number of bytes of a call that changes settings: some thousand times what
    /// all settings take. Lists in it are kept as a whole.
    pub const SETTINGS_BYTES_MAX: u64 = 1 << 20;
    /// The maximum number of elements of an output, or of one batch element of it, that is
    /// turned into classes, as in Triton.
    pub const CLASSIFIED_ELEMENTS_MAX: usize = 1_000_000;
    /// The maximum size of the classes of one output, in bytes. A value can have three
    /// hundred digits, and a label any length.
    pub const CLASS_BYTES_MAX: usize = 256 << 20;
    /// The maximum length of a correlation ID that is a string, as in Triton, in bytes.
    pub const CORRELATION_ID_BYTES_MAX: usize = 128;
    /// The maximum number of files that come with a request to load a model.
    pub const LOAD_FILES_MAX: usize = 4096;
    /// The maximum number of directories on the path of such a file. Each is created.
    pub const LOAD_FILE_DEPTH_MAX: usize = 16;
}

impl Default for Limits {
    fn default() -> Self {
        Self { input_bytes_max: Self::DEFAULT_INPUT_BYTES_MAX }
    }
}

/// The error for a shape with more than [`Limits::DIMS_MAX`] dimensions.
pub fn too_many_dims() -> Status {
    Status::invalid_argument(format!("shape has more than {} dimensions", Limits::DIMS_MAX))
}

/// The error for a request with more than [`Limits::PARAMETERS_MAX`] parameters.
pub fn too_many_parameters() -> Status {
    Status::invalid_argument(format!("request has more than {} parameters", Limits::PARAMETERS_MAX))
}

/// Refuses a name that is too long. The name is not repeated.
pub fn check_name(what: &str, bytes: usize) -> Result<(), Status> {
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
pub struct FileCount(usize);

impl FileCount {
    /// Adds a parameter, by its name, if it is a file.
    pub fn add(&mut self, parameter: &str) -> Result<(), Status> {
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
