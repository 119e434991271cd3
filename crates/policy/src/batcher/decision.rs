//! A batching decision, and the conditions apart from the queue that affect it.

use crate::batch::CloseReason;
use crate::time::Time;

/// The decision about the requests at the front of the queue when a lane is free.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum BatchDecision {
    /// No request is waiting.
    Empty,
    /// The first `requests` requests are dispatched now, with a total of `rows` rows.
    Close {
        /// The number of requests.
        requests: usize,
        /// The total number of rows.
        rows: u32,
        /// The reason why the batch ends at this point.
        reason: CloseReason,
    },
    /// The batch may grow until a deadline; `None` means no deadline.
    Wait {
        /// The time at which the batch is dispatched as is.
        until: Option<Time>,
        /// The number of waiting rows.
        rows: u32,
        /// The next preferred size, at which the batch would be dispatched immediately.
        next_preferred: u32,
    },
}

/// The state of the scheduler's intake, which either accepts further requests or doesn't.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Intake {
    /// Requests may arrive, so waiting for them can pay off.
    Open,
    /// The model is unloading and no more requests arrive, so a batch can't grow.
    Closed,
}
