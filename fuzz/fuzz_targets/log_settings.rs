//! A change of the log, over HTTP or gRPC. An input is a byte for the protocol and the body or
//! message.
//!
//! The changes in front of a mistake are made in Triton's order, each once. What is shown then is
//! what they made, and can be sent as a change that changes nothing.

#![no_main]

use std::sync::Mutex;

use galatea_codec::limits::MessageLimits;
use galatea_codec_grpc::log::{log_settings_response, parse_log_update};
use galatea_codec_http::{decode_log_request, encode_log_settings};
use galatea_control::{LogControl, LogFormat, LogSettingChange, LogSettings, LogSettingsUpdate};
use galatea_gate::access::{AccessPass, api};
use galatea_infer::Status;
use galatea_protocol::inference::LogSettingsRequest;
use libfuzzer_sys::fuzz_target;
use prost::Message;

/// A log that writes nothing.
#[derive(Debug)]
struct ApiLog(Mutex<LogSettings>);

impl LogControl for ApiLog {
    fn settings(&self, _: AccessPass<api::Logging>) -> LogSettings {
        self.0.lock().expect("no thread panicked").clone()
    }

    fn change(&self, _: AccessPass<api::Logging>, change: LogSettingChange) {
        let mut settings = self.0.lock().expect("no thread panicked");
        match change {
            LogSettingChange::Info(value) => settings.info = value,
            LogSettingChange::Warning(value) => settings.warning = value,
            LogSettingChange::Error(value) => settings.error = value,
            LogSettingChange::VerboseLevel(level) => settings.verbose_level = level,
            LogSettingChange::Format(format) => settings.format = format,
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&protocol, content)) = data.split_first() else { return };
    let Ok(update) = decoded(protocol, content) else { return };
    let places: Vec<u8> = update.changes.iter().map(place).collect();
    assert!(places.is_sorted_by(|one, next| one < next), "{places:?}");
    let has_mistake = update.mistake.is_some();
    let log = ApiLog(Mutex::new(LogSettings {
        file: "galatea.log".to_owned(),
        info: true,
        warning: true,
        error: true,
        verbose_level: 0,
        format: LogFormat::Default,
    }));
    let applied = update.apply(Some(&log), AccessPass::in_process());
    assert_eq!(applied.is_err(), has_mistake);
    let settings = log.settings(AccessPass::in_process());
    assert_eq!(settings.file, "galatea.log");
    if let Ok(shown) = applied {
        assert_eq!(shown, settings);
    }
    assert_eq!(log_settings_response(settings.clone()).settings.len(), 6);
    check_repeated(&log, &settings);
});

fn decoded(protocol: u8, content: &[u8]) -> Result<LogSettingsUpdate, Status> {
    if protocol == b'g' {
        let request = LogSettingsRequest::decode(content);
        return request
            .map(|request| parse_log_update(&request))
            .map_err(|error| Status::internal(error.to_string()));
    }
    decode_log_request(content, &MessageLimits::default())
}

/// The place of a change in Triton's order.
fn place(change: &LogSettingChange) -> u8 {
    match change {
        LogSettingChange::Info(_) => 0,
        LogSettingChange::Warning(_) => 1,
        LogSettingChange::Error(_) => 2,
        LogSettingChange::VerboseLevel(_) => 3,
        LogSettingChange::Format(_) => 4,
    }
}

/// Sends what is shown, less the file, which clients can't change.
fn check_repeated(log: &ApiLog, settings: &LogSettings) {
    let shown = encode_log_settings(settings);
    let mut json: serde_json::Value = serde_json::from_slice(&shown).expect("it is JSON");
    json.as_object_mut().expect("it is an object").remove("log_file");
    let repeated = decode_log_request(json.to_string().as_bytes(), &MessageLimits::default());
    let applied = repeated.expect("it is a change").apply(Some(log), AccessPass::in_process());
    assert_eq!(applied.as_ref(), Ok(settings));
}
