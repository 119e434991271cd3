//! Log settings as gRPC messages.

use galatea_control::{LogFormat, LogSettingChange, LogSettings, LogSettingsUpdate};
use galatea_infer::Status;
use galatea_protocol::inference as message;
use message::log_settings_request::SettingValue;
use message::log_settings_request::setting_value::ParameterChoice;
use message::log_settings_response as response;
use response::setting_value::ParameterChoice as ResponseChoice;

/// Returns the changes that a request specifies. As in Triton, settings that don't exist are
/// ignored.
#[must_use]
pub fn parse_log_update(request: &message::LogSettingsRequest) -> LogSettingsUpdate {
    let mut update = LogSettingsUpdate::default();
    update.mistake = add_changes(request, &mut update.changes).err();
    update
}

/// Adds the changes in Triton's order, up to the first error.
fn add_changes(
    request: &message::LogSettingsRequest,
    changes: &mut Vec<LogSettingChange>,
) -> Result<(), Status> {
    let settings = &request.settings;
    if settings.contains_key("log_file") {
        return Err(Status::unsupported(
            "log file location can not be updated through network protocol",
        ));
    }
    if let Some(value) = settings.get("log_info") {
        changes.push(LogSettingChange::Info(boolean("log_info", value)?));
    }
    if let Some(value) = settings.get("log_warning") {
        changes.push(LogSettingChange::Warning(boolean("log_warning", value)?));
    }
    if let Some(value) = settings.get("log_error") {
        changes.push(LogSettingChange::Error(boolean("log_error", value)?));
    }
    if let Some(value) = settings.get("log_verbose_level") {
        changes.push(level(value)?);
    }
    if let Some(value) = settings.get("log_format") {
        changes.push(LogSettingChange::Format(format(value)?));
    }
    Ok(())
}

fn expected(what: &str, name: &str) -> Status {
    Status::invalid_argument(format!("expect {what} for '{name}'"))
}

fn boolean(name: &str, value: &SettingValue) -> Result<bool, Status> {
    match value.parameter_choice {
        Some(ParameterChoice::BoolParam(value)) => Ok(value),
        _ => Err(expected("boolean", name)),
    }
}

fn level(value: &SettingValue) -> Result<LogSettingChange, Status> {
    match value.parameter_choice {
        Some(ParameterChoice::Uint32Param(value)) => {
            Ok(LogSettingChange::verbose_level(value.into()))
        }
        // The text is Triton's, although the field is unsigned.
        _ => Err(expected("int32", "log_verbose_level")),
    }
}

fn format(value: &SettingValue) -> Result<LogFormat, Status> {
    let Some(ParameterChoice::StringParam(name)) = &value.parameter_choice else {
        return Err(expected("string", "log_format"));
    };
    LogFormat::named(name).ok_or_else(|| {
        Status::invalid_argument(format!("invalid argument for log_format, got: {name}"))
    })
}

/// Creates the response with the current log settings.
#[must_use]
pub fn log_settings_response(settings: LogSettings) -> message::LogSettingsResponse {
    let setting = |name: &str, choice| {
        (name.to_owned(), response::SettingValue { parameter_choice: Some(choice) })
    };
    let settings = [
        setting("log_file", ResponseChoice::StringParam(settings.file)),
        setting("log_info", ResponseChoice::BoolParam(settings.info)),
        setting("log_warning", ResponseChoice::BoolParam(settings.warning)),
        setting("log_error", ResponseChoice::BoolParam(settings.error)),
        setting("log_verbose_level", ResponseChoice::Uint32Param(settings.verbose_level)),
        setting("log_format", ResponseChoice::StringParam(settings.format.name().to_owned())),
    ];
    message::LogSettingsResponse { settings: settings.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(settings: &[(&str, ParameterChoice)]) -> message::LogSettingsRequest {
        let value =
            |choice: &ParameterChoice| SettingValue { parameter_choice: Some(choice.clone()) };
        message::LogSettingsRequest {
            settings: settings
                .iter()
                .map(|(name, choice)| ((*name).to_owned(), value(choice)))
                .collect(),
        }
    }

    fn mistake(settings: &[(&str, ParameterChoice)]) -> String {
        parse_log_update(&request(settings)).mistake.unwrap().to_string()
    }

    #[test]
    fn settings_are_changed_in_tritons_order() {
        use ParameterChoice::{BoolParam, StringParam, Uint32Param};
        let update = parse_log_update(&request(&[
            ("log_format", StringParam("ISO8601".into())),
            ("log_verbose_level", Uint32Param(2)),
            ("log_error", BoolParam(true)),
            ("log_warning", BoolParam(false)),
            ("log_info", BoolParam(false)),
            ("unknown", BoolParam(false)),
        ]));
        let expected = vec![
            LogSettingChange::Info(false),
            LogSettingChange::Warning(false),
            LogSettingChange::Error(true),
            LogSettingChange::VerboseLevel(2),
            LogSettingChange::Format(LogFormat::Iso8601),
        ];
        assert_eq!(update, LogSettingsUpdate { changes: expected, mistake: None });
    }

    #[test]
    fn mistakes_are_told_behind_the_changes_before_them() {
        use ParameterChoice::{BoolParam, StringParam, Uint32Param};
        let text = || StringParam("x".into());
        assert!(mistake(&[("log_file", text())]).contains("log file location can not be updated"));
        assert!(mistake(&[("log_info", Uint32Param(1))]).contains("expect boolean for 'log_info'"));
        let level = mistake(&[("log_verbose_level", BoolParam(true))]);
        assert!(level.contains("expect int32 for 'log_verbose_level'"), "{level}");
        let format = mistake(&[("log_format", BoolParam(true))]);
        assert!(format.contains("expect string for 'log_format'"), "{format}");
        let format = mistake(&[("log_format", text())]);
        assert!(format.contains("invalid argument for log_format, got: x"), "{format}");
        let update =
            parse_log_update(&request(&[("log_info", BoolParam(false)), ("log_error", text())]));
        assert_eq!(update.changes, [LogSettingChange::Info(false)]);
        assert!(update.mistake.is_some());
    }
}
