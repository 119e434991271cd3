//! Tests of the process's log. There is only one log per process, so there is only one test.
#![allow(unsafe_code, reason = "the test calls C functions")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::sync::{Arc, Mutex};

use galatea_abi::{TRITONSERVER_LOG_ERROR, TRITONSERVER_LOG_INFO, TRITONSERVER_LogLevel};
use galatea_c_objects::error::take_c_error;
use galatea_c_objects::log::{self, ApiLog, ApiLogLevel, ApiLogSetting};
use galatea_c_objects::log_functions::{TRITONSERVER_LogIsEnabled, TRITONSERVER_LogMessage};
use galatea_infer::Status;

/// A log that records lines under a name. Its information level can be disabled.
struct RecordingLog {
    name: &'static str,
    info: Mutex<bool>,
    lines: Arc<Mutex<Vec<String>>>,
}

impl ApiLog for RecordingLog {
    fn is_enabled(&self, level: ApiLogLevel) -> bool {
        level != ApiLogLevel::Info || *self.info.lock().unwrap()
    }

    fn write(&self, level: ApiLogLevel, _: Option<(&str, u32)>, text: &str) {
        if self.is_enabled(level) {
            self.lines.lock().unwrap().push(format!("{} {text}", self.name));
        }
    }

    fn set(&self, setting: &ApiLogSetting) -> Result<(), Status> {
        match setting {
            ApiLogSetting::Enabled(ApiLogLevel::Info, on) => *self.info.lock().unwrap() = *on,
            ApiLogSetting::File(name) if name == "bad" => {
                return Err(Status::internal("no such file"));
            }
            _ => {}
        }
        self.lines.lock().unwrap().push(format!("{} {setting:?}", self.name));
        Ok(())
    }
}

static LINES: Mutex<Option<Arc<Mutex<Vec<String>>>>> = Mutex::new(None);

fn recording_log(name: &'static str) -> Box<dyn ApiLog> {
    let lines = LINES.lock().unwrap().get_or_insert_default().clone();
    Box::new(RecordingLog { name, info: Mutex::new(true), lines })
}

fn lines() -> Vec<String> {
    let lines = LINES.lock().unwrap().get_or_insert_default().clone();
    let mut lines = lines.lock().unwrap();
    std::mem::take(&mut *lines)
}

fn is_enabled(level: TRITONSERVER_LogLevel) -> bool {
    // SAFETY: the function has no requirements.
    unsafe { TRITONSERVER_LogIsEnabled(level) }
}

fn message(level: TRITONSERVER_LogLevel) {
    // SAFETY: the strings are NUL-terminated.
    unsafe {
        take_c_error(TRITONSERVER_LogMessage(level, c"a.c".as_ptr(), 7, c"hello".as_ptr()))
            .unwrap();
    }
}

#[test]
fn the_first_log_is_used_by_the_process() {
    message(TRITONSERVER_LOG_ERROR);
    assert!(!is_enabled(TRITONSERVER_LOG_ERROR), "there is no log yet");
    log::set(&ApiLogSetting::Enabled(ApiLogLevel::Info, false)).unwrap();
    log::install_factory(|| recording_log("made"));
    assert!(is_enabled(TRITONSERVER_LOG_ERROR) && is_enabled(TRITONSERVER_LOG_INFO));
    message(TRITONSERVER_LOG_ERROR);
    log::set(&ApiLogSetting::Enabled(ApiLogLevel::Info, false)).unwrap();
    assert!(log::set(&ApiLogSetting::File(String::from("bad"))).is_err());
    assert!(!is_enabled(TRITONSERVER_LOG_INFO));
    message(TRITONSERVER_LOG_INFO);
    assert_eq!(lines(), ["made hello", "made Enabled(Info, false)"]);
    log::install(recording_log("late"));
    message(TRITONSERVER_LOG_ERROR);
    assert_eq!(lines(), ["made hello"]);
}
