//! Reads members of JSON objects and checks their types.
//!
//! As in Triton, errors in JSON are internal errors, which clients see as 500.

use std::borrow::Cow;

use galatea_infer::Status;

use super::json::{JsonReader, JsonType};

/// The error for a member of the wrong type.
pub(super) fn wrong_type(field: &str, what: &str) -> Status {
    Status::internal(format!("Unable to parse '{field}': attempt to access JSON {what}"))
}

/// The error for a missing member.
pub(super) fn missing(field: &str) -> Status {
    Status::internal(format!(
        "Unable to parse '{field}': attempt to access non-existing object member '{field}'"
    ))
}

pub(super) fn string<'a>(reader: &mut JsonReader<'a>, field: &str) -> Result<Cow<'a, str>, Status> {
    match reader.value_type()? {
        JsonType::String => reader.text(),
        JsonType::Object | JsonType::Array | JsonType::Number | JsonType::Bool | JsonType::Null => {
            Err(wrong_type(field, "non-string as string"))
        }
    }
}

pub(super) fn boolean(reader: &mut JsonReader<'_>, field: &str) -> Result<bool, Status> {
    match reader.value_type()? {
        JsonType::Bool => reader.boolean(),
        JsonType::Object
        | JsonType::Array
        | JsonType::Number
        | JsonType::String
        | JsonType::Null => Err(wrong_type(field, "non-boolean as boolean")),
    }
}

pub(super) fn unsigned(reader: &mut JsonReader<'_>, field: &str) -> Result<u64, Status> {
    let value = optional_unsigned(reader)?;
    value.ok_or_else(|| wrong_type(field, "non-unsigned-integer as unsigned-integer"))
}

/// Reads a boolean. For a value of another type, skips the value and returns `None`.
pub(super) fn optional_boolean(reader: &mut JsonReader<'_>) -> Result<Option<bool>, Status> {
    if reader.value_type()? == JsonType::Bool {
        return reader.boolean().map(Some);
    }
    reader.skip_value()?;
    Ok(None)
}

/// Like [`string`], but skips a value of another type.
pub(super) fn string_or_mistake(
    reader: &mut JsonReader<'_>,
    field: &str,
) -> Result<Result<String, Status>, Status> {
    if reader.value_type()? == JsonType::String {
        return Ok(Ok(reader.text()?.into_owned()));
    }
    reader.skip_value()?;
    Ok(Err(wrong_type(field, "non-string as string")))
}

/// Like [`unsigned`], but skips a value of another type.
pub(super) fn unsigned_or_mistake(
    reader: &mut JsonReader<'_>,
    field: &str,
) -> Result<Result<u64, Status>, Status> {
    let mistake = || wrong_type(field, "non-unsigned-integer as unsigned-integer");
    if reader.value_type()? == JsonType::Number {
        return Ok(reader.number()?.as_unsigned().ok_or_else(mistake));
    }
    reader.skip_value()?;
    Ok(Err(mistake()))
}

/// Reads the number of requested classes. Triton has its own message for this field.
pub(super) fn class_count(reader: &mut JsonReader<'_>) -> Result<u64, Status> {
    optional_unsigned(reader)?.ok_or_else(|| {
        Status::internal(
            "Unable to set 'classification': attempt to access JSON non-unsigned-integer as \
             unsigned-integer",
        )
    })
}

fn optional_unsigned(reader: &mut JsonReader<'_>) -> Result<Option<u64>, Status> {
    Ok(match reader.value_type()? {
        JsonType::Number => reader.number()?.as_unsigned(),
        JsonType::Object | JsonType::Array | JsonType::Bool | JsonType::String | JsonType::Null => {
            None
        }
    })
}

/// Checks that the next value is an array.
pub(super) fn array(reader: &mut JsonReader<'_>, field: &str) -> Result<(), Status> {
    match reader.value_type()? {
        JsonType::Array => Ok(()),
        JsonType::Object
        | JsonType::Number
        | JsonType::Bool
        | JsonType::String
        | JsonType::Null => Err(wrong_type(field, "non-array as array")),
    }
}

/// Keeps the first of several members with the same name, as Triton does.
pub(super) fn keep_first<T>(first: &mut Option<T>, value: T) {
    first.get_or_insert(value);
}
