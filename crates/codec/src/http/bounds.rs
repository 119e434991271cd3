//! What limits the memory of a request while it is decoded.

use std::sync::Arc;

use bytes::Bytes;
use galatea_gate::ledger::{Account, Charge, Exhausted};
use galatea_gate::limits::Limits;
use galatea_tensor::Buffer;

/// Tensors up to this size are not charged: the connection's account has a base for them.
const UNCHARGED_BYTES_MAX: usize = 16 << 10;

/// The limits of a request, and the account that its tensors are charged to. The body itself
/// is charged by the door that received it.
#[derive(Copy, Clone, Debug)]
pub struct DecodeBounds<'a> {
    /// Limits on sizes and counts.
    pub limits: &'a Limits,
    /// The account of the connection.
    pub account: &'a Arc<Account>,
}

/// The bytes of a tensor, charged before they are allocated.
#[derive(Debug, Default)]
pub(super) struct ChargedVec {
    bytes: Vec<u8>,
    charge: Option<Charge>,
}

impl ChargedVec {
    /// Makes room for this many bytes in total, or for twice as many as there are.
    pub(super) fn reserve(
        &mut self,
        length: usize,
        bounds: &DecodeBounds<'_>,
    ) -> Result<(), Exhausted> {
        if length <= self.bytes.capacity() {
            return Ok(());
        }
        let target = length.max(self.bytes.len().saturating_mul(2));
        if target > UNCHARGED_BYTES_MAX {
            let charge = self.charge.get_or_insert_with(|| Charge::nothing(bounds.account.clone()));
            charge.reach(target)?;
        }
        self.bytes.reserve_exact(target.saturating_sub(self.bytes.len()));
        Ok(())
    }

    /// The bytes, for which there is room.
    pub(super) const fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// How many bytes there are.
    pub(super) const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The tensor's memory, which stays charged as long as a part of it lives.
    pub(super) fn into_buffer(self) -> Buffer {
        let Self { bytes, charge } = self;
        match charge {
            None => Buffer::from_vec(bytes),
            Some(charge) => Buffer::from_bytes(Bytes::from_owner(charge.hold(bytes))).charged(),
        }
    }
}
