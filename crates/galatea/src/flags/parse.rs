//! From arguments to settings.

use std::fmt;
use std::path::PathBuf;

use galatea_engine::ControlMode;

use super::value::{self, Refusal};
use super::{Flag, HelpForm, Settings, flags, ports};
use crate::check::ReportFormat;
use crate::environment::{SpanBatchVariables, VertexAiVariables};
use crate::new_model::{DEFAULT_DIRECTORY, NewModel};

/// What the command line asks for.
#[derive(Debug)]
pub(crate) enum Request {
    /// Start a server.
    Serve(Box<Settings>),
    /// Check the settings' repositories.
    Check(Box<Settings>, ReportFormat),
    /// Convert files of traces for viewers.
    ExportTraces(Vec<PathBuf>),
    /// Write a model to begin with.
    New(NewModel),
    /// Print what the flags mean.
    Help(HelpForm),
    /// Print the version.
    Version,
}

/// Why the command line is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum UsageError {
    /// It is not well-formed: the usage text helps.
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

/// The argument that asks for a check instead of a server.
const CHECK: &str = "check";

/// The option of a check that asks for a document.
const JSON: &str = "--json";

/// The arguments that ask for a conversion of traces.
const EXPORT_TRACES: [&str; 2] = ["trace", "export"];

/// The arguments that ask for a model to begin with.
const NEW_PYTHON: [&str; 2] = ["new", "python"];

/// The option that says where the model is written.
const DIRECTORY: &str = "--directory";

/// Reads the arguments after the program's name.
///
/// Options are checked in their order. An argument that is no option is reported after all
/// of them, as with `getopt_long`.
///
/// The variables change defaults, as in Triton's program.
pub(crate) fn parse(
    arguments: impl IntoIterator<Item = String>,
    variables: &VertexAiVariables,
    span_batches: &SpanBatchVariables,
) -> Result<Request, UsageError> {
    let mut arguments = arguments.into_iter().peekable();
    if arguments.next_if(|first| first == CHECK).is_some() {
        return parse_check(arguments.collect());
    }
    if arguments.next_if(|first| first == EXPORT_TRACES[0]).is_some() {
        return parse_export(arguments);
    }
    if arguments.next_if(|first| first == NEW_PYTHON[0]).is_some() {
        return parse_new(arguments);
    }
    let mut surplus = Vec::new();
    let mut settings = Settings::under(variables);
    if let Some(text) = &variables.http_port {
        // As in Triton, it is read whether or not Vertex AI is served.
        let port = value::port(&mut settings, "vertex-ai-port", text);
        settings.clouds.vertex_ai.port =
            port.map_err(|Refusal(reason)| UsageError::Malformed(reason))?;
    }
    let request = read(settings, arguments, &mut surplus)?;
    let Request::Serve(mut settings) = request else { return Ok(request) };
    settings.trace.resolve(span_batches).map_err(|(option, reason)| {
        UsageError::Malformed(format!("Bad option: \"{option}\".\n{reason}"))
    })?;
    if settings.model_repositories.is_empty() {
        settings.model_repositories.extend(variables.repository.clone());
    }
    if let Some(argument) = surplus.first() {
        return Err(UsageError::Malformed(format!("Unexpected argument: {argument}")));
    }
    check(&settings)?;
    Ok(Request::Serve(settings))
}

/// All other arguments are files.
fn parse_export(mut arguments: impl Iterator<Item = String>) -> Result<Request, UsageError> {
    let is_export = arguments.next().is_some_and(|word| word == EXPORT_TRACES[1]);
    let files: Vec<PathBuf> = arguments.map(PathBuf::from).collect();
    if !is_export || files.is_empty() {
        let text = "'trace' needs 'export' and files of traces";
        return Err(UsageError::Malformed(String::from(text)));
    }
    Ok(Request::ExportTraces(files))
}

/// The first argument is the backend, the other one that is no option the model's name.
fn parse_new(mut arguments: impl Iterator<Item = String>) -> Result<Request, UsageError> {
    let malformed = |text: &str| UsageError::Malformed(String::from(text));
    let (mut names, mut directory) = (Vec::new(), String::from(DEFAULT_DIRECTORY));
    while let Some(argument) = arguments.next() {
        if argument == format!("--{HELP}") {
            return Ok(Request::Help(HelpForm::named(None)));
        } else if argument == DIRECTORY {
            let missing = || malformed("'--directory' needs a directory");
            directory = arguments.next().ok_or_else(missing)?;
        } else if let Some(value) = argument.strip_prefix(DIRECTORY)
            && let Some(value) = value.strip_prefix('=')
        {
            value.clone_into(&mut directory);
        } else if argument.starts_with("--") {
            let text = format!("'new' has no option '{argument}', only '{DIRECTORY}'");
            return Err(UsageError::Malformed(text));
        } else {
            names.push(argument);
        }
    }
    let [backend, name] = names.as_slice() else {
        return Err(malformed("'new' needs 'python' and the name of one model"));
    };
    if backend != NEW_PYTHON[1] {
        let text = format!("'new' writes models for 'python', not for '{backend}'");
        return Err(UsageError::Malformed(text));
    }
    NewModel::new(name, &directory).map(Request::New).map_err(UsageError::Malformed)
}

/// The repositories are arguments; options are those of the server that would
/// serve them.
fn parse_check(mut arguments: Vec<String>) -> Result<Request, UsageError> {
    let all = arguments.len();
    arguments.retain(|argument| argument != JSON);
    let format = if arguments.len() < all { ReportFormat::Json } else { ReportFormat::Text };
    let mut repositories = Vec::new();
    let request = read(Settings::default(), arguments.into_iter(), &mut repositories)?;
    let Request::Serve(mut settings) = request else { return Ok(request) };
    settings.model_repositories.extend(repositories.into_iter().map(PathBuf::from));
    if settings.model_repositories.is_empty() {
        return Err(UsageError::Malformed(String::from("'check' needs a model repository")));
    }
    check_rejected(&settings)?;
    Ok(Request::Check(settings, format))
}

/// Reads options. Arguments that are no options go to `surplus`, and so does everything
/// behind `--`.
fn read(
    mut settings: Settings,
    mut arguments: impl Iterator<Item = String>,
    surplus: &mut Vec<String>,
) -> Result<Request, UsageError> {
    while let Some(argument) = arguments.next() {
        let Some(option) = argument.strip_prefix("--") else {
            surplus.push(argument);
            continue;
        };
        if option.is_empty() {
            surplus.extend(arguments.by_ref());
            break;
        }
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (option, None),
        };
        match full_name(name)? {
            HELP => return Ok(Request::Help(HelpForm::named(value.as_deref()))),
            VERSION => return Ok(Request::Version),
            name => apply(&mut settings, name, value, &mut arguments)?,
        }
    }
    Ok(Request::Serve(Box::new(settings)))
}

const HELP: &str = "help";
const VERSION: &str = "version";

/// The option with this name, or the only one that begins with it, as in `getopt_long`.
fn full_name(given: &str) -> Result<&'static str, UsageError> {
    let names = || flags().map(|flag| flag.name).chain([HELP, VERSION]);
    if let Some(name) = names().find(|name| *name == given) {
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

fn apply(
    settings: &mut Settings,
    name: &str,
    value: Option<String>,
    rest: &mut impl Iterator<Item = String>,
) -> Result<(), UsageError> {
    let flag = flags()
        .find(|flag| flag.name == name)
        .ok_or_else(|| bad_option(name, "unrecognized option"))?;
    let value = value_for(flag, value, rest)?;
    (flag.apply)(settings, &value).map_err(|Refusal(reason)| bad_option(name, &reason))
}

fn value_for(
    flag: &Flag,
    value: Option<String>,
    rest: &mut impl Iterator<Item = String>,
) -> Result<String, UsageError> {
    match (flag.argument, value) {
        (None, None) => Ok(String::new()),
        (None, Some(_)) => Err(bad_option(flag.name, "the option takes no argument")),
        (Some(_), Some(value)) => Ok(value),
        (Some(_), None) => {
            rest.next().ok_or_else(|| bad_option(flag.name, "the option requires an argument"))
        }
    }
}

/// Checks that need all flags.
fn check(settings: &Settings) -> Result<(), UsageError> {
    if !settings.startup_models.is_empty() && settings.control_mode != ControlMode::Explicit {
        return Err(UsageError::Malformed(String::from(
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as \
             well.",
        )));
    }
    ports::check(settings).map_err(UsageError::Malformed)?;
    check_rejected(settings)
}

fn check_rejected(settings: &Settings) -> Result<(), UsageError> {
    settings.rejected.clone().map_or(Ok(()), |why| Err(UsageError::Rejected(why)))
}

fn bad_option(name: &str, reason: &str) -> UsageError {
    UsageError::Malformed(format!("Bad option: \"--{name}\".\n{reason}"))
}
