//! The server as a Python module, `galatea._galatea`. The `galatea` package in the `python` folder
//! is built on it.
//!
//! This crate is a door like the C API: requests are calls, and tensors are addresses. The crate
//! knows the server only as [`ServerRef`](galatea_capi::ServerRef), which answers queries and
//! executes commands, and as `InferenceService`. The server program is also included: the wheel's
//! `galatea` and `tritonserver` commands are scripts that run it. The crate does *not* define the
//! user interface: names, options, iterators and tensors are Python code in `python/galatea`.
//!
//! # Python's lock
//!
//! - A call to the server first releases the lock. Waiting for a response doesn't require the lock.
//! - The server's threads never run Python code. Responses go to a queue in Rust, where a Python
//!   thread waits for them or a file descriptor wakes an event loop. No callback therefore delays
//!   other requests, and no server thread enters an interpreter that is shutting down.
//!
//! # Memory
//!
//! - Inputs are read in place. The arrays that own them live until the server drops the request,
//!   and releasing them never takes Python's lock.
//! - Outputs are copied once, so that a program that writes to a tensor changes neither an input
//!   nor a cached response.
//!
//! Start with `server.rs`, then `request.rs` and `replies.rs`.

#![allow(unsafe_code, reason = "inputs are addresses, read in one place: memory.rs")]

mod errors;
mod event_loop;
mod memory;
mod metrics;
mod replies;
mod request;
mod response;
mod server;

use std::ffi::OsString;
use std::process::ExitCode;

use galatea_c_objects::log::{self, ApiLogFormat, ApiLogLevel, ApiLogSetting};
use pyo3::prelude::*;

/// Changes the settings of the process's log, as the option setters in C do. Settings that are
/// `None` are left unchanged.
#[pyfunction]
#[pyo3(signature = (*, file=None, info=None, warn=None, error=None, iso8601=None, verbose=None))]
fn set_log(
    py: Python<'_>,
    file: Option<String>,
    info: Option<bool>,
    warn: Option<bool>,
    error: Option<bool>,
    iso8601: Option<bool>,
    verbose: Option<u32>,
) -> PyResult<()> {
    let format = |iso8601| if iso8601 { ApiLogFormat::Iso8601 } else { ApiLogFormat::Default };
    let settings = [
        file.map(ApiLogSetting::File),
        info.map(|on| ApiLogSetting::Enabled(ApiLogLevel::Info, on)),
        warn.map(|on| ApiLogSetting::Enabled(ApiLogLevel::Warning, on)),
        error.map(|on| ApiLogSetting::Enabled(ApiLogLevel::Error, on)),
        iso8601.map(|iso8601| ApiLogSetting::Format(format(iso8601))),
        verbose.map(ApiLogSetting::VerboseLevel),
    ];
    py.detach(|| settings.iter().flatten().try_for_each(log::set)).map_err(errors::raise)
}

/// Writes a line to the log with its source location in the caller's code. Level numbers are those
/// of `TRITONSERVER_LogLevel`.
#[pyfunction]
fn log_message(py: Python<'_>, level: u32, file: &str, line: u32, text: &str) {
    let level = match level {
        0 => ApiLogLevel::Info,
        1 => ApiLogLevel::Warning,
        2 => ApiLogLevel::Error,
        _ => ApiLogLevel::Verbose,
    };
    py.detach(|| log::write(level, Some((file, line)), text));
}

/// Runs the program with these arguments, starting with the program's name. Returns the exit
/// status.
#[pyfunction]
fn run_program(py: Python<'_>, arguments: Vec<OsString>) -> i32 {
    let done = py.detach(|| galatea::run_program(arguments.into_iter()));
    // The number in an `ExitCode` can't be read, only compared.
    (0..=u8::MAX).find(|code| ExitCode::from(*code) == done).map_or(1, i32::from)
}

#[pymodule]
fn _galatea(module: &Bound<'_, PyModule>) -> PyResult<()> {
    galatea_capi::install_server_factory(galatea::make_for_c);
    galatea_capi::install_log_factory(galatea::console_logger);
    module.add_class::<server::Server>()?;
    module.add_class::<server::Frontend>()?;
    module.add_class::<request::Request>()?;
    module.add_class::<response::Response>()?;
    module.add_class::<memory::OutputMemory>()?;
    module.add_class::<event_loop::EventLoopWaker>()?;
    module.add_class::<metrics::MetricFamily>()?;
    module.add_class::<metrics::Metric>()?;
    module.add_function(wrap_pyfunction!(run_program, module)?)?;
    module.add_function(wrap_pyfunction!(set_log, module)?)?;
    module.add_function(wrap_pyfunction!(log_message, module)?)
}
