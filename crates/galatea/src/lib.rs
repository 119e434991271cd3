//! The server put together: reads the command line and the environment, wires
//! the parts, and stops them in order when a signal says so.
//!
//! Two programs are made of it: the executable, which is [`program`] alone, and
//! the library `libtritonserver.so`, whose functions make servers with
//! [`make_for_c`].
//!
//! It is the only crate that knows all the others, and the only one that
//! reads environment variables. What the parts do is theirs: there is no
//! protocol, no scheduling and no inference here.
//!
//! The way through the files: `program` → `flags` → `startup` (`make`: models,
//! then doors) → `shutdown`; `check` looks at models without serving them; from C,
//! `in_process` → `flags` → `make`.

#![forbid(unsafe_code)]

mod agents;
mod backends;
mod banner;
mod c_log;
mod cache;
mod check;
mod children;
mod doors;
mod environment;
mod flags;
mod in_process;
mod listeners;
mod make;
mod models;
mod onnxruntime_library;
mod op_libraries;
mod shutdown;
mod startup;
mod workers;

use std::io::{self, Write};
use std::process::ExitCode;

use environment::Environment;
use flags::Request;
use galatea_allocator::ServerAllocator;
use galatea_backend_plugin::end_process;
use startup::Failure;

pub use c_log::console_log;
pub use in_process::make_for_c;

/// Runs the program, with the arguments of this process.
#[must_use]
pub fn program() -> ExitCode {
    let allocator = ServerAllocator::configure();
    let arguments = std::env::args_os().skip(1);
    let arguments = arguments.map(|argument| argument.to_string_lossy().into_owned());
    match flags::parse(arguments) {
        Ok(Request::Serve(settings)) => {
            match startup::run(*settings, Environment::read(), allocator) {
                Ok(()) => ExitCode::SUCCESS,
                Err(failure) => {
                    print(&mut io::stderr(), &failure.to_string());
                    // Threads may still be busy with what could not be finished, so
                    // nothing of ours is torn down any more; and under models that may
                    // be executed nothing of their libraries either.
                    match failure {
                        Failure::Start(_) => end(1),
                        Failure::Stop(_) => end_process(1),
                    }
                }
            }
        }
        Ok(Request::Check(settings, form)) => check(*settings, form),
        Ok(Request::Help) => {
            print(&mut io::stdout(), flags::usage().trim_end());
            ExitCode::SUCCESS
        }
        Ok(Request::Version) => {
            print(&mut io::stdout(), concat!("galatea ", env!("CARGO_PKG_VERSION")));
            ExitCode::SUCCESS
        }
        Err(error) => {
            // The error comes last, where it is seen.
            print(&mut io::stderr(), &format!("{}\n{error}", flags::usage()));
            ExitCode::FAILURE
        }
    }
}

fn check(settings: flags::Settings, form: check::Form) -> ExitCode {
    match check::run(settings, Environment::read(), form) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            print(&mut io::stderr(), &format!("error: {reason}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints a line; a closed stream is nobody's problem.
fn print(stream: &mut dyn Write, line: &str) {
    let _ = writeln!(stream, "{line}").and_then(|()| stream.flush());
}

#[allow(clippy::disallowed_methods)] // This is the whole of main.
fn end(code: i32) -> ExitCode {
    std::process::exit(code)
}
