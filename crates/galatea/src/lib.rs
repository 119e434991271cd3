//! The whole server: reads the command line and the environment, wires the parts, and
//! stops them in order after a signal.
//!
//! Three programs use it: the executable, which only calls [`program`], the library
//! `libtritonserver.so`, whose functions create servers with [`make_for_c`], and the package
//! for Python, whose objects create them with [`make_in_process`].
//!
//! It is the only crate that knows all the others, and the only one that reads environment
//! variables. It holds no protocol, no scheduling and no inference.
//!
//! Read the files in this order: `lib` (`program`), `flags`, `startup`, `make` (models),
//! `doors`, `shutdown`. `check` checks models without serving them. From C and Python
//! the order is `in_process`, `flags`, `make`, `frontend`.

#![forbid(unsafe_code)]

mod agents;
mod archives;
mod backends;
mod banner;
mod c_log;
mod cache;
mod catalog;
mod certificates;
mod check;
mod children;
mod cloud_doors;
mod connections;
mod console;
mod definer;
mod doors;
mod environment;
mod flags;
mod frontend;
mod in_process;
mod listeners;
mod load_report;
mod make;
mod memory;
mod new_model;
mod onnxruntime_library;
mod op_libraries;
mod python;
mod shutdown;
mod startup;
mod tracing;
mod workers;

use std::io;
use std::process::ExitCode;

use console::print_line;
use environment::Environment;
use flags::{Request, UsageError};
use galatea_allocator::ServerAllocator;
use galatea_backend_plugin::end_process;
use new_model::NewModel;
use startup::Failure;

pub use c_log::console_log;
pub use frontend::Frontend;
pub use in_process::{InProcessServer, make_for_c, make_in_process};

/// Runs the program, with the arguments of this process.
#[must_use]
pub fn program() -> ExitCode {
    let allocator = ServerAllocator::configure();
    let arguments = std::env::args_os().skip(1);
    let arguments = arguments.map(|argument| argument.to_string_lossy().into_owned());
    let environment = Environment::read();
    match flags::parse(arguments, &environment.clouds.vertex_ai, &environment.span_batches) {
        Ok(Request::Serve(settings)) => {
            for warning in settings.warnings() {
                print_line(&mut io::stderr(), warning);
            }
            match startup::run(*settings, environment, allocator) {
                Ok(()) => ExitCode::SUCCESS,
                Err(failure) => {
                    if !matches!(failure, Failure::Logged) {
                        print_line(&mut io::stderr(), &failure.to_string());
                    }
                    // Threads may still work on unfinished requests, so the server's parts
                    // are not destroyed. Models may still execute after a failed stop, so
                    // their libraries are not destroyed either.
                    match failure {
                        Failure::Start(_) | Failure::Logged => end(1),
                        Failure::Stop(_) => end_process(1),
                    }
                }
            }
        }
        Ok(Request::Check(settings, format)) => check(*settings, format),
        Ok(Request::ExportTraces(files)) => match tracing::export(&files) {
            Ok(document) => {
                print_line(&mut io::stdout(), &document);
                ExitCode::SUCCESS
            }
            Err(reason) => {
                print_line(&mut io::stderr(), &format!("error: {reason}"));
                ExitCode::FAILURE
            }
        },
        Ok(Request::New(model)) => written(&model),
        Ok(Request::Help(form)) => {
            print_line(&mut io::stdout(), flags::help(form).trim_end());
            ExitCode::SUCCESS
        }
        Ok(Request::Version) => {
            print_line(&mut io::stdout(), concat!("galatea ", env!("CARGO_PKG_VERSION")));
            ExitCode::SUCCESS
        }
        Err(error @ UsageError::Rejected(_)) => {
            print_line(&mut io::stderr(), &error.to_string());
            ExitCode::FAILURE
        }
        Err(error @ UsageError::Malformed(_)) => {
            // The error comes last, so that the usage text doesn't push it off the screen.
            print_line(
                &mut io::stderr(),
                &format!("{}\n{error}", flags::help(flags::HelpForm::Text)),
            );
            ExitCode::FAILURE
        }
    }
}

fn check(settings: flags::Settings, format: check::ReportFormat) -> ExitCode {
    match check::run(settings, Environment::read(), format) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            print_line(&mut io::stderr(), &format!("error: {reason}"));
            ExitCode::FAILURE
        }
    }
}

fn written(model: &NewModel) -> ExitCode {
    match model.write() {
        Ok(text) => {
            print_line(&mut io::stdout(), &text);
            ExitCode::SUCCESS
        }
        Err(reason) => {
            print_line(&mut io::stderr(), &format!("error: {reason}"));
            ExitCode::FAILURE
        }
    }
}

#[allow(clippy::disallowed_methods)] // This is the whole of main.
fn end(code: i32) -> ExitCode {
    std::process::exit(code)
}
