//! The command line: every flag with its name, default, help and effect.
//!
//! A flag is one [`Flag`] value in the file of its group. Parsing, the usage text and the
//! refusal of unsupported flags follow from these values. All of Triton's flags are known.
//! A flag that asks for an unsupported feature is refused by name, and the log mentions a
//! flag without effect, so that no flag is ignored silently.

mod backend;
mod cache;
mod clouds;
mod connections;
mod deprecated;
mod gpus;
mod grpc;
mod grpc_connections;
mod http;
mod logging;
mod memory;
mod metrics;
mod open_loads;
mod parse;
mod ports;
mod rate_limiter;
mod repository;
mod server;
mod settings;
mod shared_memory;
pub(crate) mod tls;
mod tracing;
mod usage;
mod value;

pub(crate) use open_loads::open_loads;
pub(crate) use parse::{
    CommandLine, Request, UsageError, begin, check, check_rejected, parse, parse_command, resolve,
};
pub(crate) use settings::{BackendSetting, CacheFlag, CacheSettings, DoorSettings, Settings};
pub(crate) use usage::{HelpForm, advice, command_advice, command_help, help};

use galatea_tools::completions::FlagName;
use value::Refusal;

/// A flag of the command line.
pub(crate) struct Flag {
    /// The name without its dashes.
    name: &'static str,
    /// The word for its value in the usage text; `None` for a switch.
    argument: Option<&'static str>,
    /// Its default as a value that could be given; empty if it has none.
    default: &'static str,
    /// Its effect, in a sentence or two.
    help: &'static str,
    /// Puts a value into effect; a switch gets an empty one.
    apply: fn(&mut Settings, &str) -> Result<(), Refusal>,
}

/// Flags that belong together.
pub(crate) struct Group {
    title: &'static str,
    flags: &'static [Flag],
}

/// Every flag, in the order of the usage text.
const GROUPS: [Group; 15] = [
    server::GROUP,
    logging::GROUP,
    repository::GROUP,
    http::GROUP,
    grpc::GROUP,
    connections::GROUP,
    metrics::GROUP,
    backend::GROUP,
    memory::GROUP,
    shared_memory::GROUP,
    tracing::GROUP,
    cache::GROUP,
    rate_limiter::RATE_LIMITER,
    clouds::GROUP,
    deprecated::GROUP,
];

/// All flags by name, for completions.
pub(crate) fn names() -> impl Iterator<Item = FlagName> {
    flags().map(|Flag { name, argument, help, .. }| FlagName { name, argument: *argument, help })
}

fn flags() -> impl Iterator<Item = &'static Flag> {
    GROUPS.iter().flat_map(|group| group.flags)
}

#[cfg(test)]
mod cloud_tests;
#[cfg(test)]
mod tests;
