//! Memory that grows with the received bytes and is charged to the ledger before it is allocated.

use std::sync::Arc;

use bytes::Bytes;
use galatea_gate::ledger::{MemoryAccount, MemoryCharge, MemoryLimitExceeded};

/// The minimum growth of a buffer, and the maximum growth that a header alone can cause.
pub(crate) const GROWTH_BYTES: usize = 1 << 20;

/// The body size beyond which buffers keep growing in steps. Without a memory limit, nothing bounds
/// the length that a header may announce.
const WHOLE_BYTES_MAX: usize = 256 << 20;

/// Incoming bytes, such as a body or an inflated body.
#[derive(Debug)]
pub(crate) struct ChargedBuffer {
    bytes: Vec<u8>,
    charge: Option<MemoryCharge>,
}

impl ChargedBuffer {
    /// Creates an empty buffer.
    pub(crate) const fn new() -> Self {
        Self { bytes: Vec::new(), charge: None }
    }

    /// Returns the bytes, which may be extended up to the capacity set by
    /// [`ChargedBuffer::reserve`].
    pub(crate) const fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// The number of bytes.
    pub(crate) const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Makes room for `needed` bytes in total. The buffer grows towards `expected` bytes, if that
    /// number is known, in steps that double the received size.
    ///
    /// Once a step has been received, all expected bytes are charged. If many long bodies arrive at
    /// once, those that fit in memory are accepted and the others are refused early.
    ///
    /// # Errors
    ///
    /// [`MemoryLimitExceeded`] if there is not enough memory. The buffer then stays unchanged.
    pub(crate) fn reserve(
        &mut self,
        needed: usize,
        expected: usize,
        account: &Arc<MemoryAccount>,
    ) -> Result<(), MemoryLimitExceeded> {
        if needed <= self.bytes.capacity() {
            return Ok(());
        }
        let step = self.len().saturating_mul(2).max(GROWTH_BYTES);
        let target = if expected == 0 { step } else { step.min(expected) }.max(needed);
        let charged = if self.len() >= GROWTH_BYTES { target.max(expected) } else { target };
        // All charged memory is allocated at once, so nothing is copied; pages that are not written
        // use no memory.
        let target = if charged <= WHOLE_BYTES_MAX { charged } else { target };
        if charged > MemoryAccount::SMALL_BYTES_MAX {
            let charge = self.charge.get_or_insert_with(|| MemoryCharge::nothing(account.clone()));
            charge.grow_to(charged)?;
        }
        self.bytes.reserve_exact(target.saturating_sub(self.bytes.len()));
        Ok(())
    }

    /// Appends bytes, growing the buffer towards `expected` bytes.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`ChargedBuffer::reserve`].
    pub(crate) fn append(
        &mut self,
        bytes: &[u8],
        expected: usize,
        account: &Arc<MemoryAccount>,
    ) -> Result<(), MemoryLimitExceeded> {
        self.reserve(self.len().saturating_add(bytes.len()), expected, account)?;
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Returns the bytes, which stay charged for as long as a slice of them exists.
    pub(crate) fn into_bytes(self) -> Bytes {
        let Self { bytes, charge } = self;
        match charge {
            None => Bytes::from(bytes),
            Some(mut charge) => {
                charge.shrink(bytes.capacity());
                Bytes::from_owner(charge.attach_to(bytes))
            }
        }
    }
}

/// Charges bytes that were received in one piece, if there are many.
pub(crate) fn charged(
    bytes: Bytes,
    account: &Arc<MemoryAccount>,
) -> Result<Bytes, MemoryLimitExceeded> {
    if bytes.len() <= MemoryAccount::SMALL_BYTES_MAX {
        return Ok(bytes);
    }
    Ok(Bytes::from_owner(MemoryCharge::new(account, bytes.len())?.attach_to(bytes)))
}

#[cfg(test)]
mod tests {
    use galatea_gate::ledger::MemoryLedger;

    use super::*;

    const MIB: usize = 1 << 20;

    fn account(limit: usize) -> Arc<MemoryAccount> {
        Arc::new(MemoryAccount::without_base(Arc::new(MemoryLedger::new(Some(limit)))))
    }

    fn buffer(bytes: &[u8], expected: usize, account: &Arc<MemoryAccount>) -> ChargedBuffer {
        let mut buffer = ChargedBuffer::new();
        buffer.append(bytes, expected, account).unwrap();
        buffer
    }

    #[test]
    fn a_buffer_does_not_grow_on_a_declared_length_alone() {
        let account = account(100 * MIB);
        let buffer = buffer(b"ab", 1 << 30, &account);
        assert!(buffer.bytes.capacity() <= 2 * GROWTH_BYTES, "{}", buffer.bytes.capacity());
        assert_eq!(account.held(), GROWTH_BYTES);
    }

    #[test]
    fn a_small_buffer_has_its_size_and_no_charge() {
        let account = account(0);
        let buffer = buffer(b"ab", 100, &account);
        assert_eq!((buffer.bytes.capacity(), account.held()), (100, 0));
        assert_eq!(buffer.into_bytes(), b"ab"[..]);
    }

    #[test]
    fn all_of_a_long_body_is_charged_when_a_part_has_arrived() {
        let account = account(8 * MIB);
        let mut first = buffer(&[7; MIB], 6 * MIB, &account);
        assert_eq!(account.held(), MIB);
        first.append(&[7], 6 * MIB, &account).unwrap();
        assert_eq!((account.held(), first.bytes.capacity()), (6 * MIB, 6 * MIB));
        // The next long body is refused as soon as it has grown as far.
        let mut second = buffer(&[7; MIB], 6 * MIB, &account);
        assert!(second.append(&[7], 6 * MIB, &account).is_err());
        assert_eq!((second.len(), account.held()), (MIB, 7 * MIB));
        drop(second);
        first.append(&vec![7; 5 * MIB - 1], 6 * MIB, &account).unwrap();
        let slice = first.into_bytes().slice(5..6);
        assert_eq!(account.held(), 6 * MIB);
        drop(slice);
        assert_eq!(account.held(), 0);
    }

    #[test]
    fn an_announced_length_alone_takes_no_memory() {
        let account = Arc::new(MemoryAccount::unlimited());
        let mut body = buffer(&[7; MIB], usize::MAX, &account);
        body.append(&[7], usize::MAX, &account).unwrap();
        assert_eq!(body.bytes.capacity(), 2 * MIB);
    }

    #[test]
    fn without_a_declared_length_what_has_arrived_is_charged() {
        let account = account(4 * MIB);
        let mut body = buffer(&[7; 2 * MIB], 0, &account);
        assert_eq!(account.held(), 2 * MIB);
        body.append(&[7], 0, &account).unwrap();
        assert_eq!(account.held(), 4 * MIB);
        assert!(body.append(&vec![7; 2 * MIB], 0, &account).is_err());
    }

    #[test]
    fn one_piece_is_charged_if_it_is_long() {
        let account = account(MIB);
        let short =
            charged(Bytes::from(vec![7; MemoryAccount::SMALL_BYTES_MAX]), &account).unwrap();
        assert_eq!(account.held(), 0);
        let long =
            charged(Bytes::from(vec![7; MemoryAccount::SMALL_BYTES_MAX + 1]), &account).unwrap();
        assert_eq!(account.held(), MemoryAccount::SMALL_BYTES_MAX + 1);
        drop((short, long));
        assert_eq!(account.held(), 0);
        assert!(charged(Bytes::from(vec![7; MIB + 1]), &account).is_err());
    }
}
