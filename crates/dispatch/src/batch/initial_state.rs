//! The states for a sequence's first request.

use std::sync::Arc;

use galatea_backend::{FileReadLimit, ModelFiles};
use galatea_config::{InitialState, ModelSpec, StateSpec};
use galatea_infer::{StateTensor, Status};
use galatea_stdx::len64;
use galatea_tensor::{Buffer, DataType, Shape};

use crate::tensor_contents::{STRING_FILE_BYTES_MAX, check_strings, zeros};

/// Creates a sequence's initial states, in the configuration's order. All sequences share their
/// buffers.
///
/// # Errors
///
/// `InvalidArgument` or `NotFound`, with a message that names the state, and the file if the state
/// comes from one.
pub(crate) fn initial_states(
    spec: &ModelSpec,
    files: &dyn ModelFiles,
) -> Result<Vec<StateTensor>, Status> {
    spec.sequence_states().iter().map(|state| initial_state(spec, state, files)).collect()
}

fn initial_state(
    spec: &ModelSpec,
    state: &StateSpec,
    files: &dyn ModelFiles,
) -> Result<StateTensor, Status> {
    let refuse = |reason: &dyn std::fmt::Display| {
        Status::invalid_argument(format!(
            "state '{}' of '{}': {reason}",
            state.input_name, spec.name
        ))
    };
    let dims = match &state.initial {
        // As in Triton, a variable dimension is treated as 1.
        InitialState::Unspecified => {
            state.dims.iter().map(|&dim| if dim == -1 { 1 } else { dim }).collect()
        }
        InitialState::Zero { dims } | InitialState::File { dims, .. } => dims.clone(),
    };
    let batch = (spec.max_batch_size > 0).then_some(1);
    let dims: Vec<i64> = batch.into_iter().chain(dims).collect();
    let shape = Shape::new(&dims).map_err(|error| refuse(&error))?;
    let data = match &state.initial {
        // Unspecified contents are zeroed as well, because uninitialized memory would reveal its
        // previous contents.
        InitialState::Unspecified | InitialState::Zero { .. } => {
            zeros(&shape, state.datatype).map_err(|reason| refuse(&reason))?
        }
        InitialState::File { file_name, .. } => {
            let contents = read(&shape, state.datatype, file_name, files);
            let contents = contents.map_err(|status| {
                status.prefixed(format_args!("state '{}' of '{}': ", state.input_name, spec.name))
            })?;
            check_length(&contents, &shape, state.datatype, file_name)?;
            contents
        }
    };
    Ok(StateTensor {
        input_name: Arc::from(state.input_name.as_str()),
        output_name: Arc::from(state.output_name.as_str()),
        datatype: state.datatype,
        shape,
        data: Buffer::from_vec(data),
    })
}

fn read(
    shape: &Shape,
    datatype: DataType,
    file_name: &str,
    files: &dyn ModelFiles,
) -> Result<Vec<u8>, Status> {
    let size = match datatype {
        DataType::Bytes => FileReadLimit::AtMost(STRING_FILE_BYTES_MAX),
        _ => FileReadLimit::Beginning(shape.byte_size(datatype).ok_or_else(|| {
            Status::invalid_argument(format!("shape {shape} is larger than any file"))
        })?),
    };
    let bytes = files.read_initial_state(file_name, size)?;
    check_contents(&bytes, shape, datatype).map_err(|reason| {
        Status::invalid_argument(format!("initial_state file '{file_name}' {reason}"))
    })?;
    Ok(bytes)
}

/// Checks the length of a file. As in Triton, the file may be longer than the state.
fn check_length(
    bytes: &[u8],
    shape: &Shape,
    datatype: DataType,
    file_name: &str,
) -> Result<(), Status> {
    let found = len64(bytes.len());
    match shape.byte_size(datatype) {
        // The message is Triton's.
        Some(expected) if found < expected => Err(Status::invalid_argument(format!(
            "initial_state setting expects {expected} bytes, but the data provided from \
             {file_name}only has {found} bytes."
        ))),
        Some(_) | None => Ok(()),
    }
}

fn check_contents(bytes: &[u8], shape: &Shape, datatype: DataType) -> Result<(), String> {
    match datatype {
        DataType::Bytes => check_strings(bytes, shape),
        // Backends read booleans as C++ does, where other values are undefined.
        DataType::Bool if bytes.iter().any(|&byte| byte > 1) => {
            Err(String::from("has booleans other than 0 and 1"))
        }
        _ => Ok(()),
    }
}
