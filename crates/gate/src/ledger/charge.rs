//! Charges, and memory bound to its charge.

use std::sync::Arc;

use super::{MemoryAccount, MemoryLimitExceeded};

/// Bytes that are charged to an account until this value is dropped.
#[derive(Debug)]
#[must_use = "a charge that is dropped is released"]
pub struct MemoryCharge {
    account: Arc<MemoryAccount>,
    bytes: usize,
}

impl MemoryCharge {
    /// An empty charge.
    pub const fn nothing(account: Arc<MemoryAccount>) -> Self {
        Self { account, bytes: 0 }
    }

    /// Charges bytes.
    ///
    /// # Errors
    ///
    /// [`MemoryLimitExceeded`] if the bytes exceed the limit.
    pub fn new(account: &Arc<MemoryAccount>, bytes: usize) -> Result<Self, MemoryLimitExceeded> {
        account.charge_unguarded(bytes)?;
        Ok(Self { account: account.clone(), bytes })
    }

    /// Charges bytes for optional memory; `None` if they exceed the limit. No refusal is counted.
    #[must_use]
    pub fn if_there_is_room(account: &Arc<MemoryAccount>, bytes: usize) -> Option<Self> {
        account.try_charge(bytes).then(|| Self { account: account.clone(), bytes })
    }

    /// The number of charged bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The charged account.
    #[must_use]
    pub const fn account(&self) -> &Arc<MemoryAccount> {
        &self.account
    }

    /// Sets the total charge to `bytes`.
    ///
    /// # Errors
    ///
    /// [`MemoryLimitExceeded`] if an increase exceeds the limit. The charge is then unchanged.
    pub fn set(&mut self, bytes: usize) -> Result<(), MemoryLimitExceeded> {
        match bytes.checked_sub(self.bytes) {
            Some(more) if more > 0 => self.account.charge_unguarded(more)?,
            Some(_) => return Ok(()),
            None => self.account.release(self.bytes.saturating_sub(bytes)),
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Raises the total charge to at least `bytes`.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`MemoryCharge::set`].
    pub fn grow_to(&mut self, bytes: usize) -> Result<(), MemoryLimitExceeded> {
        self.set(bytes.max(self.bytes))
    }

    /// Lowers the total charge to at most `bytes`.
    pub fn shrink(&mut self, bytes: usize) {
        // A smaller charge is never refused.
        let _ = self.set(bytes.min(self.bytes));
    }

    /// Moves `bytes` of the charge, or all of it if it is smaller, to a charge of their own.
    pub fn split_off(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes = self.bytes.saturating_sub(bytes);
        Self { account: self.account.clone(), bytes }
    }

    /// Binds the charge to the charged memory.
    pub const fn attach_to<T>(self, memory: T) -> ChargedMemory<T> {
        ChargedMemory { memory, _charge: self }
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.account.release(self.bytes);
        }
    }
}

/// Memory together with its charge. Dropping the value frees the memory and releases the charge. If
/// it owns reference-counted bytes, they stay charged until the last slice is dropped.
#[derive(Debug)]
pub struct ChargedMemory<T> {
    // Freed before the charge is released.
    memory: T,
    _charge: MemoryCharge,
}

impl<T> ChargedMemory<T> {
    /// The memory.
    pub const fn memory(&self) -> &T {
        &self.memory
    }
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for ChargedMemory<T> {
    fn as_ref(&self) -> &[u8] {
        self.memory.as_ref()
    }
}
