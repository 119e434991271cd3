//! The command line: every flag with its name, default, help and effect.
//!
//! A flag is one [`Flag`] value in its group's table, built by the constructor for the form of its
//! value. Parsing, the usage text and the refusal of unsupported flags follow from these values.
//! All of Triton's flags are recognized. Flags for unsupported features are refused by name, and
//! flags without effect are logged, so no flag is silently ignored.

mod backend;
mod cache;
mod clouds;
mod connections;
mod deprecated;
mod flag;
mod gpus;
mod grpc;
mod grpc_connections;
mod http;
mod logging;
mod memory;
mod metrics;
mod open_loads;
mod openai;
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
    CommandLine, ServerCommand, UsageError, apply, check, check_rejected, initial_settings, parse,
    parse_command, resolve,
};
pub(crate) use settings::{BackendSetting, CacheFlag, CacheSettings, DoorSettings, Settings};
pub(crate) use usage::{HelpForm, advice, command_advice, command_help, help};

use self::flag::Flag;
use galatea_tools::completions::ServerFlag;

/// Flags that belong together.
pub(crate) struct Group {
    title: &'static str,
    /// The flags in order, grouped by source file.
    flags: &'static [&'static [Flag]],
}

impl Group {
    fn flags(&self) -> impl Iterator<Item = &'static Flag> {
        self.flags.iter().copied().flatten()
    }
}

/// Every flag, in the order of the usage text.
const GROUPS: [Group; 16] = [
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
    openai::GROUP,
    clouds::GROUP,
    deprecated::GROUP,
];

/// The names of all flags, for completions.
pub(crate) fn names() -> impl Iterator<Item = ServerFlag> {
    flags().map(|Flag { name, argument, help, .. }| ServerFlag { name, argument: *argument, help })
}

fn flags() -> impl Iterator<Item = &'static Flag> {
    GROUPS.iter().flat_map(Group::flags)
}

#[cfg(test)]
mod cloud_tests;
#[cfg(test)]
mod tests;
