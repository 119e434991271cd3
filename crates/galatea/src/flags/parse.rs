//! From arguments to settings.

use std::fmt;

use galatea_engine::ControlMode;

use super::{Flag, Settings, flags, value::Refusal};

/// What the command line asks for.
#[derive(Debug)]
pub(crate) enum Request {
    /// Start a server.
    Serve(Box<Settings>),
    /// Print the usage text.
    Help,
    /// Print the version.
    Version,
}

/// Why the command line can't be followed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UsageError(String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Reads the arguments after the program's name.
///
/// Options are checked in their order; an argument that is no option is
/// reported after all of them, as `getopt_long` has it.
pub(crate) fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Request, UsageError> {
    let mut settings = Settings::default();
    let mut surplus = None;
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let Some(option) = argument.strip_prefix("--").filter(|option| !option.is_empty()) else {
            surplus = surplus.or(Some(argument));
            continue;
        };
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (option, None),
        };
        match name {
            "help" => return Ok(Request::Help),
            "version" => return Ok(Request::Version),
            _ => apply(&mut settings, name, value, &mut arguments)?,
        }
    }
    if let Some(argument) = surplus {
        return Err(UsageError(format!("Unexpected argument: {argument}")));
    }
    check(&settings)?;
    Ok(Request::Serve(Box::new(settings)))
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

/// What can only be judged when all flags are read.
fn check(settings: &Settings) -> Result<(), UsageError> {
    if !settings.startup_models.is_empty() && settings.control_mode != ControlMode::Explicit {
        return Err(UsageError(String::from(
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as \
             well.",
        )));
    }
    settings.check_ports().map_err(UsageError)
}

fn bad_option(name: &str, reason: &str) -> UsageError {
    UsageError(format!("Bad option: \"--{name}\".\n{reason}"))
}
