//! Flags that limit the number of connections and the time that clients may take.
//!
//! Triton has none of these flags, and no Triton flag shares a prefix with them, so abbreviations
//! stay unambiguous.

use std::str::FromStr;

use super::Group;
use super::flag::{Flag, no_default};
use super::value::{self, InvalidValue};

pub(super) const GROUP: Group = Group {
    title: "Connections",
    flags: &[&[
        Flag::other(
            "connection-limit",
            "integer",
            no_default,
            "How many HTTP and gRPC connections may be open. When there are as many, those that \
             have been idle for longest are closed; if none is idle, a new one is refused (HTTP \
             503). 0 is no limit. Default: seven eighths of the files that the process may open, \
             or fewer if it has opened many itself.",
            |settings, value| {
                settings.connections.max = Some(if_any(value)?.unwrap_or(usize::MAX));
                Ok(())
            },
        ),
        Flag::other(
            "connection-limit-http",
            "integer",
            |settings| shown(settings.connections.http_max),
            "How many of them may be HTTP connections. 0 is no limit.",
            |settings, value| {
                settings.connections.http_max = if_any(value)?;
                Ok(())
            },
        ),
        Flag::other(
            "connection-limit-grpc",
            "integer",
            |settings| shown(settings.connections.grpc_max),
            "How many of them may be gRPC connections. 0 is no limit.",
            |settings, value| {
                settings.connections.grpc_max = if_any(value)?;
                Ok(())
            },
        ),
        Flag::other(
            "connection-head-timeout",
            "integer",
            |settings| shown(settings.connections.timeouts.head),
            "How many seconds the head of an HTTP request may take, from its first byte on. 0 is \
             no limit.",
            |settings, value| {
                settings.connections.timeouts.head = if_any(value)?;
                Ok(())
            },
        ),
        Flag::other(
            "connection-stall-timeout",
            "integer",
            |settings| shown(settings.connections.timeouts.stall),
            "How many seconds an HTTP client may send nothing of a body that it has begun, or \
             read nothing of its response. 0 is no limit.",
            |settings, value| {
                settings.connections.timeouts.stall = if_any(value)?;
                Ok(())
            },
        ),
        Flag::other(
            "connection-idle-timeout",
            "integer",
            |settings| shown(settings.connections.timeouts.idle),
            "How many seconds an HTTP connection may be open without a request. 0 is no limit: \
             clients keep pools of idle connections.",
            |settings, value| {
                settings.connections.timeouts.idle = if_any(value)?;
                Ok(())
            },
        ),
    ]],
};

/// Formats a default limit.
fn shown<T: ToString + Default>(limit: Option<T>) -> String {
    limit.unwrap_or_default().to_string()
}

/// Parses a number; 0 means no limit.
fn if_any<T: FromStr + Default + PartialEq>(value: &str) -> Result<Option<T>, InvalidValue> {
    Ok(Some(value::number(value)?).filter(|number| *number != T::default()))
}
