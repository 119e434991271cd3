//! The limits on connections.

use std::sync::Arc;
use std::time::Instant;

use galatea_door::{ConnectionLimit, DoorOptions, Timeouts};
use galatea_gate::limits::Limits;
use rustix::process::{Resource, getrlimit};

/// How connections are limited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionSettings {
    /// How many HTTP and gRPC connections may be open; `None` is what the system allows.
    pub(crate) max: Option<usize>,
    /// How many of them may be HTTP connections.
    pub(crate) http_max: Option<usize>,
    /// How many of them may be gRPC connections.
    pub(crate) grpc_max: Option<usize>,
    /// How long HTTP clients may take.
    pub(crate) timeouts: Timeouts,
}

impl Default for ConnectionSettings {
    fn default() -> Self {
        let timeouts = Timeouts { idle: None, head: Some(60), stall: Some(60) };
        Self { max: None, http_max: None, grpc_max: None, timeouts }
    }
}

/// The options of each door.
pub(crate) struct ConnectionOptions {
    /// Those of the clouds too: their connections count as HTTP connections.
    pub(crate) http: DoorOptions,
    pub(crate) grpc: DoorOptions,
    pub(crate) metrics: DoorOptions,
}

impl ConnectionOptions {
    /// The options that these settings ask for.
    pub(crate) fn new(settings: &ConnectionSettings) -> Self {
        let all = ConnectionLimit::new(settings.max.unwrap_or_else(default_max));
        let epoch = Instant::now();
        let options = |limits| DoorOptions { timeouts: settings.timeouts, limits, epoch };
        let shared = |max: Option<usize>| -> Vec<Arc<ConnectionLimit>> {
            max.map(ConnectionLimit::new).into_iter().chain([all.clone()]).collect()
        };
        Self {
            http: options(shared(settings.http_max)),
            grpc: options(shared(settings.grpc_max)),
            // Metrics tell why clients are refused, so their connections don't count.
            metrics: options(vec![ConnectionLimit::new(Limits::METRICS_CONNECTIONS_MAX)]),
        }
    }
}

/// How many connections there may be, so that files are left for models.
fn default_max() -> usize {
    let files = getrlimit(Resource::Nofile).current;
    files.map_or(usize::MAX, |files| usize::try_from(share_of(files)).unwrap_or(usize::MAX))
}

fn share_of(files: u64) -> u64 {
    files.saturating_sub(files / 8).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_left_for_models() {
        assert_eq!([1024, 8, 1, 0].map(share_of), [896, 7, 1, 1]);
    }
}
