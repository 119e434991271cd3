//! The behaviour of clients.

/// A client that is well-behaved can expect service.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum ClientBehavior {
    /// It may break every rule of sequences.
    Arbitrary,
    /// It starts and ends its sequences, has IDs of its own, and neither cancels requests
    /// nor sets timeouts. Its requests must be executed.
    WellBehaved,
}
