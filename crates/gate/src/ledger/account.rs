//! The share of the ledger that belongs to one holder, such as a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{MemoryLedger, MemoryLimitExceeded};

/// The number of bytes that one holder has taken from the ledger. Bytes that are taken but not
/// charged form the credit, from which small charges are served.
///
/// Dropping an account returns all of its bytes. Charges keep their account alive.
#[derive(Debug)]
pub struct MemoryAccount {
    ledger: Arc<MemoryLedger>,
    /// The bytes taken from the ledger.
    taken: AtomicUsize,
    /// The bytes that are taken but not charged.
    credit: AtomicUsize,
    /// True if the account is considered when the largest account is determined.
    is_compared: bool,
}

impl MemoryAccount {
    /// The bytes that every open connection needs: its receive buffer, its state and one small
    /// message.
    pub const BASE_BYTES: usize = 32 << 10;

    /// The maximum size of a buffer without its own charge. An HTTP connection's base or a gRPC
    /// request's charge covers such buffers.
    pub const SMALL_BYTES_MAX: usize = 16 << 10;

    /// Charges below this are served from the account's credit, which is taken from the ledger in
    /// steps of this many bytes. The credit is always less than two steps.
    pub const STEP_BYTES: usize = 16 << 10;

    /// Makes an account without base bytes.
    #[must_use]
    pub const fn without_base(ledger: Arc<MemoryLedger>) -> Self {
        Self { ledger, taken: AtomicUsize::new(0), credit: AtomicUsize::new(0), is_compared: true }
    }

    /// Makes the account for the server's own work, which is not compared with connections.
    #[must_use]
    pub const fn of_server(ledger: Arc<MemoryLedger>) -> Self {
        let (taken, credit) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { ledger, taken, credit, is_compared: false }
    }

    /// Makes a connection's account, which holds [`MemoryAccount::BASE_BYTES`] while it is open,
    /// regardless of the limit.
    #[must_use]
    pub fn of_connection(ledger: Arc<MemoryLedger>) -> Self {
        ledger.force(Self::BASE_BYTES);
        let taken = AtomicUsize::new(Self::BASE_BYTES);
        Self { ledger, taken, credit: AtomicUsize::new(0), is_compared: true }
    }

    /// Makes an account in its own ledger, without a limit.
    #[must_use]
    pub fn unlimited() -> Self {
        Self::without_base(Arc::default())
    }

    /// The ledger.
    #[must_use]
    pub const fn ledger(&self) -> &Arc<MemoryLedger> {
        &self.ledger
    }

    /// The number of bytes that the holder has: its base and its charges.
    #[must_use]
    pub fn held(&self) -> usize {
        let credit = self.credit.load(Ordering::Relaxed);
        self.taken.load(Ordering::Relaxed).saturating_sub(credit)
    }

    /// Charges bytes; [`MemoryAccount::release`] returns them. A
    /// [`MemoryCharge`](super::MemoryCharge) does both automatically; these two methods are for
    /// holders that already count their bytes.
    ///
    /// # Errors
    ///
    /// [`MemoryLimitExceeded`] if the bytes exceed the limit; nothing is charged.
    pub fn charge_unguarded(&self, bytes: usize) -> Result<(), MemoryLimitExceeded> {
        if self.try_charge(bytes) { Ok(()) } else { Err(self.ledger.refuse(bytes)) }
    }

    /// Like [`Self::charge_unguarded`], but for optional memory: failures don't count as refusals.
    pub(super) fn try_charge(&self, bytes: usize) -> bool {
        if bytes < Self::STEP_BYTES {
            let without = |credit: usize| credit.checked_sub(bytes);
            if self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, without).is_ok() {
                return true;
            }
            if self.take(bytes.saturating_add(Self::STEP_BYTES)) {
                self.credit.fetch_add(Self::STEP_BYTES, Ordering::Relaxed);
                return true;
            }
        }
        self.take(bytes)
    }

    /// Charges bytes that the holder needs in any case, regardless of the limit, for the account's
    /// lifetime.
    pub fn force_charge(&self, bytes: usize) {
        self.ledger.force(bytes);
        let before = self.taken.fetch_add(bytes, Ordering::Relaxed);
        self.ledger.raise_account_peak(before.saturating_add(bytes));
    }

    /// Returns charged bytes.
    pub fn release(&self, bytes: usize) {
        if bytes >= Self::STEP_BYTES {
            return self.give(bytes);
        }
        let credit = self.credit.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if credit >= Self::STEP_BYTES.saturating_mul(2) {
            self.give_surplus();
        }
    }

    /// Returns all credit beyond one step to the ledger.
    fn give_surplus(&self) {
        let enough = |credit: usize| (credit > Self::STEP_BYTES).then_some(Self::STEP_BYTES);
        let before = self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enough);
        if let Ok(before) = before {
            self.give(before.saturating_sub(Self::STEP_BYTES));
        }
    }

    fn take(&self, bytes: usize) -> bool {
        let is_taken = self.ledger.take(bytes);
        if is_taken {
            let before = self.taken.fetch_add(bytes, Ordering::Relaxed);
            if self.is_compared {
                self.ledger.raise_account_peak(before.saturating_add(bytes));
            }
        }
        is_taken
    }

    fn give(&self, bytes: usize) {
        let before = self.taken.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "{bytes} bytes are released of {before}");
        self.ledger.give(bytes);
    }
}

impl Drop for MemoryAccount {
    fn drop(&mut self) {
        self.ledger.give(*self.taken.get_mut());
    }
}
