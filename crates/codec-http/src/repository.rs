//! Decodes the bodies of the repository endpoints.

use galatea_control::LoadParameters;
use galatea_infer::Status;

use galatea_codec::limits::MessageLimits;

use galatea_codec::limits::LoadFileCount;

use super::json::{JsonReader, JsonType};
use super::{base64, fields};

/// A request for the repository index.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexRequest {
    /// True to list only models that have a ready version.
    pub only_ready: bool,
}

impl IndexRequest {
    /// Decodes the body, which may be empty.
    ///
    /// # Errors
    ///
    /// `Internal`, as in Triton, for malformed JSON. `InvalidArgument` if `ready` is not a boolean.
    pub fn decode(body: &[u8], limits: &MessageLimits) -> Result<Self, Status> {
        let mut request = Self::default();
        read_object(body, limits, |reader, name| {
            if name != b"ready" {
                return reader.skip_value();
            }
            if reader.value_type()? != JsonType::Bool {
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

/// A request to unload a model.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct UnloadRequest {
    /// True to also unload the models that only this model uses.
    pub unload_dependents: bool,
}

impl UnloadRequest {
    /// Decodes the body, which may be empty.
    ///
    /// # Errors
    ///
    /// `Internal` for malformed JSON. As in Triton, the request unloads only the model itself if
    /// `parameters` is not an object or `unload_dependents` is not a boolean.
    pub fn decode(body: &[u8], limits: &MessageLimits) -> Result<Self, Status> {
        let mut parameters = None;
        read_object(body, limits, |reader, name| {
            if name != b"parameters" || parameters.is_some() {
                return reader.skip_value();
            }
            parameters = Some(Self::read(reader)?);
            Ok(())
        })?;
        Ok(parameters.unwrap_or_default())
    }

    fn read(reader: &mut JsonReader<'_>) -> Result<Self, Status> {
        let mut unload_dependents = None;
        if reader.value_type()? != JsonType::Object {
            reader.skip_value()?;
            return Ok(Self::default());
        }
        let mut progress = reader.open();
        while let Some(name) = reader.next_member(&mut progress)? {
            let is_bool = reader.value_type()? == JsonType::Bool;
            if *name != *b"unload_dependents" {
                reader.skip_value()?;
            } else if is_bool {
                fields::keep_first(&mut unload_dependents, reader.boolean()?);
            } else {
                reader.skip_value()?;
                fields::keep_first(&mut unload_dependents, false);
            }
        }
        Ok(Self { unload_dependents: unload_dependents.unwrap_or_default() })
    }
}

/// Decodes the body of a load request, which may be empty.
///
/// # Errors
///
/// `Internal`, as in Triton, for malformed JSON and unknown parameters, and if `parameters` is not
/// an object or a parameter is not a string. `InvalidArgument` if a file is not in base64.
pub fn decode_load_request(body: &[u8], limits: &MessageLimits) -> Result<LoadParameters, Status> {
    let mut parameters = LoadParameters::default();
    let mut files = LoadFileCount::default();
    read_parameters(body, limits, |reader, name| {
        let name = String::from_utf8_lossy(name);
        files.count_if_file(&name)?;
        if reader.value_type()? != JsonType::String {
            return Err(Status::internal("attempt to access JSON non-string as string"));
        }
        let value = reader.text()?;
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

/// Calls `member` for each member of the body's object. As in Triton, a body of another type has no
/// members.
pub(super) fn read_object<'a>(
    body: &'a [u8],
    limits: &MessageLimits,
    mut member: impl FnMut(&mut JsonReader<'a>, &[u8]) -> Result<(), Status>,
) -> Result<(), Status> {
    if body.is_empty() {
        return Ok(());
    }
    let length = u64::try_from(body.len()).unwrap_or(u64::MAX);
    if length > limits.input_bytes_max {
        return Err(super::errors::json_too_large(length, limits));
    }
    let mut reader = JsonReader::new(body);
    if reader.value_type()? == JsonType::Object {
        let mut progress = reader.open();
        while let Some(name) = reader.next_member(&mut progress)? {
            member(&mut reader, &name)?;
        }
    } else {
        reader.skip_value()?;
    }
    reader.end()
}

/// Calls `parameter` for each member of the body's `parameters`. `parameters` must be an object,
/// because a request is not executed without its parameters.
fn read_parameters<'a>(
    body: &'a [u8],
    limits: &MessageLimits,
    mut parameter: impl FnMut(&mut JsonReader<'a>, &[u8]) -> Result<(), Status>,
) -> Result<(), Status> {
    read_object(body, limits, |reader, name| {
        if name != b"parameters" {
            return reader.skip_value();
        }
        if reader.value_type()? != JsonType::Object {
            return Err(Status::internal("attempt to get members for non-object"));
        }
        let mut progress = reader.open();
        while let Some(name) = reader.next_member(&mut progress)? {
            parameter(reader, &name)?;
        }
        Ok(())
    })
}
