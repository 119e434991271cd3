//! Parses arguments into settings.

use std::fmt;

use galatea_tools::Arguments;
use galatea_tools::commands::{Command, OPENAI};

use super::value::{self, InvalidValue};
use super::{Flag, HelpForm, Settings, flags, openai, ports};
use crate::environment::{SpanBatchVariables, VertexAiVariables};

/// The action that the server's command line requests.
#[derive(Debug)]
pub(crate) enum ServerCommand {
    /// Start a server.
    Serve(Box<Settings>),
    /// Print help about the flags.
    Help(HelpForm),
    /// Print the version.
    Version,
}

/// The parsed command line of a command.
#[derive(Debug, Default)]
pub(crate) struct CommandLine {
    /// The server's settings, if the command accepts the server's flags.
    pub(crate) settings: Settings,
    /// The arguments.
    pub(crate) given: Arguments,
}

/// The error for a command line that is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum UsageError {
    /// The command line is malformed. The usage text is shown with the error.
    Malformed(String),
    /// A value that no server can be created with.
    Rejected(String),
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(text) => f.write_str(text),
            Self::Rejected(why) => write!(f, "Failed to build Triton option:\nerror: {why}"),
        }
    }
}

/// Parses the arguments after the program name.
///
/// Options are checked in order. As with `getopt_long`, an argument that isn't an option is
/// reported after all options.
///
/// The variables change defaults, as in Triton's program.
pub(crate) fn parse(
    arguments: impl IntoIterator<Item = String>,
    variables: &VertexAiVariables,
    span_batches: &SpanBatchVariables,
) -> Result<ServerCommand, UsageError> {
    let settings = initial_settings(variables)?;
    let mut reader =
        ArgumentReader { command: None, line: CommandLine { settings, ..Default::default() } };
    if let Some(request) = reader.read(arguments.into_iter())? {
        return Ok(request);
    }
    let CommandLine { mut settings, given } = reader.line;
    resolve(&mut settings, variables, span_batches)?;
    if let Some(argument) = given.operands.first() {
        return Err(UsageError::Malformed(format!("Unexpected argument: {argument}")));
    }
    check(&settings)?;
    Ok(ServerCommand::Serve(Box::new(settings)))
}

/// Parses the arguments after a command name; `None` if they request help. Flags modify the passed
/// settings.
pub(crate) fn parse_command(
    command: &'static Command,
    settings: Settings,
    arguments: impl IntoIterator<Item = String>,
) -> Result<Option<CommandLine>, UsageError> {
    let line = CommandLine { settings, ..CommandLine::default() };
    let mut reader = ArgumentReader { command: Some(command), line };
    match reader.read(arguments.into_iter())? {
        Some(_) => Ok(None),
        None => Ok(Some(reader.line)),
    }
}

/// The initial settings, before flags are applied.
pub(crate) fn initial_settings(variables: &VertexAiVariables) -> Result<Settings, UsageError> {
    let mut settings = Settings::under(variables);
    if let Some(text) = &variables.http_port {
        // As in Triton, the port is read even if the Vertex AI endpoint is off.
        let port = value::port(&mut settings, "vertex-ai-port", text);
        settings.clouds.vertex_ai.port =
            port.map_err(|InvalidValue(reason)| UsageError::Malformed(reason))?;
    }
    Ok(settings)
}

/// Applies the environment variables after the flags.
pub(crate) fn resolve(
    settings: &mut Settings,
    variables: &VertexAiVariables,
    span_batches: &SpanBatchVariables,
) -> Result<(), UsageError> {
    settings.trace.resolve(span_batches).map_err(|(option, reason)| {
        UsageError::Malformed(format!("Bad option: \"{option}\".\n{reason}"))
    })?;
    if settings.model_repositories.is_empty() {
        settings.model_repositories.extend(variables.repository.clone());
    }
    Ok(())
}

/// A reader for the arguments of the server or a command.
struct ArgumentReader {
    command: Option<&'static Command>,
    line: CommandLine,
}

impl ArgumentReader {
    /// Reads options. Arguments that aren't options are operands, as is everything after `--`.
    /// Returns the action to perform instead of the command, if one is requested.
    fn read(
        &mut self,
        mut arguments: impl Iterator<Item = String>,
    ) -> Result<Option<ServerCommand>, UsageError> {
        while let Some(argument) = arguments.next() {
            if argument == "-h" && self.is_frontend() {
                return Ok(Some(ServerCommand::Help(HelpForm::Text)));
            }
            let Some(option) = argument.strip_prefix("--") else {
                self.line.given.operands.push(argument);
                continue;
            };
            if option.is_empty() {
                self.line.given.operands.extend(arguments.by_ref());
                break;
            }
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (option, None),
            };
            match self.full_name(name)? {
                HELP => return Ok(Some(ServerCommand::Help(HelpForm::named(value.as_deref())))),
                VERSION => return Ok(Some(ServerCommand::Version)),
                name => self.apply(name, value, &mut arguments)?,
            }
        }
        Ok(None)
    }

    /// The option with this name, or the only option that begins with it, as in `getopt_long`.
    fn full_name(&self, given: &str) -> Result<&'static str, UsageError> {
        let own = self.command.map_or(&[][..], |command| command.options);
        let takes_flags = self.command.is_none_or(|command| command.takes_flags);
        let server = || flags().map(|flag| flag.name).filter(|_| takes_flags);
        let version = self.command.is_none().then_some(VERSION);
        let names =
            || own.iter().map(|option| option.name).chain(server()).chain([HELP]).chain(version);
        if let Some(name) = names().find(|name| *name == given) {
            return Ok(name);
        }
        let of_frontend = || openai::FRONTEND_FLAGS.into_iter().filter(|_| self.is_frontend());
        if let Some(name) = only(of_frontend().filter(|name| name.starts_with(given))) {
            return Ok(name);
        }
        let mut candidates = names().filter(|name| name.starts_with(given));
        match (candidates.next(), candidates.next()) {
            (Some(name), None) if !given.is_empty() => Ok(name),
            (Some(one), Some(other)) if !given.is_empty() => {
                let reason = format!("it may mean \"--{one}\" or \"--{other}\"");
                Err(bad_option(given, &reason))
            }
            _ => Err(bad_option(given, "unrecognized option")),
        }
    }

    /// True for the flags of Triton's frontend for OpenAI clients, which may be shortened as long
    /// as only one of that frontend's flags begins with the text.
    fn is_frontend(&self) -> bool {
        self.command.is_some_and(|command| command.name == OPENAI.name)
    }

    fn apply(
        &mut self,
        name: &str,
        value: Option<String>,
        rest: &mut impl Iterator<Item = String>,
    ) -> Result<(), UsageError> {
        if let Some(own) = self.command.and_then(|command| command.option(name)) {
            let value = value_for(own.name, own.argument.is_some(), value, rest)?;
            self.line.given.options.push((own.name, value));
            return Ok(());
        }
        let flag = flag(name)?;
        let is_separate = value.is_none();
        let mut value = value_for(flag.name, flag.argument.is_some(), value, rest)?;
        if is_separate && flag.name == openai::RESTRICTED_API {
            value = openai::restriction_of(value, rest);
        }
        self.line.given.flags.push(match flag.argument {
            Some(_) => format!("--{name}={value}"),
            None => format!("--{name}"),
        });
        apply(&mut self.line.settings, name, &value)
    }
}

/// Applies a value to the settings, as the flag with this name does.
pub(crate) fn apply(settings: &mut Settings, name: &str, value: &str) -> Result<(), UsageError> {
    let applied = flag(name)?.apply(settings, value);
    applied.map_err(|InvalidValue(reason)| bad_option(name, &reason))
}

fn flag(name: &str) -> Result<&'static Flag, UsageError> {
    flags().find(|flag| flag.name == name).ok_or_else(|| bad_option(name, "unrecognized option"))
}

const HELP: &str = "help";
const VERSION: &str = "version";

/// The only element; `None` if there are others.
fn only<T>(mut elements: impl Iterator<Item = T>) -> Option<T> {
    elements.next().filter(|_| elements.next().is_none())
}

fn value_for(
    name: &str,
    takes_argument: bool,
    value: Option<String>,
    rest: &mut impl Iterator<Item = String>,
) -> Result<String, UsageError> {
    match (takes_argument, value) {
        (false, None) => Ok(String::new()),
        (false, Some(_)) => Err(bad_option(name, "the option takes no argument")),
        (true, Some(value)) => Ok(value),
        (true, None) => {
            rest.next().ok_or_else(|| bad_option(name, "the option requires an argument"))
        }
    }
}

/// Runs the checks that need all flags.
pub(crate) fn check(settings: &Settings) -> Result<(), UsageError> {
    if !settings.startup_models.is_empty() && !settings.control_mode.allows_orders() {
        return Err(UsageError::Malformed(String::from(
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as \
             well.",
        )));
    }
    settings.demand().map_err(UsageError::Malformed)?;
    ports::check(settings).map_err(UsageError::Malformed)?;
    check_rejected(settings)
}

pub(crate) fn check_rejected(settings: &Settings) -> Result<(), UsageError> {
    settings.rejected.clone().map_or(Ok(()), |why| Err(UsageError::Rejected(why)))
}

fn bad_option(name: &str, reason: &str) -> UsageError {
    UsageError::Malformed(format!("Bad option: \"--{name}\".\n{reason}"))
}
