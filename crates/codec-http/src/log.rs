//! Log settings as JSON.

use galatea_codec::limits::MessageLimits;
use galatea_control::{LogFormat, LogSettingChange, LogSettings, LogSettingsUpdate};
use galatea_infer::Status;

use super::fields::keep_first;
use super::json::{JsonReader, JsonType, push_json_string, push_json_u64};
use super::repository::read_object;

/// A value in the request, in a form that some setting can use.
enum LogValue {
    Null,
    Bool(bool),
    Unsigned(u64),
    Text(String),
    Other,
}

impl LogValue {
    fn read(reader: &mut JsonReader<'_>) -> Result<Self, Status> {
        match reader.value_type()? {
            JsonType::Bool => Ok(Self::Bool(reader.boolean()?)),
            JsonType::String => Ok(Self::Text(reader.text()?.into_owned())),
            JsonType::Number => {
                Ok(reader.number()?.as_unsigned().map_or(Self::Other, Self::Unsigned))
            }
            JsonType::Null => reader.skip_value().map(|()| Self::Null),
            JsonType::Array | JsonType::Object => reader.skip_value().map(|()| Self::Other),
        }
    }

    fn boolean(self) -> Result<bool, Status> {
        match self {
            Self::Bool(value) => Ok(value),
            _ => Err(Status::internal("attempt to access JSON non-boolean as boolean")),
        }
    }

    /// Converts the value to a level.
    fn level(self) -> Result<LogSettingChange, Status> {
        match self {
            Self::Unsigned(value) => Ok(LogSettingChange::verbose_level(value)),
            _ => Err(Status::internal(
                "attempt to access JSON non-unsigned-integer as unsigned-integer",
            )),
        }
    }

    fn format(self) -> Result<LogFormat, Status> {
        match self {
            Self::Text(name) => LogFormat::named(&name).ok_or_else(|| {
                Status::unavailable(format!("invalid argument for --log_format, got: {name}"))
            }),
            _ => Err(Status::internal("attempt to access JSON non-string as string")),
        }
    }
}

/// The first value of each setting.
#[derive(Default)]
struct LogSettingValues {
    file: Option<LogValue>,
    info: Option<LogValue>,
    warning: Option<LogValue>,
    error: Option<LogValue>,
    verbose_level: Option<LogValue>,
    format: Option<LogValue>,
}

impl LogSettingValues {
    fn of(&mut self, name: &[u8]) -> Option<&mut Option<LogValue>> {
        match name {
            b"log_file" => Some(&mut self.file),
            b"log_info" => Some(&mut self.info),
            b"log_warning" => Some(&mut self.warning),
            b"log_error" => Some(&mut self.error),
            b"log_verbose_level" => Some(&mut self.verbose_level),
            b"log_format" => Some(&mut self.format),
            _ => None,
        }
    }

    /// Adds the changes to `changes`, in Triton's order, up to the first error.
    fn add_to(self, changes: &mut Vec<LogSettingChange>) -> Result<(), Status> {
        if given(self.file).is_some() {
            return Err(Status::unsupported(
                "log file location can not be updated through network protocol",
            ));
        }
        if let Some(value) = given(self.info) {
            changes.push(LogSettingChange::Info(value.boolean()?));
        }
        if let Some(value) = given(self.warning) {
            changes.push(LogSettingChange::Warning(value.boolean()?));
        }
        if let Some(value) = given(self.error) {
            changes.push(LogSettingChange::Error(value.boolean()?));
        }
        if let Some(value) = given(self.verbose_level) {
            changes.push(value.level()?);
        }
        if let Some(value) = given(self.format) {
            changes.push(LogSettingChange::Format(value.format()?));
        }
        Ok(())
    }
}

/// Returns a value that is present and not null.
fn given(value: Option<LogValue>) -> Option<LogValue> {
    value.filter(|value| !matches!(value, LogValue::Null))
}

/// Decodes a request to change the log settings. As in Triton, settings that don't exist are
/// ignored.
///
/// # Errors
///
/// `Internal` for malformed or empty JSON. Errors in individual settings are part of the result.
pub fn decode_log_request(
    body: &[u8],
    limits: &MessageLimits,
) -> Result<LogSettingsUpdate, Status> {
    let mut values = LogSettingValues::default();
    // Unlike an empty repository request body, an empty body is refused here.
    JsonReader::new(body).value_type()?;
    read_object(body, limits, |reader, name| {
        let Some(place) = values.of(name) else { return reader.skip_value() };
        keep_first(place, LogValue::read(reader)?);
        Ok(())
    })?;
    let mut update = LogSettingsUpdate::default();
    update.mistake = values.add_to(&mut update.changes).err();
    Ok(update)
}

/// Encodes the current log settings.
#[must_use]
pub fn encode_log_settings(settings: &LogSettings) -> Vec<u8> {
    let mut json = Vec::with_capacity(192);
    json.extend_from_slice(b"{\"log_file\":");
    push_json_string(&mut json, settings.file.as_bytes());
    for (name, value) in [
        ("log_info", settings.info),
        ("log_warning", settings.warning),
        ("log_error", settings.error),
    ] {
        json.extend_from_slice(format!(",\"{name}\":{value}").as_bytes());
    }
    json.extend_from_slice(b",\"log_verbose_level\":");
    push_json_u64(&mut json, settings.verbose_level.into());
    json.extend_from_slice(b",\"log_format\":");
    push_json_string(&mut json, settings.format.name().as_bytes());
    json.push(b'}');
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(body: &str) -> LogSettingsUpdate {
        decode_log_request(body.as_bytes(), &MessageLimits::default()).unwrap()
    }

    /// Checks the changes of a request, and the beginning of its error message.
    fn check(body: &str, changes: &[LogSettingChange], mistake: &str) {
        let update = decoded(body);
        assert_eq!(update.changes, changes, "{body}");
        let text = update.mistake.map(|status| status.to_string()).unwrap_or_default();
        assert!(text.contains(mistake) && text.is_empty() == mistake.is_empty(), "{body}: {text}");
    }

    #[test]
    fn settings_are_decoded_in_tritons_order() {
        use LogSettingChange::{Error, Format, Info, VerboseLevel, Warning};
        check("{}", &[], "");
        check("[1]", &[], "");
        check(r#"{"unknown":1,"log_info":null}"#, &[], "");
        check(
            r#"{"log_format":"ISO8601","log_verbose_level":3,"log_error":true,
                "log_warning":false,"log_info":false}"#,
            &[
                Info(false),
                Warning(false),
                Error(true),
                VerboseLevel(3),
                Format(LogFormat::Iso8601),
            ],
            "",
        );
        check(r#"{"log_info":true,"log_info":false}"#, &[Info(true)], "");
        check(r#"{"log_verbose_level":4294967297}"#, &[VerboseLevel(1)], "");
        check(r#"{"log_verbose_level":2147483648}"#, &[VerboseLevel(0)], "");
    }

    #[test]
    fn changes_before_a_mistake_are_kept() {
        let boolean = "attempt to access JSON non-boolean as boolean";
        check(r#"{"log_error":"x","log_info":false}"#, &[LogSettingChange::Info(false)], boolean);
        check(r#"{"log_file":"x","log_info":false}"#, &[], "log file location can not be updated");
        let unsigned = "attempt to access JSON non-unsigned-integer as unsigned-integer";
        for level in ["-1", "1.5", "\"1\"", "[]"] {
            check(&format!("{{\"log_verbose_level\":{level}}}"), &[], unsigned);
        }
        check(r#"{"log_format":1}"#, &[], "attempt to access JSON non-string as string");
        check(r#"{"log_format":"x"}"#, &[], "invalid argument for --log_format, got: x");
        for malformed in [&b"{"[..], b"", b" "] {
            assert!(decode_log_request(malformed, &MessageLimits::default()).is_err());
        }
    }

    #[test]
    fn settings_are_encoded() {
        let settings = LogSettings {
            file: String::from("a\"b"),
            info: true,
            warning: false,
            error: true,
            verbose_level: 7,
            format: LogFormat::Iso8601,
        };
        let expected = r#"{"log_file":"a\"b","log_info":true,"log_warning":false,"log_error":true,"log_verbose_level":7,"log_format":"ISO8601"}"#;
        assert_eq!(String::from_utf8(encode_log_settings(&settings)).unwrap(), expected);
    }
}
