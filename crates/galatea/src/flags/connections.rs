//! Limits of the number of connections, and of the time that clients may take.
//!
//! None of these flags is Triton's, and no flag of Triton's begins like them: one that is
//! cut short stays unambiguous.

use std::str::FromStr;

use super::value::{self, Refusal};
use super::{Flag, Group};

pub(super) const GROUP: Group = Group {
    title: "Connections",
    flags: &[
        CONNECTION_LIMIT,
        CONNECTION_LIMIT_HTTP,
        CONNECTION_LIMIT_GRPC,
        CONNECTION_HEAD_TIMEOUT,
        CONNECTION_STALL_TIMEOUT,
        CONNECTION_IDLE_TIMEOUT,
    ],
};

/// A number; 0 is no limit.
fn if_any<T: FromStr + Default + PartialEq>(value: &str) -> Result<Option<T>, Refusal> {
    Ok(Some(value::number(value)?).filter(|number| *number != T::default()))
}

const CONNECTION_LIMIT: Flag = Flag {
    name: "connection-limit",
    argument: Some("integer"),
    default: "",
    help: "How many HTTP and gRPC connections may be open. When there are as many, those \
           that have been idle for longest are closed; if none is idle, a new one is refused \
           (HTTP 503). 0 is no limit. Default: seven eighths of the files that the \
           process may open, or fewer if it has opened many itself.",
    apply: |settings, value| {
        settings.connections.max = Some(if_any(value)?.unwrap_or(usize::MAX));
        Ok(())
    },
};

const CONNECTION_LIMIT_HTTP: Flag = Flag {
    name: "connection-limit-http",
    argument: Some("integer"),
    default: "0",
    help: "How many of them may be HTTP connections. 0 is no limit.",
    apply: |settings, value| {
        settings.connections.http_max = if_any(value)?;
        Ok(())
    },
};

const CONNECTION_LIMIT_GRPC: Flag = Flag {
    name: "connection-limit-grpc",
    argument: Some("integer"),
    default: "0",
    help: "How many of them may be gRPC connections. 0 is no limit.",
    apply: |settings, value| {
        settings.connections.grpc_max = if_any(value)?;
        Ok(())
    },
};

const CONNECTION_HEAD_TIMEOUT: Flag = Flag {
    name: "connection-head-timeout",
    argument: Some("integer"),
    default: "60",
    help: "How many seconds the head of an HTTP request may take, from its first byte on. 0 is \
           no limit.",
    apply: |settings, value| {
        settings.connections.timeouts.head = if_any(value)?;
        Ok(())
    },
};

const CONNECTION_STALL_TIMEOUT: Flag = Flag {
    name: "connection-stall-timeout",
    argument: Some("integer"),
    default: "60",
    help: "How many seconds an HTTP client may send nothing of a body that it has begun, or \
           read nothing of its response. 0 is no limit.",
    apply: |settings, value| {
        settings.connections.timeouts.stall = if_any(value)?;
        Ok(())
    },
};

const CONNECTION_IDLE_TIMEOUT: Flag = Flag {
    name: "connection-idle-timeout",
    argument: Some("integer"),
    default: "0",
    help: "How many seconds an HTTP connection may be open without a request. 0 is no limit: \
           clients keep pools of idle connections.",
    apply: |settings, value| {
        settings.connections.timeouts.idle = if_any(value)?;
        Ok(())
    },
};
