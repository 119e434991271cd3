//! The behaviour of clients.

/// The behaviour of a client. A well-behaved client can expect service.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum ClientBehavior {
    /// The client may break any of the rules for sequences.
    Arbitrary,
    /// The client starts and ends its sequences, has its own IDs, and neither cancels requests nor
    /// sets timeouts. Its requests must be executed.
    WellBehaved,
}
