//! The ledger counts the bytes that requests and responses hold, over all connections of all doors,
//! against one limit (`--memory-limit`).
//!
//! Memory is charged *before* it is allocated, and released when it is freed: a [`MemoryCharge`]
//! lives in the same value as the memory ([`ChargedMemory`]) and releases its bytes on drop,
//! whichever way the memory leaves the server. A charge beyond the limit is refused at once
//! ([`MemoryLimitExceeded`]). Nothing waits for memory, so nothing can wait forever.
//!
//! ```text
//! Ledger   one per server: the limit, and what is held of it
//!   ▲ steps of 16 KiB, and whatever is larger
//! Account  one per connection: small charges come out of its credit
//!   ▲
//! Charge   one per buffer, or per request
//! ```
//!
//! Small requests cost little. A charge below [`MemoryAccount::STEP_BYTES`] is one atomic operation
//! on the connection's own account. Only one charge in many reaches the counters that all
//! connections share.
//!
//! Held bytes may exceed the limit by [`MemoryAccount::BASE_BYTES`] for each open connection,
//! because connections are never refused for lack of memory: health checks must get a response. The
//! doors limit the number of connections.
//!
//! ```
//! use std::sync::Arc;
//! use galatea_gate::ledger::{MemoryAccount, MemoryCharge, MemoryLedger};
//!
//! let ledger = Arc::new(MemoryLedger::new(Some(1 << 20)));
//! let connection = Arc::new(MemoryAccount::without_base(ledger.clone()));
//! let body = MemoryCharge::new(&connection, 600_000).unwrap().attach_to(vec![7_u8; 600_000]);
//! let refused = MemoryCharge::new(&connection, 600_000).unwrap_err();
//! assert!(refused.to_string().contains("--memory-limit"));
//! drop(body);
//! assert!(MemoryCharge::new(&connection, 600_000).is_ok());
//! ```

mod account;
mod charge;
mod trim;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

pub use account::MemoryAccount;
pub use charge::{ChargedMemory, MemoryCharge};
pub use trim::{HeapTrimDecision, HeapTrimPolicy};

/// The time that a client should wait before it repeats a refused request, in seconds: a hint for
/// `Retry-After` and similar headers. Requests hold memory for milliseconds to seconds.
pub const RETRY_AFTER_SECS: u32 = 1;

/// The bytes that requests and responses hold, and their limit.
#[derive(Debug)]
pub struct MemoryLedger {
    limit: usize,
    held: AtomicUsize,
    /// The maximum number of bytes held since the last [`MemoryLedger::sample`].
    peak: AtomicUsize,
    /// The maximum number of bytes that a single account has ever held.
    account_peak: AtomicUsize,
    /// The number of refused charges.
    refusals: AtomicUsize,
}

/// The state of a ledger, read by [`MemoryLedger::sample`].
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryLedgerSample {
    /// The number of bytes held now.
    pub held: usize,
    /// The maximum number of bytes held since the previous sample.
    pub peak: usize,
}

impl MemoryLedger {
    /// Makes a ledger with a limit in bytes. Without a limit, the ledger only counts, and doesn't
    /// refuse anything.
    #[must_use]
    pub const fn new(limit: Option<usize>) -> Self {
        Self {
            limit: match limit {
                Some(limit) => limit,
                None => usize::MAX,
            },
            held: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            account_peak: AtomicUsize::new(0),
            refusals: AtomicUsize::new(0),
        }
    }

    /// The limit in bytes, if any.
    #[must_use]
    pub fn limit(&self) -> Option<usize> {
        Some(self.limit).filter(|&limit| limit != usize::MAX)
    }

    /// The bytes held, including the base and the credit of every open account.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// The maximum number of bytes that a single account has held since startup.
    #[must_use]
    pub fn account_peak(&self) -> usize {
        self.account_peak.load(Ordering::Relaxed)
    }

    /// The number of charges refused since startup.
    #[must_use]
    pub fn refusals(&self) -> usize {
        self.refusals.load(Ordering::Relaxed)
    }

    /// Reads the held bytes and begins a new period for [`MemoryLedgerSample::peak`]. Only one
    /// reader may call it: the driver of a [`HeapTrimPolicy`].
    pub fn sample(&self) -> MemoryLedgerSample {
        let held = self.held();
        MemoryLedgerSample { held, peak: self.peak.swap(held, Ordering::Relaxed).max(held) }
    }

    /// Notes that uncharged memory of this size was freed, such as a pool's, so that a
    /// [`HeapTrimPolicy`] takes it into account.
    pub fn note_freed(&self, bytes: usize) {
        self.raise_peak(self.held().saturating_add(bytes));
    }

    /// Checks whether a charge would be refused now, without making it.
    ///
    /// # Errors
    ///
    /// [`MemoryLimitExceeded`] if the charge would be refused.
    pub fn check(&self, bytes: usize) -> Result<(), MemoryLimitExceeded> {
        let after = self.held().checked_add(bytes);
        if after.is_some_and(|after| after <= self.limit) {
            return Ok(());
        }
        Err(self.refuse(bytes))
    }

    /// Takes bytes if they are within the limit. Returns true on success.
    fn take(&self, bytes: usize) -> bool {
        let within = |held: usize| held.checked_add(bytes).filter(|after| *after <= self.limit);
        let taken = self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within);
        if let Ok(before) = taken {
            self.raise_peak(before.saturating_add(bytes));
        }
        taken.is_ok()
    }

    /// Takes bytes regardless of the limit.
    fn force(&self, bytes: usize) {
        let before = self.held.fetch_add(bytes, Ordering::Relaxed);
        self.raise_peak(before.saturating_add(bytes));
    }

    /// Returns bytes to the ledger.
    fn give(&self, bytes: usize) {
        let before = self.held.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "{bytes} bytes are given back of {before}");
    }

    fn raise_peak(&self, held: usize) {
        if self.peak.load(Ordering::Relaxed) < held {
            self.peak.fetch_max(held, Ordering::Relaxed);
        }
    }

    fn raise_account_peak(&self, taken: usize) {
        if self.account_peak.load(Ordering::Relaxed) < taken {
            self.account_peak.fetch_max(taken, Ordering::Relaxed);
        }
    }

    fn refuse(&self, bytes: usize) -> MemoryLimitExceeded {
        self.refusals.fetch_add(1, Ordering::Relaxed);
        MemoryLimitExceeded { wanted: bytes, limit: self.limit }
    }
}

impl Default for MemoryLedger {
    /// A ledger without a limit.
    fn default() -> Self {
        Self::new(None)
    }
}

/// The refusal of a charge because requests and responses already hold too many bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimitExceeded {
    /// The number of additional bytes that were requested.
    pub wanted: usize,
    /// The limit on held bytes.
    pub limit: usize,
}

impl MemoryLimitExceeded {
    /// Returns true if the charge would be refused even if nothing else were held.
    #[must_use]
    pub const fn can_never_fit(&self) -> bool {
        self.wanted > self.limit
    }
}

impl fmt::Display for MemoryLimitExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wanted, limit } = self;
        if self.can_never_fit() {
            return write!(
                f,
                "{wanted} bytes are more than requests and responses may hold together ({limit} \
                 bytes). Use --memory-limit to increase the limit."
            );
        }
        write!(
            f,
            "requests and responses hold too much memory to take {wanted} more bytes now (the \
             limit is {limit} bytes). Try again later, or use --memory-limit to increase the \
             limit."
        )
    }
}

impl std::error::Error for MemoryLimitExceeded {}
