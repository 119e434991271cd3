//! Members of JSON objects that must have a certain type.

use std::borrow::Cow;

use galatea_infer::Status;

use super::json::{Kind, Reader};

/// A member that has another type than it must.
pub(super) fn wrong_type(field: &str, what: &str) -> Status {
    Status::invalid_argument(format!("Unable to parse '{field}': attempt to access JSON {what}"))
}

/// A member that isn't there and must be.
pub(super) fn missing(field: &str) -> Status {
    Status::invalid_argument(format!(
        "Unable to parse '{field}': attempt to access non-existing object member '{field}'"
    ))
}

pub(super) fn string<'a>(reader: &mut Reader<'a>, field: &str) -> Result<Cow<'a, str>, Status> {
    match reader.kind()? {
        Kind::String => reader.text(),
        Kind::Object | Kind::Array | Kind::Number | Kind::Bool | Kind::Null => {
            Err(wrong_type(field, "non-string as string"))
        }
    }
}

pub(super) fn boolean(reader: &mut Reader<'_>, field: &str) -> Result<bool, Status> {
    match reader.kind()? {
        Kind::Bool => reader.boolean(),
        Kind::Object | Kind::Array | Kind::Number | Kind::String | Kind::Null => {
            Err(wrong_type(field, "non-boolean as boolean"))
        }
    }
}

pub(super) fn unsigned(reader: &mut Reader<'_>, field: &str) -> Result<u64, Status> {
    let value = unsigned_if_it_is(reader)?;
    value.ok_or_else(|| wrong_type(field, "non-unsigned-integer as unsigned-integer"))
}

/// How many classes are wanted; the original has its own words for this field.
pub(super) fn class_count(reader: &mut Reader<'_>) -> Result<u64, Status> {
    unsigned_if_it_is(reader)?.ok_or_else(|| {
        Status::invalid_argument(
            "Unable to set 'classification': attempt to access JSON non-unsigned-integer as \
             unsigned-integer",
        )
    })
}

fn unsigned_if_it_is(reader: &mut Reader<'_>) -> Result<Option<u64>, Status> {
    Ok(match reader.kind()? {
        Kind::Number => reader.number()?.as_unsigned(),
        Kind::Object | Kind::Array | Kind::Bool | Kind::String | Kind::Null => None,
    })
}

/// Checks that an array follows.
pub(super) fn array(reader: &mut Reader<'_>, field: &str) -> Result<(), Status> {
    match reader.kind()? {
        Kind::Array => Ok(()),
        Kind::Object | Kind::Number | Kind::Bool | Kind::String | Kind::Null => {
            Err(wrong_type(field, "non-array as array"))
        }
    }
}

/// Keeps the first of members with one name, as the original does.
pub(super) fn keep_first<T>(slot: &mut Option<T>, value: T) {
    slot.get_or_insert(value);
}
