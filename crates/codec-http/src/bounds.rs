//! The limits on a request's memory while it is decoded.

use std::sync::Arc;

use galatea_codec::limits::Limits;
use galatea_control::Regions;
use galatea_gate::ledger::Account;

use galatea_codec::regions::RegionAccess;

/// The limits of a request, and the account to which its tensors are charged. The door that
/// received the body charges the body itself.
#[derive(Copy, Clone, Debug)]
pub struct DecodeBounds<'a> {
    /// Limits on sizes and counts.
    pub limits: &'a Limits,
    /// The account of the connection.
    pub account: &'a Arc<Account>,
    /// The regions that tensors may be in.
    pub regions: Regions<'a>,
}

impl<'a> DecodeBounds<'a> {
    pub(super) const fn region_access(&self) -> RegionAccess<'a> {
        RegionAccess { regions: self.regions, account: self.account }
    }
}
