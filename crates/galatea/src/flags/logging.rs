//! Flags for the log.

use galatea_telemetry::LogFormat;

use super::flag::Flag;
use super::value::{self, InvalidValue};
use super::{Group, Settings};

pub(super) const GROUP: Group = Group {
    title: "Logging",
    flags: &[&[
        Flag::other(
            "log-verbose",
            "integer",
            |settings| settings.log.verbose_level.to_string(),
            "Log verbose messages up to this level; 0 logs none, 1 also the steps of loading, \
             each request with its answer, and sequences. True and false stand for 1 and 0.",
            log_verbose,
        ),
        Flag::boolean("log-info", "Whether to log information.", |settings| &mut settings.log.info),
        Flag::boolean("log-warning", "Whether to log warnings.", |settings| {
            &mut settings.log.warning
        }),
        Flag::boolean("log-error", "Whether to log errors.", |settings| &mut settings.log.error),
        Flag::other(
            "log-format",
            "string",
            |settings| String::from(settings.log.format.name()),
            "How lines begin: \"default\" is \"LMMDD hh:mm:ss.ssssss\" with the level L, \
             \"ISO8601\" is \"YYYY-MM-DDThh:mm:ssZ L\".",
            |settings, value| {
                let refusal = || InvalidValue(String::from("invalid argument for --log-format"));
                settings.log.format = LogFormat::named(value).ok_or_else(refusal)?;
                Ok(())
            },
        ),
        Flag::file(
            "log-file",
            "A file to append the log to, instead of the console.",
            |settings| &mut settings.log.file,
        ),
    ]],
};

fn log_verbose(settings: &mut Settings, value: &str) -> Result<(), InvalidValue> {
    settings.log.verbose_level = match value.to_ascii_lowercase().as_str() {
        "true" => 1,
        "false" => 0,
        number => value::not_negative(number)?,
    };
    Ok(())
}
