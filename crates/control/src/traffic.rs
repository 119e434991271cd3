//! Recording of model traffic for clients.

use std::fmt;

use galatea_gate::access::{AccessPass, api};

use galatea_infer::Status;

/// The server, as seen by doors that let clients record traffic.
///
/// Recording belongs to the `trace` API: like a trace, a recording shows a client the requests of
/// other clients.
pub trait TrafficRecordingControl: fmt::Debug + Send + Sync {
    /// Records the requests to a model version until the returned value is dropped. If no version
    /// is specified, the newest ready version is recorded.
    ///
    /// # Errors
    ///
    /// `NotFound` and `Unavailable` for a version that does not serve; `Unavailable` while another
    /// client records it, or while the maximum number of recordings is reached.
    fn record_traffic(
        &self,
        pass: AccessPass<api::Trace>,
        model: &str,
        version: Option<i64>,
    ) -> Result<Box<dyn TrafficRecording>, Status>;
}

/// A recording of requests and executions, which lasts until it is dropped.
pub trait TrafficRecording: Send + Sync {
    /// The lines added to a traffic file since the last call, each with its newline; the first line
    /// is the header. `None` once the version has been unloaded or reloaded.
    fn read(&mut self) -> Option<String>;
}
