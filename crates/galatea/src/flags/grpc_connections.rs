//! Flags for gRPC keepalive pings and connection lifetimes.
//!
//! Out-of-range numbers have the same meaning as in gRPC's own servers, to which Triton passes
//! them.

use std::time::Duration;

use super::Settings;
use super::flag::{Flag, no_default};
use super::value::{self, InvalidValue};

pub(super) const FLAGS: &[Flag] = &[
    Flag::other(
        "grpc-keepalive-time",
        "integer",
        |settings| shown(settings.grpc_keepalive.time),
        "Milliseconds without data from a client with calls, after which it is pinged.",
        |settings, value| {
            settings.grpc_keepalive.time = milliseconds(value, 1)?;
            Ok(())
        },
    ),
    Flag::other(
        "grpc-keepalive-timeout",
        "integer",
        |settings| shown(settings.grpc_keepalive.timeout),
        "Milliseconds after such a ping until the connection of a silent client is closed.",
        |settings, value| {
            settings.grpc_keepalive.timeout = milliseconds(value, 0)?;
            Ok(())
        },
    ),
    Flag::boolean(
        "grpc-keepalive-permit-without-calls",
        "Whether clients without calls are pinged too, and may ping as often as those with \
             calls.",
        |settings| &mut settings.grpc_keepalive.permit_without_calls,
    ),
    Flag::other(
        "grpc-http2-max-pings-without-data",
        "integer",
        |_| String::from("2"),
        "How many pings may be sent without data between them. No effect: only clients of \
             gRPC have this limit.",
        grpc_http2_max_pings_without_data,
    ),
    Flag::other(
        "grpc-http2-min-recv-ping-interval-without-data",
        "integer",
        |settings| shown(Some(settings.grpc_keepalive.ping_interval_min)),
        "Milliseconds that a client must leave between two pings while it is sent nothing. A \
             ping that comes earlier is a strike. Without calls these are two hours.",
        |settings, value| {
            settings.grpc_keepalive.ping_interval_min =
                milliseconds(value, 0)?.unwrap_or(Duration::MAX);
            Ok(())
        },
    ),
    Flag::other(
        "grpc-http2-max-ping-strikes",
        "integer",
        |settings| settings.grpc_keepalive.ping_strikes_max.to_string(),
        "A client that has more strikes is disconnected; 0 tolerates any number.",
        |settings, value| {
            let strikes: i32 = value::number(value)?;
            settings.grpc_keepalive.ping_strikes_max = u32::try_from(strikes).unwrap_or(0);
            Ok(())
        },
    ),
    Flag::other(
        "grpc-max-connection-age",
        "integer",
        no_default,
        "Milliseconds, a tenth more or less, after which a client is told to begin its \
             further calls on a new connection. Without this flag a connection may last forever.",
        |settings, value| {
            settings.grpc_keepalive.connection_age_max = milliseconds_if_any(value)?;
            Ok(())
        },
    ),
    Flag::other(
        "grpc-max-connection-age-grace",
        "integer",
        no_default,
        "Milliseconds after that until the connection is closed, and calls that are left \
             fail. Without this flag they may go on.",
        |settings, value| {
            settings.grpc_keepalive.connection_age_grace = milliseconds_if_any(value)?;
            Ok(())
        },
    ),
];

/// Parses milliseconds; the largest number means no limit.
fn milliseconds(value: &str, least: u64) -> Result<Option<Duration>, InvalidValue> {
    let number: i32 = value::number(value)?;
    Ok((number != i32::MAX).then(|| {
        let number = u64::try_from(number).unwrap_or(0).max(least);
        Duration::from_millis(number)
    }))
}

/// Formats a default in milliseconds.
fn shown(limit: Option<Duration>) -> String {
    limit.map_or_else(|| i32::MAX.to_string(), |limit| limit.as_millis().to_string())
}

/// Parses milliseconds; 0 means no limit.
fn milliseconds_if_any(value: &str) -> Result<Option<Duration>, InvalidValue> {
    if value::number::<i32>(value)? == 0 { Ok(None) } else { milliseconds(value, 0) }
}

fn grpc_http2_max_pings_without_data(
    settings: &mut Settings,
    value: &str,
) -> Result<(), InvalidValue> {
    value::number::<i32>(value)?;
    settings.no_effect(
        "grpc-http2-max-pings-without-data",
        "only clients of gRPC limit the pings that they send",
    );
    Ok(())
}
