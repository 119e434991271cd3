//! A batching decision, and the conditions other than the queue that it depends on.

use crate::batch::CloseReason;
use crate::time::Time;

/// The decision about the requests at the front of the queue when a lane is free.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum BatchDecision {
    /// No request is waiting.
    Empty,
    /// The first `requests` requests are dispatched now, with a total of `rows` rows.
    Close {
        /// Number of requests.
        requests: usize,
        /// Total number of rows.
        rows: u32,
        /// The reason why the batch ends here and now.
        reason: CloseReason,
    },
    /// The batch may grow until a deadline; `None` means no deadline.
    Wait {
        /// The time at which the batch is dispatched as is.
        until: Option<Time>,
        /// Number of waiting rows.
        rows: u32,
        /// The next preferred size, at which the batch would be dispatched immediately.
        next_preferred: u32,
    },
}

/// The scheduler's intake: it either accepts further requests or not.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Intake {
    /// Requests may arrive, so waiting for them can pay off.
    Open,
    /// The model is unloading and no more requests arrive, so a batch can't grow.
    Closed,
}
