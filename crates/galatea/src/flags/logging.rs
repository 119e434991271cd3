//! The log.

use std::path::PathBuf;

use galatea_telemetry::LogFormat;

use super::value::{self, Refusal};
use super::{Flag, Group};

pub(super) const GROUP: Group = Group {
    title: "Logging",
    flags: &[LOG_VERBOSE, LOG_INFO, LOG_WARNING, LOG_ERROR, LOG_FORMAT, LOG_FILE],
};

const LOG_VERBOSE: Flag = Flag {
    name: "log-verbose",
    argument: Some("integer"),
    default: "0",
    help: "Log verbose messages up to this level; 0 logs none, 1 also the steps of loading, each \
           request with its answer, and sequences. True and false stand for 1 and 0.",
    apply: |settings, value| {
        settings.log.verbose_level = match value.to_ascii_lowercase().as_str() {
            "true" => 1,
            "false" => 0,
            number => value::not_negative(number)?,
        };
        Ok(())
    },
};

const LOG_INFO: Flag = Flag {
    name: "log-info",
    argument: Some("boolean"),
    default: "true",
    help: "Whether to log information.",
    apply: |settings, value| {
        settings.log.info = value::boolean(value)?;
        Ok(())
    },
};

const LOG_WARNING: Flag = Flag {
    name: "log-warning",
    argument: Some("boolean"),
    default: "true",
    help: "Whether to log warnings.",
    apply: |settings, value| {
        settings.log.warning = value::boolean(value)?;
        Ok(())
    },
};

const LOG_ERROR: Flag = Flag {
    name: "log-error",
    argument: Some("boolean"),
    default: "true",
    help: "Whether to log errors.",
    apply: |settings, value| {
        settings.log.error = value::boolean(value)?;
        Ok(())
    },
};

const LOG_FORMAT: Flag = Flag {
    name: "log-format",
    argument: Some("string"),
    default: "default",
    help: "How lines begin: \"default\" is \"LMMDD hh:mm:ss.ssssss\" with the level L, \
           \"ISO8601\" is \"YYYY-MM-DDThh:mm:ssZ L\".",
    apply: |settings, value| {
        let refusal = || Refusal(String::from("invalid argument for --log-format"));
        settings.log.format = LogFormat::named(value).ok_or_else(refusal)?;
        Ok(())
    },
};

const LOG_FILE: Flag = Flag {
    name: "log-file",
    argument: Some("string"),
    default: "",
    help: "A file to append the log to, instead of the console.",
    apply: |settings, value| {
        settings.log.file = (!value.is_empty()).then(|| PathBuf::from(value));
        Ok(())
    },
};
