//! Trace settings as gRPC messages.

use galatea_control::{FieldChange, TraceMode, TraceSettings, TraceSettingsChange};
use galatea_infer::Status;
use galatea_protocol::inference as message;
use message::trace_setting_request::SettingValue as RequestValue;
use message::trace_setting_response::SettingValue;

use galatea_codec::trace_fields;

/// Returns the change that a request specifies, or `None` if it only requests the settings.
///
/// # Errors
///
/// `Unsupported` for an attempt to change the file; `InvalidArgument` for wrong values, and for
/// several values of one field. Unknown fields change nothing.
pub fn parse_trace_change(
    request: &message::TraceSettingRequest,
) -> Result<Option<TraceSettingsChange>, Status> {
    if request.settings.is_empty() {
        return Ok(None);
    }
    if request.settings.contains_key("trace_file") {
        return Err(trace_fields::fixed_trace_file_error());
    }
    let mut change = TraceSettingsChange::default();
    if let Some(RequestValue { value }) = request.settings.get("trace_level") {
        let mut levels = None;
        for name in value {
            trace_fields::add_trace_level(&mut levels, name, value.len())?;
        }
        change.levels = match levels {
            _ if value.is_empty() => FieldChange::Clear,
            Some(levels) => FieldChange::Set(levels),
            None => FieldChange::Keep,
        };
    }
    change.rate = field(request, "trace_rate", |text| {
        trace_fields::parse_unsigned_field("trace_rate", text)
    })?;
    change.count =
        field(request, "trace_count", |text| trace_fields::parse_trace_count(text, " "))?;
    change.log_frequency = field(request, "log_frequency", |text| {
        trace_fields::parse_unsigned_field("log_frequency", text)
    })?;
    Ok(Some(change))
}

fn field<T>(
    request: &message::TraceSettingRequest,
    name: &str,
    parse: impl Fn(&str) -> Result<T, Status>,
) -> Result<FieldChange<T>, Status> {
    match request.settings.get(name).map(|setting| setting.value.as_slice()) {
        None => Ok(FieldChange::Keep),
        Some([]) => Ok(FieldChange::Clear),
        Some([text]) => parse(text).map(FieldChange::Set),
        Some(_) => Err(Status::invalid_argument(format!("expect only 1 value for '{name}'"))),
    }
}

/// Creates the response with the current settings.
#[must_use]
pub fn trace_settings_response(settings: TraceSettings) -> message::TraceSettingResponse {
    let mut response = message::TraceSettingResponse::default();
    let mut add = |name: &str, value: String| {
        let entry: &mut SettingValue = response.settings.entry(name.to_owned()).or_default();
        entry.value.push(value);
    };
    for level in settings.levels.names() {
        add("trace_level", level.to_owned());
    }
    add("trace_rate", settings.rate.to_string());
    add("trace_count", settings.count.to_string());
    add("trace_mode", settings.mode.name().to_owned());
    if let TraceMode::Triton { log_frequency, file } = settings.mode {
        add("log_frequency", log_frequency.to_string());
        add("trace_file", file);
    }
    for (name, value) in settings.further {
        add(&name, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use galatea_control::TraceLevels;

    use super::*;

    fn change(settings: &[(&str, &[&str])]) -> Result<Option<TraceSettingsChange>, String> {
        let value = |texts: &[&str]| RequestValue {
            value: texts.iter().map(|text| (*text).to_owned()).collect(),
        };
        let settings = settings.iter().map(|(name, texts)| ((*name).to_owned(), value(texts)));
        let request = message::TraceSettingRequest {
            settings: settings.collect(),
            model_name: String::new(),
        };
        parse_trace_change(&request).map_err(|status| status.message().to_owned())
    }

    #[test]
    fn each_field_is_set_cleared_or_kept() {
        assert_eq!(change(&[]), Ok(None));
        assert_eq!(change(&[("more", &["1", "2"])]), Ok(Some(TraceSettingsChange::default())));
        let fields: [(&str, &[&str]); 3] = [
            ("trace_level", &["TIMESTAMPS", "TENSORS"]),
            ("trace_rate", &[]),
            ("trace_count", &["7"]),
        ];
        let levels = FieldChange::Set(TraceLevels { timestamps: true, tensors: true });
        let (rate, count) = (FieldChange::Clear, FieldChange::Set(7));
        let expected =
            TraceSettingsChange { levels, rate, count, log_frequency: FieldChange::Keep };
        assert_eq!(change(&fields), Ok(Some(expected)));
        assert_eq!(change(&[("trace_level", &[])]).unwrap().unwrap().levels, FieldChange::Clear);
        let unknown = change(&[("trace_level", &["x"])]).unwrap().unwrap();
        assert_eq!(unknown.levels, FieldChange::Keep);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (field, values, expected) in [
            (
                "trace_file",
                &[][..],
                "trace file location can not be updated through network protocol",
            ),
            ("trace_rate", &["1", "2"][..], "expect only 1 value for 'trace_rate'"),
            (
                "trace_count",
                &["-2"][..],
                "Unable to parse 'trace_count'. Expecting value >= -1, got: -2",
            ),
            ("log_frequency", &["x"][..], "Unable to parse 'log_frequency', got: x"),
            ("trace_level", &["OFF", "OFF"][..], "Expect only one trace level 'OFF' is specified"),
        ] {
            assert_eq!(change(&[(field, values)]), Err(expected.to_owned()));
        }
    }

    #[test]
    fn repeated_settings_are_one_list() {
        let further = ["a", "b"].map(|value| (String::from("resource"), value.to_owned())).to_vec();
        let settings =
            TraceSettings { mode: TraceMode::OpenTelemetry, further, ..Default::default() };
        let response = trace_settings_response(settings);
        assert_eq!(response.settings["resource"].value, ["a", "b"]);
        assert_eq!(response.settings["trace_level"].value, ["OFF"]);
        assert!(!response.settings.contains_key("trace_file"));
    }
}
