//! Events of a run, and the inbox to which they are posted.

use std::sync::Arc;

use galatea_infer::{Reply, ResponseCongestion};
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

/// The inbox of a run, as gates and composing models see it. It is congested while too
/// many responses, events and calls of the run are pending.
pub(crate) trait RunInbox: ResponseCongestion {
    /// Adds an event. The calling thread handles it, unless another thread is driving the run.
    fn post(self: Arc<Self>, event: RunEvent);
}
