//! Memory that is charged to the ledger.

use std::sync::Arc;

use bytes::Bytes;
use galatea_gate::ledger::{MemoryAccount, MemoryCharge, MemoryLimitExceeded};
use galatea_tensor::Buffer;

/// A byte vector whose memory is charged before it is allocated, unless it is small.
#[derive(Debug, Default)]
pub struct ChargedVec {
    bytes: Vec<u8>,
    charge: Option<MemoryCharge>,
}

impl ChargedVec {
    /// Makes room for this many bytes in total or for twice the current number of bytes, whichever
    /// is larger.
    pub fn reserve(
        &mut self,
        length: usize,
        account: &Arc<MemoryAccount>,
    ) -> Result<(), MemoryLimitExceeded> {
        if length <= self.bytes.capacity() {
            return Ok(());
        }
        self.reserve_exact(length.max(self.bytes.len().saturating_mul(2)), account)
    }

    /// Makes room for this many bytes in total.
    pub fn reserve_exact(
        &mut self,
        target: usize,
        account: &Arc<MemoryAccount>,
    ) -> Result<(), MemoryLimitExceeded> {
        if target > MemoryAccount::SMALL_BYTES_MAX {
            let charge = self.charge.get_or_insert_with(|| MemoryCharge::nothing(account.clone()));
            charge.grow_to(target)?;
        }
        self.bytes.reserve_exact(target.saturating_sub(self.bytes.len()));
        Ok(())
    }

    /// The bytes, which may be extended within their capacity.
    pub const fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// The number of bytes.
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns true if there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Releases unused memory if there is much of it.
    pub fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        if let Some(charge) = &mut self.charge {
            charge.shrink(self.bytes.capacity());
        }
    }

    /// Returns the bytes, which stay charged for as long as a slice of them exists.
    pub fn into_bytes(self) -> Bytes {
        let Self { bytes, charge } = self;
        match charge {
            None => Bytes::from(bytes),
            Some(charge) => Bytes::from_owner(charge.attach_to(bytes)),
        }
    }

    /// Converts the bytes into the memory of a tensor.
    pub fn into_buffer(self) -> Buffer {
        let is_charged = self.charge.is_some();
        let buffer = Buffer::from_bytes(self.into_bytes());
        if is_charged { buffer.mark_charged() } else { buffer }
    }
}
