//! The complete server: it reads the command line and the environment, wires the parts together,
//! and stops them in order after a signal.
//!
//! It has three users: the executable, which only calls [`run_program`]; the library
//! `libtritonserver.so`, which creates servers with [`make_for_c`]; and the Python package, which
//! creates them with [`make_in_process`].
//!
//! This is the only crate that depends on all the others, and the only one that reads environment
//! variables. It contains no protocol, scheduling or inference code.
//!
//! Read the files in this order: `lib` (`program`), `flags`, `startup`, `make` (models), `doors`,
//! `shutdown`. `commands` implements everything that the program does apart from serving
//! repositories; `galatea-tools` implements the commands that need no server in this process. For C
//! and Python, read `in_process`, `flags`, `make`, then `frontend`.

#![forbid(unsafe_code)]

mod agents;
mod archives;
mod backend_advice;
mod backends;
mod banner;
mod c_log;
mod cache;
mod catalog;
mod certificates;
mod children;
mod cloud_doors;
mod commands;
mod connections;
mod definer;
mod doors;
mod environment;
mod error_paths;
mod flags;
mod frontend;
mod gpus;
mod hub_cache;
mod in_process;
mod input_bytes;
mod listeners;
mod load_report;
mod make;
mod memory;
mod model_code;
mod op_libraries;
mod openai_adapters;
mod openai_door;
mod openai_metrics;
mod python;
mod shutdown;
mod startup;
mod tenants;
mod tracing;
mod watched_files;
mod workers;

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use environment::Environment;
use flags::{ServerCommand, UsageError};
use galatea_allocator::GlibcMallocTuner;
use galatea_tools::commands::OPENAI;
use galatea_tools::console::print_line;

pub use c_log::console_logger;
pub use frontend::Frontend;
pub use in_process::{InProcessServer, make_for_c, make_in_process};

/// The program name under which Galatea behaves like Triton's program and has no commands.
const TRITON: &str = "tritonserver";
/// The program name under which the program is `galatea openai`.
const TRITON_OPENAI: &str = "tritonserver-openai";

/// Runs the program with its command-line arguments, the first of which is the program name.
#[must_use]
pub fn run_program(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let allocator = GlibcMallocTuner::configure();
    let mut arguments = arguments.map(|argument| argument.to_string_lossy().into_owned());
    let name = arguments.next().unwrap_or_default();
    let name = Path::new(&name).file_name();
    let has_commands = name.is_none_or(|name| name != TRITON);
    let command = name.is_some_and(|name| name == TRITON_OPENAI).then(|| OPENAI.name.to_owned());
    let arguments: Vec<String> = command.into_iter().chain(arguments).collect();
    let environment = Environment::read();
    if has_commands && let Some(invocation) = commands::parse(&arguments, &environment) {
        return commands::run(invocation, environment, allocator);
    }
    let (vertex_ai, batches) = (&environment.clouds.vertex_ai, &environment.span_batches);
    match flags::parse(arguments, vertex_ai, batches) {
        Ok(ServerCommand::Serve(settings)) => startup::serve(*settings, environment, allocator),
        Ok(ServerCommand::Help(form)) => {
            print_line(&mut io::stdout(), flags::help(form).trim_end());
            ExitCode::SUCCESS
        }
        Ok(ServerCommand::Version) => {
            print_line(&mut io::stdout(), concat!("galatea ", env!("CARGO_PKG_VERSION")));
            if let Some(commit) = option_env!("GALATEA_COMMIT") {
                print_line(&mut io::stdout(), &format!("commit {commit}"));
            }
            ExitCode::SUCCESS
        }
        Err(error @ UsageError::Rejected(_)) => {
            print_line(&mut io::stderr(), &error.to_string());
            ExitCode::FAILURE
        }
        Err(error @ UsageError::Malformed(_)) => {
            let text = error.to_string();
            print_line(&mut io::stderr(), &format!("{text}\n{}", flags::advice(&text)));
            ExitCode::FAILURE
        }
    }
}
