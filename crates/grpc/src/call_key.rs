//! The identity of a call within its connection.

/// The identity of a call. Indices are reused but serial numbers are not, so a late response to a
/// call that has ended finds no call.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallKey {
    pub(crate) index: usize,
    pub(crate) serial: u64,
}
