//! The decision on a batch, and what it depends on beside the queue.

use crate::batch::CloseReason;
use crate::time::Time;

/// The fate of the requests at the front of the queue when a lane is free.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum BatchDecision {
    /// No request waits.
    Empty,
    /// The first `requests` are dispatched now, with `rows` rows together.
    Close {
        /// Number of requests.
        requests: usize,
        /// Sum of their rows.
        rows: u32,
        /// Why the batch ends here and now.
        reason: CloseReason,
    },
    /// The batch may grow until a point in time; none means without end.
    Wait {
        /// When the batch is dispatched as it is.
        until: Option<Time>,
        /// Rows that wait.
        rows: u32,
        /// The next preferred size, which would be dispatched at once.
        next_preferred: u32,
    },
}

/// The intake of the scheduler: it accepts further requests, or none.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Intake {
    /// Requests may arrive, so waiting for them can pay.
    Open,
    /// The model unloads and no request arrives, so a batch can't grow.
    Closed,
}
