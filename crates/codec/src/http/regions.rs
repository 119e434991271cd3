//! The bodies of the endpoints for regions of shared memory.

use galatea_gate::limits::Limits;
use galatea_infer::{Status, SystemRegion};

use super::documents::push_list;
use super::json::{JsonReader, JsonType, push_string, push_unsigned};
use super::repository::read_object;

/// A request to register a region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegisterRequest {
    /// The name of the shared memory object.
    pub key: String,
    /// Where the region begins in the object.
    pub offset: u64,
    /// Its length in bytes.
    pub byte_size: u64,
}

/// A member, or the mistake in it: of several the first in Triton's order counts.
type Member<T> = Option<Result<T, Status>>;

impl RegisterRequest {
    /// Decodes the body.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a missing member. `Internal` for malformed JSON and for members of
    /// the wrong type, as in Triton.
    pub fn decode(body: &[u8], limits: &Limits) -> Result<Self, Status> {
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

    /// The region, under this name.
    #[must_use]
    pub fn named(self, name: &str) -> SystemRegion {
        let Self { key, offset, byte_size } = self;
        SystemRegion { name: name.to_owned(), key, offset, byte_size }
    }
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
pub fn encode_regions(regions: &[SystemRegion]) -> Vec<u8> {
    let mut json = Vec::with_capacity(512);
    push_list(&mut json, regions, |json, region| {
        json.extend_from_slice(b"{\"name\":");
        push_string(json, region.name.as_bytes());
        json.extend_from_slice(b",\"key\":");
        push_string(json, region.key.as_bytes());
        json.extend_from_slice(b",\"offset\":");
        push_unsigned(json, region.offset);
        json.extend_from_slice(b",\"byte_size\":");
        push_unsigned(json, region.byte_size);
        json.push(b'}');
    });
    json
}
