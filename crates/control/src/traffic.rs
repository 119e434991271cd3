//! The traffic of a model, for clients that record it.

use std::fmt;

use galatea_gate::access::{Pass, api};

use galatea_infer::Status;

/// The server, as doors see it through which traffic is recorded.
///
/// It belongs to the API `trace`: like traces, a recording tells a client of other clients'
/// requests.
pub trait TrafficControl: fmt::Debug + Send + Sync {
    /// Begins to record the requests to a version of a model, until the returned value is
    /// dropped. Without a number it is the newest version that is ready.
    ///
    /// # Errors
    ///
    /// `NotFound` and `Unavailable` for a version that does not serve, `Unavailable` while
    /// another client records it, and while as many are recorded as can be.
    fn record_traffic(
        &self,
        pass: Pass<api::Trace>,
        model: &str,
        version: Option<i64>,
    ) -> Result<Box<dyn TrafficRecording>, Status>;
}

/// Requests and executions that are recorded as long as this lives.
pub trait TrafficRecording: Send + Sync {
    /// The lines of a file of traffic, each with its end, that have come since the last call;
    /// first the one that says whose traffic it is. `None` when the version is gone: it was
    /// unloaded, or loaded anew.
    fn read(&mut self) -> Option<String>;
}
