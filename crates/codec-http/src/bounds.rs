//! The limits on a request's memory while it is decoded.

use std::sync::Arc;

use galatea_codec::limits::MessageLimits;
use galatea_control::RequestShmRegions;
use galatea_gate::ledger::MemoryAccount;

use galatea_codec::regions::SharedMemoryAccess;

/// The limits of a request, and the account to which its tensors are charged. The door that
/// received the body charges the body itself.
#[derive(Copy, Clone, Debug)]
pub struct DecodeContext<'a> {
    /// Limits on sizes and counts.
    pub limits: &'a MessageLimits,
    /// The account of the connection.
    pub account: &'a Arc<MemoryAccount>,
    /// The regions that may contain tensors.
    pub regions: RequestShmRegions<'a>,
}

impl<'a> DecodeContext<'a> {
    pub(super) const fn region_access(&self) -> SharedMemoryAccess<'a> {
        SharedMemoryAccess { regions: self.regions, account: self.account }
    }
}
