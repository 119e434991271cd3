//! Bodies of the model repository's endpoints.

use galatea_infer::{LoadParameters, Status};

use crate::limits::Limits;

use super::json::{Kind, Reader};
use super::{base64, fields};

/// What a client wants to see of the repository's index.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexRequest {
    /// Only models with a version that is ready.
    pub only_ready: bool,
}

impl IndexRequest {
    /// Decodes the body, which may be empty.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for malformed JSON and for a `ready` that is no
    /// boolean.
    pub fn decode(body: &[u8], limits: &Limits) -> Result<Self, Status> {
        let mut request = Self::default();
        read_object(body, limits, |reader, name| {
            if name != b"ready" {
                return reader.skip_value();
            }
            if reader.kind()? != Kind::Bool {
                return Err(Status::invalid_argument(
                    "Invalid value for 'ready': expected a boolean",
                ));
            }
            request.only_ready = reader.boolean()?;
            Ok(())
        })?;
        Ok(request)
    }
}

/// How a client wants a model to be unloaded.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct UnloadRequest {
    /// Also unload the models that only this one uses.
    pub unload_dependents: bool,
}

impl UnloadRequest {
    /// Decodes the body, which may be empty.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for malformed JSON, `parameters` that are no object and an
    /// `unload_dependents` that is no boolean.
    pub fn decode(body: &[u8], limits: &Limits) -> Result<Self, Status> {
        let mut request = Self::default();
        read_parameters(body, limits, |reader, name| {
            if name != b"unload_dependents" {
                return reader.skip_value();
            }
            request.unload_dependents = fields::boolean(reader, "unload_dependents")?;
            Ok(())
        })?;
        Ok(request)
    }
}

/// Decodes the body of a load request, which may be empty.
///
/// # Errors
///
/// `InvalidArgument` for malformed JSON, `parameters` that are no object, parameters that
/// are no strings and files that are not in base 64; `Internal` for parameters that nobody knows,
/// as the original has it.
pub fn decode_load_request(body: &[u8], limits: &Limits) -> Result<LoadParameters, Status> {
    let mut parameters = LoadParameters::default();
    read_parameters(body, limits, |reader, name| {
        let name = String::from_utf8_lossy(name);
        let value = fields::string(reader, &name)?;
        if name == "config" {
            parameters.config = Some(value.into_owned());
        } else if let Some(path) = name.strip_prefix("file:") {
            let content = base64::decode(value.as_bytes()).map_err(|reason| {
                Status::invalid_argument(format!("load parameter '{name}' {reason}"))
            })?;
            parameters.files.push((path.to_owned(), content));
        } else {
            return Err(Status::internal(format!(
                "unexpected error on creating Triton parameter: '{name}' is not a load parameter"
            )));
        }
        Ok(())
    })?;
    Ok(parameters)
}

/// Calls `member` at each member of the body's object. A body of another
/// kind has none, as in the original.
fn read_object<'a>(
    body: &'a [u8],
    limits: &Limits,
    mut member: impl FnMut(&mut Reader<'a>, &[u8]) -> Result<(), Status>,
) -> Result<(), Status> {
    if body.is_empty() {
        return Ok(());
    }
    let length = u64::try_from(body.len()).unwrap_or(u64::MAX);
    if length > limits.input_bytes_max {
        return Err(super::errors::json_too_large(length, limits));
    }
    let mut reader = Reader::new(body);
    if reader.kind()? == Kind::Object {
        let mut progress = reader.open();
        while let Some(name) = reader.next_member(&mut progress)? {
            member(&mut reader, &name)?;
        }
    } else {
        reader.skip_value()?;
    }
    reader.end()
}

/// Calls `parameter` at each member of the body's `parameters`, which must be an object:
/// an order must not be carried out without what came with it.
fn read_parameters<'a>(
    body: &'a [u8],
    limits: &Limits,
    mut parameter: impl FnMut(&mut Reader<'a>, &[u8]) -> Result<(), Status>,
) -> Result<(), Status> {
    read_object(body, limits, |reader, name| {
        if name != b"parameters" {
            return reader.skip_value();
        }
        if reader.kind()? != Kind::Object {
            return Err(Status::invalid_argument(
                "Invalid value for 'parameters': expected an object",
            ));
        }
        let mut progress = reader.open();
        while let Some(name) = reader.next_member(&mut progress)? {
            parameter(reader, &name)?;
        }
        Ok(())
    })
}
