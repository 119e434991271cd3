//! The states of a scheduler, from the first request that it accepts to the last that it completes.

/// Open → Draining → Drained, never back.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum SchedulerState {
    /// Requests are accepted.
    Open,
    /// New requests are refused; queued ones still run.
    Draining,
    /// Nothing is queued and nothing runs.
    Drained,
}
