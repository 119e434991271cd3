//! Recording of a model's traffic for clients.

use std::fmt;

use galatea_gate::access::{Pass, api};

use galatea_infer::Status;

/// The server as seen by doors that record traffic.
///
/// It belongs to the API `trace`: like traces, a recording tells a client of other clients'
/// requests.
pub trait TrafficRecordingControl: fmt::Debug + Send + Sync {
    /// Begins to record the requests to a version of a model, until the returned value is dropped.
    /// If no version is given, the newest ready version is recorded.
    ///
    /// # Errors
    ///
    /// `NotFound` and `Unavailable` for a version that does not serve; `Unavailable` while another
    /// client records it, or while the maximum number of recordings is reached.
    fn record_traffic(
        &self,
        pass: Pass<api::Trace>,
        model: &str,
        version: Option<i64>,
    ) -> Result<Box<dyn TrafficRecording>, Status>;
}

/// A recording of requests and executions, which lasts until this is dropped.
pub trait TrafficRecording: Send + Sync {
    /// The lines of a traffic file, each with its newline, that have been added since the last
    /// call; the first one is the header. `None` once the version is gone: it was unloaded or
    /// reloaded.
    fn read(&mut self) -> Option<String>;
}
