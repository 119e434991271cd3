//! Connection limits.

use std::sync::Arc;
use std::time::Instant;

use galatea_door::{ClientTimeouts, ConnectionLimit, DoorOptions};
use rustix::process::{Resource, getrlimit};

/// The maximum number of connections to the metrics endpoint. No other limit counts these
/// connections: a few scrapers hold one connection each.
const METRICS_CONNECTIONS_MAX: usize = 128;

/// The connection limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionSettings {
    /// The maximum number of open HTTP and gRPC connections; `None` derives it from the system's
    /// limits.
    pub(crate) max: Option<usize>,
    /// The maximum number of open HTTP connections.
    pub(crate) http_max: Option<usize>,
    /// The maximum number of open gRPC connections.
    pub(crate) grpc_max: Option<usize>,
    /// The timeouts for HTTP clients.
    pub(crate) timeouts: ClientTimeouts,
}

impl Default for ConnectionSettings {
    fn default() -> Self {
        let timeouts = ClientTimeouts { idle: None, head: Some(60), stall: Some(60) };
        Self { max: None, http_max: None, grpc_max: None, timeouts }
    }
}

/// The connection options of each door.
pub(crate) struct ConnectionOptions {
    /// The options of the HTTP door and the cloud doors, whose connections count as HTTP
    /// connections.
    pub(crate) http: DoorOptions,
    pub(crate) grpc: DoorOptions,
    pub(crate) metrics: DoorOptions,
}

impl ConnectionOptions {
    /// Builds the options from the settings.
    pub(crate) fn new(settings: &ConnectionSettings) -> Self {
        let all = ConnectionLimit::new(settings.max.unwrap_or_else(default_max));
        let epoch = Instant::now();
        let refused_max = refused_max(files_max());
        let options =
            |limits| DoorOptions { timeouts: settings.timeouts, limits, epoch, refused_max };
        let shared = |max: Option<usize>| -> Vec<Arc<ConnectionLimit>> {
            max.map(ConnectionLimit::new).into_iter().chain([all.clone()]).collect()
        };
        Self {
            http: options(shared(settings.http_max)),
            grpc: options(shared(settings.grpc_max)),
            // Metrics show why clients are refused, so metrics connections don't count.
            metrics: options(vec![ConnectionLimit::new(METRICS_CONNECTIONS_MAX)]),
        }
    }
}

/// The file descriptors reserved for refusals, and for models that are loaded later and the files
/// they open.
const KEPT_FILES: u64 = 24;

/// The default number of connections, which leaves file descriptors for models.
fn default_max() -> usize {
    usize::try_from(share_of(files_max(), open_files())).unwrap_or(usize::MAX)
}

/// The maximum number of files that the process may open.
fn files_max() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The number of files that the process has open, as far as the system reports it.
fn open_files() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |files| files.count() as u64)
}

fn share_of(files: u64, open: u64) -> u64 {
    files.saturating_sub((files / 8).max(open.saturating_add(KEPT_FILES))).max(1)
}

/// The maximum number of refused clients per door that are sent a reason at the same time.
fn refused_max(files: u64) -> usize {
    usize::try_from((files / 16).clamp(1, 64)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_left_for_models_and_refusals() {
        assert_eq!([1024, 64, 8, 0].map(|files| share_of(files, 20)), [896, 20, 1, 1]);
        assert_eq!(share_of(1024, 600), 400);
        assert_eq!([u64::MAX, 1024, 64, 0].map(refused_max), [64, 64, 4, 1]);
    }
}
