//! The program's commands apart from running the server, one module each.
//!
//! The table of their names and options is `galatea_tools::commands`; this module turns arguments
//! into invocations. Commands that start no server in the program are also in that crate. The exit
//! code is 0 on success, 1 if the command or a check that it performed failed, and 2 if the
//! arguments are invalid.

mod check;
mod keys;
mod openai;
mod serve;
mod sources;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use galatea_allocator::GlibcMallocTuner;
use galatea_dispatch::scheduling_spec_of;
use galatea_tools::Arguments;
use galatea_tools::bench::{self, BenchOptions};
use galatea_tools::commands::{self, Command};
use galatea_tools::completions::{ServerFlag, Shell};
use galatea_tools::console::{ReportFormat, print_failure, print_line, print_result};
use galatea_tools::new_model::{self, NewModel};
use galatea_tools::record::{self, RecordOptions};
use galatea_tools::simulate::{self, SimulateOptions};
use galatea_tools::tune::{self, TuneOptions};

use self::check::CheckOptions;
use self::keys::KeysCommand;
use self::serve::ServeOptions;
use crate::environment::Environment;
use crate::flags::{self, CommandLine, Settings, UsageError};
use crate::{shutdown, startup, tracing};

/// A command and its arguments.
#[derive(Debug)]
pub(crate) enum Invocation {
    /// Serve models without a repository.
    Serve(Box<ServeOptions>),
    /// Serve a repository as Triton's frontend for OpenAI clients does.
    OpenAi(Box<Settings>),
    /// Measure a model.
    Bench(Box<BenchOptions>),
    /// Tune a model.
    Tune(Box<TuneOptions>),
    /// Record traffic.
    Record(Box<RecordOptions>),
    /// Simulate a recording.
    Simulate(Box<SimulateOptions>),
    /// Check models and the settings' repositories.
    Check(Box<CheckOptions>, ReportFormat),
    /// Write a starter model.
    New(NewModel, ReportFormat),
    /// Make, list or revoke keys of tenants.
    Keys(KeysCommand, ReportFormat),
    /// Convert trace files for viewers.
    ExportTraces(Vec<PathBuf>, ReportFormat),
    /// Print the completions for a shell.
    Completions(Shell),
    /// Print what a command does.
    Help(&'static Command),
}

/// The error for invalid command arguments.
#[derive(Debug)]
pub(crate) struct CommandError {
    command: &'static Command,
    reason: String,
}

/// Parses the command at the start of the arguments; `None` if the arguments are for the server.
pub(crate) fn parse(
    arguments: &[String],
    environment: &Environment,
) -> Option<Result<Invocation, CommandError>> {
    let Some((command, words)) = Command::from_arguments(arguments) else {
        let first = arguments.first()?;
        let command = Command::find_incomplete(first)?;
        let given = arguments.iter().take(2).cloned().collect::<Vec<_>>().join(" ");
        let names: Vec<String> =
            Command::beginning_with(first).map(|one| format!("'{}'", one.name)).collect();
        let reason = format!("there is no command '{given}', only {}", names.join(", "));
        return Some(Err(CommandError { command, reason }));
    };
    let rest = arguments.iter().skip(words).cloned();
    let invocation = read(command, rest, environment);
    Some(invocation.map_err(|reason| CommandError { command, reason }))
}

fn read(
    command: &'static Command,
    arguments: impl Iterator<Item = String>,
    environment: &Environment,
) -> Result<Invocation, String> {
    let text = |error: UsageError| error.to_string();
    let settings = match command.name {
        name if name == commands::SERVE.name => serve::defaults(environment).map_err(text)?,
        name if name == commands::OPENAI.name => openai::defaults(environment).map_err(text)?,
        _ => Settings::default(),
    };
    let line = flags::parse_command(command, settings, arguments).map_err(text)?;
    let Some(line) = line else { return Ok(Invocation::Help(command)) };
    let CommandLine { settings, given } = line;
    let format = ReportFormat::json_if(given.has("json"));
    match command.name {
        name if name == commands::SERVE.name => {
            let options = ServeOptions::new(settings, given, format, environment)?;
            Ok(Invocation::Serve(Box::new(options)))
        }
        name if name == commands::OPENAI.name => {
            Ok(Invocation::OpenAi(Box::new(openai::settings(settings, &given, environment)?)))
        }
        name if name == commands::BENCH.name => {
            Ok(Invocation::Bench(Box::new(BenchOptions::new(given, format)?)))
        }
        name if name == commands::TUNE.name => {
            Ok(Invocation::Tune(Box::new(TuneOptions::new(given, format)?)))
        }
        name if name == commands::RECORD.name => {
            Ok(Invocation::Record(Box::new(RecordOptions::new(&given, format)?)))
        }
        name if name == commands::SIMULATE.name => {
            Ok(Invocation::Simulate(Box::new(SimulateOptions::new(given, format)?)))
        }
        name if name == commands::CHECK.name => read_check(settings, given, format),
        name if name == commands::NEW_PYTHON.name => read_new(&given, format),
        name if KeysCommand::has(name) => {
            Ok(Invocation::Keys(KeysCommand::new(name, &given)?, format))
        }
        name if name == commands::EXPORT_TRACES.name => {
            let files: Vec<PathBuf> = given.operands.into_iter().map(PathBuf::from).collect();
            if files.is_empty() {
                return Err(String::from("files of traces are missing"));
            }
            Ok(Invocation::ExportTraces(files, format))
        }
        _ => match given.operands.as_slice() {
            [shell] => Shell::named(shell).map(Invocation::Completions),
            _ => Err(String::from("the name of one shell is missing")),
        },
    }
}

/// Reads the arguments of a check. Models and repositories are operands; the flags are those of the
/// server that would serve them.
fn read_check(
    settings: Settings,
    given: Arguments,
    format: ReportFormat,
) -> Result<Invocation, String> {
    let models = given.operands;
    if models.is_empty() && settings.model_repositories.is_empty() {
        return Err(String::from("a model is missing: a file, a directory or a repository"));
    }
    flags::check_rejected(&settings).map_err(|error| error.to_string())?;
    Ok(Invocation::Check(Box::new(CheckOptions { settings, models }), format))
}

fn read_new(given: &Arguments, format: ReportFormat) -> Result<Invocation, String> {
    let [name] = given.operands.as_slice() else {
        return Err(String::from("the name of one model is missing"));
    };
    let directory = given.option("directory").unwrap_or(new_model::DEFAULT_DIRECTORY);
    Ok(Invocation::New(NewModel::new(name, directory)?, format))
}

/// Runs the command.
pub(crate) fn run(
    invocation: Result<Invocation, CommandError>,
    environment: Environment,
    allocator: GlibcMallocTuner,
) -> ExitCode {
    match invocation {
        Ok(Invocation::Serve(options)) => serve::run(*options, environment, allocator),
        Ok(Invocation::OpenAi(settings)) => startup::serve(*settings, environment, allocator),
        Ok(Invocation::Bench(options)) => bench::run(&options, environment.colours),
        Ok(Invocation::Tune(options)) => {
            let text = tune::run(&options, environment.colours, scheduling_spec_of);
            print_result(text, options.format)
        }
        Ok(Invocation::Record(options)) => {
            let text = record::run(&options, environment.colours, shutdown::stop_on_signal);
            print_result(text, options.format)
        }
        Ok(Invocation::Simulate(options)) => {
            let text = simulate::run(&options, environment.colours, scheduling_spec_of);
            print_result(text, options.format)
        }
        Ok(Invocation::Check(options, format)) => match check::run(*options, environment, format) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(reason) => print_failure(&reason, format),
        },
        Ok(Invocation::New(model, format)) => print_result(model.write(format), format),
        Ok(Invocation::Keys(command, format)) => print_result(command.run(format), format),
        Ok(Invocation::ExportTraces(files, format)) => {
            print_result(tracing::export(&files), format)
        }
        Ok(Invocation::Completions(shell)) => {
            let flags: Vec<ServerFlag> = flags::names().collect();
            print_result(Ok(shell.completion_script(&flags)), ReportFormat::Text)
        }
        Ok(Invocation::Help(command)) => {
            print_result(Ok(flags::command_help(command)), ReportFormat::Text)
        }
        Err(CommandError { command, reason }) => {
            let advice = flags::command_advice(command, &reason);
            print_line(&mut io::stderr(), &format!("error: {reason}\n{advice}"));
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests;
