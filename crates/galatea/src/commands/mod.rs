//! The commands beside the server, one module each.
//!
//! The table of their names and options is in `flags::commands`; this module turns arguments
//! into what is asked for. A command ends with 0 if all is well, with 1 if what it did or looked
//! at failed, and with 2 if its arguments can't be understood.

mod bench;
pub(crate) mod check;
pub(crate) mod completions;
mod new_model;
mod record;
pub(crate) mod serve;
mod simulate;
mod sources;
mod tune;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use galatea_allocator::ServerAllocator;
use serde_json::json;

use self::bench::BenchOptions;
use self::check::CheckOptions;
use self::completions::Shell;
use self::new_model::NewModel;
use self::record::RecordOptions;
use self::serve::ServeOptions;
use self::simulate::SimulateOptions;
use self::tune::TuneOptions;
use crate::console::{Format, print_line};
use crate::environment::Environment;
use crate::flags::commands::{self, Command};
use crate::flags::{self, CommandLine, Settings, UsageError};
use crate::tracing;

/// A command with its arguments.
#[derive(Debug)]
pub(crate) enum Invocation {
    /// Serve models without a repository.
    Serve(Box<ServeOptions>),
    /// Measure a model.
    Bench(Box<BenchOptions>),
    /// Tune a model.
    Tune(Box<TuneOptions>),
    /// Record traffic.
    Record(Box<RecordOptions>),
    /// Simulate what was recorded.
    Simulate(Box<SimulateOptions>),
    /// Check models and the settings' repositories.
    Check(Box<CheckOptions>, Format),
    /// Write a model to begin with.
    New(NewModel, Format),
    /// Convert files of traces for viewers.
    ExportTraces(Vec<PathBuf>, Format),
    /// Print the completions of a shell.
    Completions(Shell),
    /// Print what a command does.
    Help(&'static Command),
}

/// Arguments of a command that can't be understood.
#[derive(Debug)]
pub(crate) struct CommandError {
    command: &'static Command,
    reason: String,
}

/// The command that the arguments begin with; `None` if they are the server's.
pub(crate) fn parse(
    arguments: &[String],
    environment: &Environment,
) -> Option<Result<Invocation, CommandError>> {
    let Some((command, words)) = Command::named(arguments) else {
        let first = arguments.first()?;
        let command = Command::beginning_with(first)?;
        let given = arguments.iter().take(2).cloned().collect::<Vec<_>>().join(" ");
        let reason = format!("there is no command '{given}', only '{}'", command.name);
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
    let settings = if command.name == commands::SERVE.name {
        serve::defaults(environment).map_err(text)?
    } else {
        Settings::default()
    };
    let line = flags::parse_command(command, settings, arguments).map_err(text)?;
    let Some(line) = line else { return Ok(Invocation::Help(command)) };
    let format = Format::json_if(line.has("json"));
    match command.name {
        name if name == commands::SERVE.name => {
            let options = ServeOptions::new(line, format, environment)?;
            Ok(Invocation::Serve(Box::new(options)))
        }
        name if name == commands::BENCH.name => {
            Ok(Invocation::Bench(Box::new(BenchOptions::new(line, format)?)))
        }
        name if name == commands::TUNE.name => {
            Ok(Invocation::Tune(Box::new(TuneOptions::new(line, format)?)))
        }
        name if name == commands::RECORD.name => {
            Ok(Invocation::Record(Box::new(RecordOptions::new(&line, format)?)))
        }
        name if name == commands::SIMULATE.name => {
            Ok(Invocation::Simulate(Box::new(SimulateOptions::new(line, format)?)))
        }
        name if name == commands::CHECK.name => read_check(line, format),
        name if name == commands::NEW_PYTHON.name => read_new(&line, format),
        name if name == commands::EXPORT_TRACES.name => {
            let files: Vec<PathBuf> = line.operands.into_iter().map(PathBuf::from).collect();
            if files.is_empty() {
                return Err(String::from("files of traces are missing"));
            }
            Ok(Invocation::ExportTraces(files, format))
        }
        _ => match line.operands.as_slice() {
            [shell] => Shell::named(shell).map(Invocation::Completions),
            _ => Err(String::from("the name of one shell is missing")),
        },
    }
}

/// The models and repositories are operands; flags are those of the server that would serve them.
fn read_check(line: CommandLine, format: Format) -> Result<Invocation, String> {
    let CommandLine { settings, operands: models, .. } = line;
    if models.is_empty() && settings.model_repositories.is_empty() {
        return Err(String::from("a model is missing: a file, a directory or a repository"));
    }
    flags::check_rejected(&settings).map_err(|error| error.to_string())?;
    Ok(Invocation::Check(Box::new(CheckOptions { settings, models }), format))
}

fn read_new(line: &CommandLine, format: Format) -> Result<Invocation, String> {
    let [name] = line.operands.as_slice() else {
        return Err(String::from("the name of one model is missing"));
    };
    let directory = line.option("directory").unwrap_or(new_model::DEFAULT_DIRECTORY);
    Ok(Invocation::New(NewModel::new(name, directory)?, format))
}

/// Does what the command says.
pub(crate) fn run(
    invocation: Result<Invocation, CommandError>,
    environment: Environment,
    allocator: ServerAllocator,
) -> ExitCode {
    match invocation {
        Ok(Invocation::Serve(options)) => serve::run(*options, environment, allocator),
        Ok(Invocation::Bench(options)) => bench::run(&options, &environment),
        Ok(Invocation::Tune(options)) => {
            printed(tune::run(&options, environment.colours), options.format)
        }
        Ok(Invocation::Record(options)) => {
            printed(record::run(&options, environment.colours), options.format)
        }
        Ok(Invocation::Simulate(options)) => {
            printed(simulate::run(&options, environment.colours), options.format)
        }
        Ok(Invocation::Check(options, format)) => match check::run(*options, environment, format) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(reason) => failed(&reason, format),
        },
        Ok(Invocation::New(model, format)) => printed(model.write(format), format),
        Ok(Invocation::ExportTraces(files, format)) => printed(tracing::export(&files), format),
        Ok(Invocation::Completions(shell)) => printed(Ok(shell.script()), Format::Text),
        Ok(Invocation::Help(command)) => printed(Ok(flags::command_help(command)), Format::Text),
        Err(CommandError { command, reason }) => {
            let advice = flags::command_advice(command, &reason);
            print_line(&mut io::stderr(), &format!("error: {reason}\n{advice}"));
            ExitCode::from(2)
        }
    }
}

fn printed(text: Result<String, String>, format: Format) -> ExitCode {
    match text {
        Ok(text) => {
            print_line(&mut io::stdout(), text.trim_end());
            ExitCode::SUCCESS
        }
        Err(reason) => failed(&reason, format),
    }
}

/// Tells why a command failed: people, and programs if they asked for JSON.
fn failed(reason: &str, format: Format) -> ExitCode {
    if format == Format::Json {
        print_line(&mut io::stdout(), &json!({ "error": reason }).to_string());
    }
    print_line(&mut io::stderr(), &format!("error: {reason}"));
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests;
