//! A run's events, and the inbox that they are posted to.

use std::sync::Arc;

use galatea_infer::{CongestionPoint, Reply};
use galatea_policy::{StepCallKey, StepIndex};

/// An event of a run.
pub(crate) enum RunEvent {
    /// The first steps may start.
    Begin,
    /// The gate of this step has admitted a call.
    Admitted(StepIndex, StepCallKey),
    /// A composing model has replied to a call.
    Reply(StepCallKey, Reply),
    /// The request has been cancelled.
    Cancelled,
}

/// A run's inbox, as gates and composing models see it. It is congested while too many of the run's
/// responses, events and calls are pending.
pub(crate) trait RunInbox: CongestionPoint {
    /// Adds an event. The calling thread handles it, unless another thread is driving the run.
    fn post(self: Arc<Self>, event: RunEvent);
}
