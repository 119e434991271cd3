//! The bodies for the shared-memory endpoints.

use galatea_codec::limits::MessageLimits;
use galatea_control::{CudaShmRegion, SystemShmRegion};
use galatea_infer::Status;

use super::base64;
use super::json::{JsonReader, JsonType, push_json_string, push_json_u64};
use super::repository::read_object;
use galatea_codec::json::push_json_array;

/// A request to register a region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemShmRegisterRequest {
    /// The name of the shared memory object.
    pub key: String,
    /// The offset of the region in the object.
    pub offset: u64,
    /// The length of the region in bytes.
    pub byte_size: u64,
}

/// A member, or its error. If there are several errors, the first in Triton's order is reported.
type Member<T> = Option<Result<T, Status>>;

impl SystemShmRegisterRequest {
    /// Decodes the body.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a missing member. As in Triton, `Internal` for malformed JSON and for
    /// members of the wrong type.
    pub fn decode(body: &[u8], limits: &MessageLimits) -> Result<Self, Status> {
        let (mut key, mut offset, mut byte_size) = (None, None, None);
        read_object(body, limits, |reader, name| match name {
            b"key" if key.is_none() => read_text(reader, &mut key),
            b"offset" if offset.is_none() => read_number(reader, &mut offset),
            b"byte_size" if byte_size.is_none() => read_number(reader, &mut byte_size),
            _ => reader.skip_value(),
        })?;
        Ok(Self {
            key: key.ok_or_else(|| missing("key"))??,
            offset: offset.transpose()?.unwrap_or(0),
            byte_size: byte_size.ok_or_else(|| missing("byte_size"))??,
        })
    }

    /// Returns the region under this name.
    #[must_use]
    pub fn into_region(self, name: &str) -> SystemShmRegion {
        let Self { key, offset, byte_size } = self;
        SystemShmRegion { name: name.to_owned(), key, offset, byte_size }
    }
}

/// A request to register a region in GPU memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CudaShmRegisterRequest {
    /// The handle that the client obtained from the driver.
    pub raw_handle: Vec<u8>,
    /// The number of the GPU.
    pub device_id: u64,
    /// The region's length in bytes.
    pub byte_size: u64,
}

impl CudaShmRegisterRequest {
    /// The length of a handle.
    const HANDLE_BYTES: usize = 64;

    /// Decodes the body.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`SystemShmRegisterRequest::decode`], or `InvalidArgument` for an
    /// impossible handle.
    pub fn decode(body: &[u8], limits: &MessageLimits) -> Result<Self, Status> {
        let (mut raw_handle, mut device_id, mut byte_size) = (None, None, None);
        read_object(body, limits, |reader, name| match name {
            b"raw_handle" if raw_handle.is_none() => {
                raw_handle = Some(read_handle(reader)?);
                Ok(())
            }
            b"device_id" if device_id.is_none() => read_number(reader, &mut device_id),
            b"byte_size" if byte_size.is_none() => read_number(reader, &mut byte_size),
            _ => reader.skip_value(),
        })?;
        let text = raw_handle.ok_or_else(|| missing("raw_handle"))?;
        let text = text.ok_or_else(|| non_existing("b64"))??;
        let byte_size = byte_size.ok_or_else(|| non_existing("byte_size"))??;
        let device_id = device_id.ok_or_else(|| non_existing("device_id"))??;
        let decoded = base64::decode(text.as_bytes()).ok();
        let raw_handle = decoded.filter(|handle| handle.len() == Self::HANDLE_BYTES);
        let invalid = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t";
        let raw_handle = raw_handle.ok_or_else(|| Status::invalid_argument(invalid))?;
        Ok(Self { raw_handle, device_id, byte_size })
    }

    /// Returns the region under this name, along with its handle.
    #[must_use]
    pub fn into_region(self, name: &str) -> (CudaShmRegion, Vec<u8>) {
        let Self { raw_handle, device_id, byte_size } = self;
        (CudaShmRegion { name: name.to_owned(), device_id, byte_size }, raw_handle)
    }
}

/// Reads the object that contains a handle as base64 text.
fn read_handle(reader: &mut JsonReader<'_>) -> Result<Member<String>, Status> {
    let mut text = None;
    if reader.value_type()? != JsonType::Object {
        reader.skip_value()?;
        return Ok(text);
    }
    let mut progress = reader.open();
    while let Some(name) = reader.next_member(&mut progress)? {
        match &*name {
            b"b64" if text.is_none() => read_text(reader, &mut text)?,
            _ => reader.skip_value()?,
        }
    }
    Ok(text)
}

/// The error for a missing member, which Triton words differently for some members of these
/// requests.
fn non_existing(member: &str) -> Status {
    Status::internal(format!("attempt to access non-existing object member '{member}'"))
}

fn missing(member: &str) -> Status {
    Status::invalid_argument(format!("Shared memory register request has no '{member}' field"))
}

fn read_text(reader: &mut JsonReader<'_>, member: &mut Member<String>) -> Result<(), Status> {
    *member = Some(if reader.value_type()? == JsonType::String {
        Ok(reader.text()?.into_owned())
    } else {
        reader.skip_value()?;
        Err(Status::internal("attempt to access JSON non-string as string"))
    });
    Ok(())
}

fn read_number(reader: &mut JsonReader<'_>, member: &mut Member<u64>) -> Result<(), Status> {
    let number = if reader.value_type()? == JsonType::Number {
        reader.number()?.as_unsigned()
    } else {
        reader.skip_value()?;
        None
    };
    *member = Some(number.ok_or_else(|| {
        Status::internal("attempt to access JSON non-unsigned-integer as unsigned-integer")
    }));
    Ok(())
}

/// Encodes the registered regions.
#[must_use]
pub fn encode_system_shm_status(regions: &[SystemShmRegion]) -> Vec<u8> {
    let mut json = Vec::with_capacity(512);
    push_json_array(&mut json, regions, |json, region| {
        json.extend_from_slice(b"{\"name\":");
        push_json_string(json, region.name.as_bytes());
        json.extend_from_slice(b",\"key\":");
        push_json_string(json, region.key.as_bytes());
        json.extend_from_slice(b",\"offset\":");
        push_json_u64(json, region.offset);
        json.extend_from_slice(b",\"byte_size\":");
        push_json_u64(json, region.byte_size);
        json.push(b'}');
    });
    json
}

/// Encodes the registered regions in GPU memory.
#[must_use]
pub fn encode_cuda_shm_status(regions: &[CudaShmRegion]) -> Vec<u8> {
    let mut json = Vec::with_capacity(512);
    push_json_array(&mut json, regions, |json, region| {
        json.extend_from_slice(b"{\"name\":");
        push_json_string(json, region.name.as_bytes());
        json.extend_from_slice(b",\"device_id\":");
        push_json_u64(json, region.device_id);
        json.extend_from_slice(b",\"byte_size\":");
        push_json_u64(json, region.byte_size);
        json.push(b'}');
    });
    json
}
