//! Trace settings as JSON.

use std::borrow::Cow;

use galatea_codec::limits::MessageLimits;
use galatea_control::{FieldChange, TraceLevels, TraceMode, TraceSettings, TraceSettingsChange};
use galatea_infer::Status;

use super::fields::keep_first;
use super::json::{JsonReader, JsonType, push_json_string};
use super::repository::read_object;
use galatea_codec::trace_fields;

/// The value of a setting.
enum TraceValue<'a> {
    Null,
    Text(Cow<'a, [u8]>),
    /// A list of strings; an element of another type is `None`.
    List(Vec<Option<Cow<'a, [u8]>>>),
    Other,
}

#[derive(Default)]
struct TraceFields<'a> {
    file: Option<TraceValue<'a>>,
    levels: Option<TraceValue<'a>>,
    rate: Option<TraceValue<'a>>,
    count: Option<TraceValue<'a>>,
    log_frequency: Option<TraceValue<'a>>,
}

/// Decodes a change to the trace settings.
///
/// As in Triton, fields are checked in a fixed order, and unknown fields change nothing.
///
/// # Errors
///
/// `Internal` for malformed JSON and wrong types, `Unsupported` for an attempt to change the file,
/// and `InvalidArgument` for wrong values.
pub fn decode_trace_change(
    body: &[u8],
    limits: &MessageLimits,
) -> Result<TraceSettingsChange, Status> {
    if body.is_empty() {
        // Other endpoints accept an empty body, but Triton's trace endpoint refuses it.
        JsonReader::new(body).value_type()?;
    }
    let mut fields = TraceFields::default();
    read_object(body, limits, |reader, name| {
        let field = match name {
            b"trace_file" => &mut fields.file,
            b"trace_level" => &mut fields.levels,
            b"trace_rate" => &mut fields.rate,
            b"trace_count" => &mut fields.count,
            b"log_frequency" => &mut fields.log_frequency,
            _ => return reader.skip_value(),
        };
        let value = read_value(reader)?;
        keep_first(field, value);
        Ok(())
    })?;
    if fields.file.is_some() {
        return Err(trace_fields::fixed_trace_file_error());
    }
    Ok(TraceSettingsChange {
        levels: levels(fields.levels)?,
        rate: number(fields.rate, |text| trace_fields::parse_unsigned_field("trace_rate", text))?,
        count: number(fields.count, |text| trace_fields::parse_trace_count(text, ""))?,
        log_frequency: number(fields.log_frequency, |text| {
            trace_fields::parse_unsigned_field("log_frequency", text)
        })?,
    })
}

fn read_value<'a>(reader: &mut JsonReader<'a>) -> Result<TraceValue<'a>, Status> {
    match reader.value_type()? {
        JsonType::String => reader.string().map(TraceValue::Text),
        JsonType::Null => reader.skip_value().map(|()| TraceValue::Null),
        JsonType::Array => {
            let mut list = Vec::new();
            let mut position = reader.open();
            while reader.next_element(&mut position)? {
                list.push(match reader.value_type()? {
                    JsonType::String => Some(reader.string()?),
                    _ => reader.skip_value().map(|()| None)?,
                });
            }
            Ok(TraceValue::List(list))
        }
        _ => reader.skip_value().map(|()| TraceValue::Other),
    }
}

fn levels(value: Option<TraceValue<'_>>) -> Result<FieldChange<TraceLevels>, Status> {
    let list = match value {
        None => return Ok(FieldChange::Keep),
        Some(TraceValue::Null) => return Ok(FieldChange::Clear),
        Some(TraceValue::List(list)) => list,
        Some(TraceValue::Text(_) | TraceValue::Other) => {
            return Err(Status::internal("attempt to access JSON non-array as array"));
        }
    };
    let mut levels = None;
    for name in &list {
        let name = name.as_deref().ok_or_else(no_text)?;
        trace_fields::add_trace_level(&mut levels, &String::from_utf8_lossy(name), list.len())?;
    }
    Ok(levels.map_or(FieldChange::Keep, FieldChange::Set))
}

fn number<T>(
    value: Option<TraceValue<'_>>,
    parse: impl Fn(&str) -> Result<T, Status>,
) -> Result<FieldChange<T>, Status> {
    match value {
        None => Ok(FieldChange::Keep),
        Some(TraceValue::Null) => Ok(FieldChange::Clear),
        Some(TraceValue::Text(text)) => {
            parse(&String::from_utf8_lossy(&text)).map(FieldChange::Set)
        }
        Some(TraceValue::List(_) | TraceValue::Other) => Err(no_text()),
    }
}

fn no_text() -> Status {
    Status::internal("attempt to access JSON non-string as string")
}

/// Encodes the current trace settings.
#[must_use]
pub fn encode_trace_settings(settings: &TraceSettings) -> Vec<u8> {
    let mut json = b"{\"trace_level\":[".to_vec();
    for (index, level) in settings.levels.names().into_iter().enumerate() {
        if index > 0 {
            json.push(b',');
        }
        push_json_string(&mut json, level.as_bytes());
    }
    json.push(b']');
    let mut member = |name: &str, value: &str| {
        json.push(b',');
        push_json_string(&mut json, name.as_bytes());
        json.push(b':');
        push_json_string(&mut json, value.as_bytes());
    };
    member("trace_rate", &settings.rate.to_string());
    member("trace_count", &settings.count.to_string());
    if let TraceMode::Triton { log_frequency, file } = &settings.mode {
        member("log_frequency", &log_frequency.to_string());
        member("trace_file", file);
    }
    member("trace_mode", settings.mode.name());
    for (name, value) in &settings.further {
        member(name, value);
    }
    json.push(b'}');
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(body: &str) -> Result<TraceSettingsChange, String> {
        decode_trace_change(body.as_bytes(), &MessageLimits::default())
            .map_err(|status| format!("{:?} {}", status.code(), status.message()))
    }

    #[test]
    fn each_field_is_set_cleared_or_kept() {
        let body = r#"{"trace_level":["TIMESTAMPS","TENSORS","x"],"trace_rate":"5",
            "trace_count":null,"more":{"a":[1]}}"#;
        let levels = FieldChange::Set(TraceLevels { timestamps: true, tensors: true });
        let (rate, count) = (FieldChange::Set(5), FieldChange::Clear);
        let expected =
            TraceSettingsChange { levels, rate, count, log_frequency: FieldChange::Keep };
        assert_eq!(decode(body), Ok(expected));
        for nothing in ["{}", "[]", r#"{"trace_level":[]}"#, r#"{"trace_level":["off"]}"#] {
            assert_eq!(decode(nothing), Ok(TraceSettingsChange::default()), "{nothing}");
        }
        let off = FieldChange::Set(TraceLevels::default());
        assert_eq!(decode(r#"{"trace_level":["OFF"]}"#).unwrap().levels, off);
    }

    #[test]
    fn what_is_wrong_is_named_in_the_order_of_triton() {
        let not_text = "Internal attempt to access JSON non-string as string";
        for (body, expected) in [
            ("", "Internal failed to parse the request JSON buffer: The document is empty. at 0"),
            (
                r#"{"trace_rate":"x","trace_file":null}"#,
                "Unsupported trace file location can not be updated through network protocol",
            ),
            (
                r#"{"trace_rate":1,"trace_level":"OFF"}"#,
                "Internal attempt to access JSON non-array as array",
            ),
            (
                r#"{"trace_level":["TENSORS","OFF"]}"#,
                "InvalidArgument Expect only one trace level 'OFF' is specified",
            ),
            (r#"{"trace_level":[1]}"#, not_text),
            (r#"{"trace_count":-1,"trace_rate":"1"}"#, not_text),
            (r#"{"log_frequency":["1"]}"#, not_text),
            (
                r#"{"trace_count":"-2"}"#,
                "InvalidArgument Unable to parse 'trace_count'. Expecting value >= -1, got:-2",
            ),
            (r#"{"log_frequency":""}"#, "InvalidArgument Unable to parse 'log_frequency', got: "),
        ] {
            assert_eq!(decode(body), Err(expected.to_owned()), "{body}");
        }
    }

    #[test]
    fn settings_are_encoded_in_the_order_of_triton() {
        let mode = TraceMode::Triton { log_frequency: 2, file: String::from("f\"") };
        let further = vec![(String::from("a"), String::from("b"))];
        let files = TraceSettings { rate: 1000, count: -1, mode, further, ..Default::default() };
        let expected = r#"{"trace_level":["OFF"],"trace_rate":"1000","trace_count":"-1","log_frequency":"2","trace_file":"f\"","trace_mode":"triton","a":"b"}"#;
        assert_eq!(String::from_utf8(encode_trace_settings(&files)).unwrap(), expected);
        let levels = TraceLevels { timestamps: true, tensors: true };
        let collector =
            TraceSettings { levels, mode: TraceMode::OpenTelemetry, ..Default::default() };
        let expected = r#"{"trace_level":["TIMESTAMPS","TENSORS"],"trace_rate":"0","trace_count":"0","trace_mode":"opentelemetry"}"#;
        assert_eq!(String::from_utf8(encode_trace_settings(&collector)).unwrap(), expected);
    }
}
