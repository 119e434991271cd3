//! Pings on gRPC connections, and how long these last.
//!
//! Numbers out of range mean what they mean to gRPC's own servers, which Triton hands them to.

use std::time::Duration;

use super::Flag;
use super::value::{self, Refusal};

/// Milliseconds; the largest number is no limit.
fn milliseconds(value: &str, least: u64) -> Result<Option<Duration>, Refusal> {
    let number: i32 = value::number(value)?;
    Ok((number != i32::MAX).then(|| {
        let number = u64::try_from(number).unwrap_or(0).max(least);
        Duration::from_millis(number)
    }))
}

/// Milliseconds; 0 is no limit.
fn milliseconds_if_any(value: &str) -> Result<Option<Duration>, Refusal> {
    if value::number::<i32>(value)? == 0 { Ok(None) } else { milliseconds(value, 0) }
}

pub(super) const GRPC_KEEPALIVE_TIME: Flag = Flag {
    name: "grpc-keepalive-time",
    argument: Some("integer"),
    default: "7200000",
    help: "Milliseconds without data from a client with calls, after which it is pinged.",
    apply: |settings, value| {
        settings.grpc_keepalive.time = milliseconds(value, 1)?;
        Ok(())
    },
};

pub(super) const GRPC_KEEPALIVE_TIMEOUT: Flag = Flag {
    name: "grpc-keepalive-timeout",
    argument: Some("integer"),
    default: "20000",
    help: "Milliseconds after such a ping until the connection of a silent client is closed.",
    apply: |settings, value| {
        settings.grpc_keepalive.timeout = milliseconds(value, 0)?;
        Ok(())
    },
};

pub(super) const GRPC_KEEPALIVE_PERMIT_WITHOUT_CALLS: Flag = Flag {
    name: "grpc-keepalive-permit-without-calls",
    argument: Some("boolean"),
    default: "false",
    help: "Whether clients without calls are pinged too, and may ping as often as those with \
           calls.",
    apply: |settings, value| {
        settings.grpc_keepalive.permit_without_calls = value::boolean(value)?;
        Ok(())
    },
};

pub(super) const GRPC_HTTP2_MAX_PINGS_WITHOUT_DATA: Flag = Flag {
    name: "grpc-http2-max-pings-without-data",
    argument: Some("integer"),
    default: "2",
    help: "How many pings may be sent without data between them. No effect: only clients of \
           gRPC have this limit.",
    apply: |settings, value| {
        value::number::<i32>(value)?;
        settings.no_effect(
            "grpc-http2-max-pings-without-data",
            "only clients of gRPC limit the pings that they send",
        );
        Ok(())
    },
};

pub(super) const GRPC_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA: Flag = Flag {
    name: "grpc-http2-min-recv-ping-interval-without-data",
    argument: Some("integer"),
    default: "300000",
    help: "Milliseconds that a client must leave between two pings while it is sent nothing. \
           A ping that comes earlier is a strike. Without calls these are two hours.",
    apply: |settings, value| {
        settings.grpc_keepalive.ping_interval_min =
            milliseconds(value, 0)?.unwrap_or(Duration::MAX);
        Ok(())
    },
};

pub(super) const GRPC_HTTP2_MAX_PING_STRIKES: Flag = Flag {
    name: "grpc-http2-max-ping-strikes",
    argument: Some("integer"),
    default: "2",
    help: "A client that has more strikes is disconnected; 0 tolerates any number.",
    apply: |settings, value| {
        let strikes: i32 = value::number(value)?;
        settings.grpc_keepalive.ping_strikes_max = u32::try_from(strikes).unwrap_or(0);
        Ok(())
    },
};

pub(super) const GRPC_MAX_CONNECTION_AGE: Flag = Flag {
    name: "grpc-max-connection-age",
    argument: Some("integer"),
    default: "",
    help: "Milliseconds, a tenth more or less, after which a client is told to begin its \
           further calls on a new connection. Without this flag a connection may last forever.",
    apply: |settings, value| {
        settings.grpc_keepalive.connection_age_max = milliseconds_if_any(value)?;
        Ok(())
    },
};

pub(super) const GRPC_MAX_CONNECTION_AGE_GRACE: Flag = Flag {
    name: "grpc-max-connection-age-grace",
    argument: Some("integer"),
    default: "",
    help: "Milliseconds after that until the connection is closed, and calls that are left \
           fail. Without this flag they may go on.",
    apply: |settings, value| {
        settings.grpc_keepalive.connection_age_grace = milliseconds_if_any(value)?;
        Ok(())
    },
};
