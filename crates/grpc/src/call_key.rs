//! The identity of a call within its connection.

/// A call of a connection. Indices are used again, serial numbers are not: a response to a
/// call that is over finds no call.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallKey {
    pub(crate) index: usize,
    pub(crate) serial: u64,
}
