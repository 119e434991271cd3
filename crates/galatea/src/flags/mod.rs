//! The command line: every flag with its name, default, help and meaning.
//!
//! A flag is one [`Flag`] value in the file of its group; parsing, the usage
//! text and the refusal of what is not supported all come from that table.
//! Triton's flags are all known here. One that asks for something that this
//! server can't do is refused by name, and one that has no effect is remarked
//! upon in the log, so that nothing is ignored silently.

mod backend;
mod cache;
mod grpc;
mod http;
mod later;
mod logging;
mod memory;
mod metrics;
mod parse;
mod rate_limiter;
mod repository;
mod server;
mod settings;
mod usage;
mod value;

pub(crate) use parse::{Request, parse};
pub(crate) use settings::{BackendSetting, DoorSettings, Settings};
pub(crate) use usage::usage;

use value::Refusal;

/// A flag of the command line.
pub(crate) struct Flag {
    /// The name without its dashes.
    name: &'static str,
    /// What stands for its value in the usage text; `None` for a switch.
    argument: Option<&'static str>,
    /// Its default as a value that could be given; empty if it has none.
    default: &'static str,
    /// What it does, in a sentence or two.
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
const GROUPS: [Group; 14] = [
    server::GROUP,
    logging::GROUP,
    repository::GROUP,
    http::GROUP,
    grpc::GROUP,
    metrics::GROUP,
    backend::GROUP,
    memory::GROUP,
    later::SHARED_MEMORY,
    later::TRACING,
    cache::GROUP,
    rate_limiter::RATE_LIMITER,
    later::CLOUD_ENDPOINTS,
    later::DEPRECATED,
];

fn flags() -> impl Iterator<Item = &'static Flag> {
    GROUPS.iter().flat_map(|group| group.flags)
}

#[cfg(test)]
mod tests;
