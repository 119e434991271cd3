//! Memory for messages that arrive in several pieces.
//!
//! A client announces the length of a message before it sends any of it, and may never send the
//! rest. Memory therefore grows with the bytes: it is at most twice the size of the bytes that have
//! arrived. Growing copies no more bytes in total than the message's length, and none where the
//! system can move pages.
//!
//! Touching fresh memory is expensive: the system provides it page by page, and takes it back when
//! a long message is freed. The door therefore keeps the memory of some long messages for later
//! ones, and frees memory that has been unused for a while. Once part of a message has arrived
//! ([`loan_threshold`]), the message borrows such memory for its whole length. From then on, it
//! neither grows nor touches fresh pages.
//!
//! The memory that the door keeps or has lent to incomplete messages totals at most
//! [`POOL_BYTES_MAX`], or an eighth of the memory limit if that is less, regardless of the traffic.
//! A client that holds messages back can occupy no more than that plus twice the bytes that it has
//! sent. Near the memory limit, no memory is kept: kept memory isn't charged and gives way to
//! charged memory.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use galatea_codec_grpc::GrpcCode;
use galatea_gate::ledger::{MemoryAccount, MemoryCharge, MemoryLedger};
use galatea_stdx::Lock;
use tokio::sync::Notify;

use crate::failure::Failure;

/// The minimum size of buffers to keep: the allocator reuses smaller blocks.
const POOLED_BYTES_MIN: usize = 128 << 10;
/// The maximum total of unused bytes that are kept and bytes lent to incomplete messages.
const POOL_BYTES_MAX: usize = 64 << 20;
/// The divisor of the memory limit that also bounds kept and lent bytes, because they are not
/// charged.
const POOL_SHARE: usize = 8;
/// The minimum time for which unused memory is kept; the maximum is twice as long.
const PERIOD: Duration = Duration::from_secs(5);

/// A message borrows memory when this fraction of it has arrived...
const LOAN_DIVISOR: usize = 16;
/// ...or when this many bytes have arrived.
const LOAN_BYTES_MAX: usize = 2 << 20;

/// Returns the number of bytes of a message that must have arrived before it borrows memory for its
/// whole length.
fn loan_threshold(length: usize) -> usize {
    (length / LOAN_DIVISOR).min(LOAN_BYTES_MAX)
}

/// A message that has only partly arrived.
#[derive(Debug)]
pub(crate) struct PartialMessage {
    length: usize,
    buffer: MessageBuffer,
}

impl PartialMessage {
    /// Begins a message of this length. Allocates no memory yet.
    pub(crate) fn new(length: usize, memory: &MessageMemory) -> Self {
        let (bytes, memory) = (Vec::new(), memory.clone());
        Self { length, buffer: MessageBuffer { bytes, borrowed: 0, charge: None, memory } }
    }

    /// The number of bytes that have arrived.
    pub(crate) const fn len(&self) -> usize {
        self.buffer.bytes.len()
    }

    /// The number of missing bytes.
    pub(crate) const fn missing(&self) -> usize {
        self.length.saturating_sub(self.len())
    }

    /// Appends the next bytes, which must not exceed the missing ones.
    ///
    /// # Errors
    ///
    /// `RESOURCE_EXHAUSTED` if the system is out of memory.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let needed = self.len().saturating_add(bytes.len());
        if needed > self.buffer.bytes.capacity() && !bytes.is_empty() {
            self.make_room(needed)?;
        }
        self.buffer.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Makes room for twice `needed` bytes, or borrows memory for the whole message. From then on,
    /// the whole message is charged. If many messages arrive at once, those that fit in memory are
    /// therefore accepted and the others are refused early.
    fn make_room(&mut self, needed: usize) -> Result<(), Failure> {
        let threshold = loan_threshold(self.length);
        if needed >= threshold {
            self.buffer.charge(self.length)?;
            if self.buffer.borrow(self.length) {
                return Ok(());
            }
        }
        self.buffer.memory.pool.give_way();
        let twice = needed.saturating_mul(2);
        // Below its threshold, a message only gets room up to the threshold, so that this code runs
        // again once the threshold is reached.
        let most = if needed < threshold { threshold } else { self.length };
        self.buffer.charge(most.min(twice).max(needed))?;
        if self.buffer.grow(most.min(twice)) || self.buffer.grow(needed) {
            return Ok(());
        }
        Err(Failure::new(GrpcCode::ResourceExhausted, "the server has no memory for the message"))
    }

    /// Returns the message once nothing is missing.
    pub(crate) fn finish(self) -> Bytes {
        let mut buffer = self.buffer;
        buffer.end_loan();
        if buffer.bytes.capacity() < POOLED_BYTES_MIN && buffer.charge.is_none() {
            return Bytes::from(std::mem::take(&mut buffer.bytes));
        }
        Bytes::from_owner(buffer)
    }
}

/// The memory of a message. It returns to the pool when this value is dropped.
#[derive(Debug)]
struct MessageBuffer {
    bytes: Vec<u8>,
    /// The number of bytes borrowed from the pool while the message is incomplete.
    borrowed: usize,
    /// The charge, which is released when the memory returns to the pool.
    charge: Option<MemoryCharge>,
    memory: MessageMemory,
}

/// The source of message memory, and the account that is charged for it.
#[derive(Clone, Debug)]
pub(crate) struct MessageMemory {
    pub(crate) pool: Arc<MessagePool>,
    pub(crate) account: Arc<MemoryAccount>,
}

impl MessageMemory {
    /// Creates a source without a limit.
    #[cfg(test)]
    pub(crate) fn unlimited() -> Self {
        let account = Arc::new(MemoryAccount::unlimited());
        Self { pool: Arc::new(MessagePool::new(account.ledger().clone())), account }
    }

    /// Returns a message that arrived in one piece, and charges it if it is long.
    pub(crate) fn charged(&self, message: Bytes) -> Result<Bytes, Failure> {
        if message.len() <= MemoryAccount::SMALL_BYTES_MAX {
            return Ok(message);
        }
        Ok(Bytes::from_owner(MemoryCharge::new(&self.account, message.len())?.attach_to(message)))
    }
}

impl MessageBuffer {
    /// Charges this many bytes in total, if the message is long.
    fn charge(&mut self, bytes: usize) -> Result<(), Failure> {
        if bytes > MemoryAccount::SMALL_BYTES_MAX {
            let account = &self.memory.account;
            let charge = self.charge.get_or_insert_with(|| MemoryCharge::nothing(account.clone()));
            charge.grow_to(bytes)?;
        }
        Ok(())
    }

    /// Moves to memory from the pool, if the pool has enough for `length` bytes.
    fn borrow(&mut self, length: usize) -> bool {
        let Some(mut bytes) = self.memory.pool.lend(length) else { return false };
        self.borrowed = bytes.capacity();
        bytes.extend_from_slice(&self.bytes);
        self.bytes = bytes;
        true
    }

    fn grow(&mut self, capacity: usize) -> bool {
        let bytes = &mut self.bytes;
        bytes.try_reserve_exact(capacity.saturating_sub(bytes.len())).is_ok()
    }

    /// Ends the loan because the message is complete or abandoned, so the pool stops counting its
    /// memory.
    fn end_loan(&mut self) {
        self.memory.pool.end_loan(std::mem::take(&mut self.borrowed));
    }
}

impl AsRef<[u8]> for MessageBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for MessageBuffer {
    fn drop(&mut self) {
        self.end_loan();
        if self.bytes.capacity() >= POOLED_BYTES_MIN {
            self.memory.pool.put(std::mem::take(&mut self.bytes));
        }
    }
}

/// The long-message memory that a door keeps.
#[derive(Debug)]
pub(crate) struct MessagePool {
    /// The maximum number of bytes that are kept or lent.
    bytes_max: usize,
    /// The ledger, which is notified when memory is freed.
    ledger: Arc<MemoryLedger>,
    state: Lock<PoolState>,
    /// Notifies its waiter when the pool is no longer empty.
    filled: Notify,
}

#[derive(Debug, Default)]
struct PoolState {
    /// The buffers, oldest first.
    buffers: VecDeque<(Vec<u8>, Period)>,
    bytes: usize,
    /// The number of bytes on loan to incomplete messages.
    lent: usize,
    period: Period,
}

/// Counts the periods after which unused memory is freed.
type Period = u64;

impl MessagePool {
    /// Creates an empty pool that respects this ledger.
    pub(crate) fn new(ledger: Arc<MemoryLedger>) -> Self {
        let share = ledger.limit().map_or(usize::MAX, |limit| limit / POOL_SHARE);
        let bytes_max = POOL_BYTES_MAX.min(share);
        Self { bytes_max, ledger, state: Lock::default(), filled: Notify::new() }
    }

    /// Lends empty memory that suits a message of this length and isn't much larger than needed.
    fn lend(&self, length: usize) -> Option<Vec<u8>> {
        if length < POOLED_BYTES_MIN {
            return None;
        }
        let fitting = length..=length.saturating_mul(2);
        let mut state = self.state.lock("lend memory");
        let index = state.buffers.iter().rposition(|(b, _)| fitting.contains(&b.capacity()))?;
        let (mut bytes, _) = state.buffers.remove(index)?;
        state.bytes = state.bytes.saturating_sub(bytes.capacity());
        state.lent = state.lent.saturating_add(bytes.capacity());
        drop(state);
        bytes.clear();
        Some(bytes)
    }

    fn end_loan(&self, lent: usize) {
        if lent > 0 {
            let mut state = self.state.lock("end a loan");
            state.lent = state.lent.saturating_sub(lent);
        }
    }

    /// Keeps this memory. If kept and lent memory together exceed the maximum, the oldest buffers
    /// are freed.
    fn put(&self, bytes: Vec<u8>) {
        if bytes.capacity() > self.bytes_max {
            return;
        }
        let mut state = self.state.lock("keep memory");
        let is_first = state.buffers.is_empty();
        let period = state.period;
        state.bytes = state.bytes.saturating_add(bytes.capacity());
        state.buffers.push_back((bytes, period));
        let room = self.room();
        let freed =
            state.pop_while(|state, _| state.total() > self.bytes_max || state.bytes > room);
        drop(state);
        // The system may be slow to take memory back, so this runs without the lock.
        drop(freed);
        if is_first {
            self.filled.notify_one();
        }
    }

    /// Frees kept memory that doesn't fit under the ledger's limit together with the charged
    /// memory.
    fn give_way(&self) {
        if self.ledger.limit().is_some() {
            let room = self.room();
            let freed = self.state.lock("give way").pop_while(|state, _| state.bytes > room);
            drop(freed);
        }
    }

    /// The number of bytes that may be kept in addition to charged memory.
    fn room(&self) -> usize {
        let limit = self.ledger.limit().unwrap_or(usize::MAX);
        limit.saturating_sub(self.ledger.held())
    }

    /// Frees memory that was unused for a whole period. Returns true if the pool is empty.
    fn end_period(&self) -> bool {
        let mut state = self.state.lock("end a period");
        let now = state.period;
        let freed = state.pop_while(|_, since| since < now);
        state.period = now.wrapping_add(1);
        let is_empty = state.buffers.is_empty();
        drop(state);
        self.ledger.note_freed(freed.iter().map(Vec::capacity).sum());
        drop(freed);
        is_empty
    }

    /// Frees memory that has not been used for a while.
    pub(crate) async fn shrink_in_time(&self) -> Infallible {
        loop {
            self.filled.notified().await;
            tokio::time::sleep(PERIOD).await;
            while !self.end_period() {
                tokio::time::sleep(PERIOD).await;
            }
        }
    }
}

impl PoolState {
    /// The number of bytes that are kept or lent.
    const fn total(&self) -> usize {
        self.bytes.saturating_add(self.lent)
    }

    /// Removes the oldest memory while `predicate` is true.
    fn pop_while(&mut self, predicate: impl Fn(&Self, Period) -> bool) -> Vec<Vec<u8>> {
        let mut popped = Vec::new();
        while let Some(&(_, since)) = self.buffers.front()
            && predicate(self, since)
            && let Some((bytes, _)) = self.buffers.pop_front()
        {
            self.bytes = self.bytes.saturating_sub(bytes.capacity());
            popped.push(bytes);
        }
        popped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn new_pool() -> Arc<MessagePool> {
        Arc::new(MessagePool::new(Arc::default()))
    }

    fn memory(pool: &Arc<MessagePool>) -> MessageMemory {
        MessageMemory { pool: pool.clone(), account: Arc::new(MemoryAccount::unlimited()) }
    }

    fn begin(pool: &Arc<MessagePool>, length: usize, there: usize) -> PartialMessage {
        let mut part = PartialMessage::new(length, &memory(pool));
        part.push(&vec![7; there]).unwrap();
        part
    }

    fn capacity(part: &PartialMessage) -> usize {
        part.buffer.bytes.capacity()
    }

    /// Creates a complete message of this length.
    fn message(pool: &Arc<MessagePool>, length: usize) -> Bytes {
        begin(pool, length, length).finish()
    }

    /// The number of kept buffers, and their bytes.
    fn pooled(pool: &MessagePool) -> (usize, usize) {
        let state = pool.state.lock("check");
        let bytes: usize = state.buffers.iter().map(|(bytes, _)| bytes.capacity()).sum();
        assert_eq!(state.bytes, bytes);
        assert!(state.total() <= POOL_BYTES_MAX);
        (state.buffers.len(), bytes)
    }

    /// Covers the CVE-2025-23331 attack and the cost of an arriving message.
    #[test]
    fn memory_follows_the_bytes() {
        for (length, piece) in [(3 * MIB, 999), (16 * MIB, 16_384), (40 * MIB, MIB), (70, 3)] {
            let mut part = PartialMessage::new(length, &memory(&new_pool()));
            part.push(&[]).unwrap();
            assert_eq!(capacity(&part), 0);
            let sent: Vec<u8> =
                (0..length).map(|place| u8::try_from(place % 251).unwrap()).collect();
            let mut moves = 0;
            for bytes in sent.chunks(piece) {
                let before = capacity(&part);
                part.push(bytes).unwrap();
                assert!(capacity(&part) <= (2 * part.len()).min(length));
                moves += usize::from(capacity(&part) != before);
            }
            // A move happens once per doubling and once at the threshold.
            assert!(moves <= 2 + (length / piece).ilog2() as usize, "{moves}");
            assert!(part.finish() == sent);
        }
    }

    #[test]
    fn a_message_borrows_memory_for_its_whole_length_at_the_threshold() {
        let pool = new_pool();
        let place = {
            let first = message(&pool, 3 * MIB);
            first.as_ptr()
        };
        let mut part = begin(&pool, 3 * MIB, loan_threshold(3 * MIB) - 1);
        assert_eq!((part.buffer.borrowed, capacity(&part)), (0, loan_threshold(3 * MIB)));
        part.push(&[7]).unwrap();
        assert_eq!(part.buffer.borrowed, 0);
        part.push(&[7]).unwrap();
        assert_eq!((part.buffer.borrowed, pool.state.lock("check").lent), (3 * MIB, 3 * MIB));
        let there = part.len();
        part.push(&vec![8; part.missing()]).unwrap();
        let message = part.finish();
        assert_eq!((message.as_ptr(), pool.state.lock("check").lent), (place, 0));
        let (first, rest) = message.split_at(there);
        assert!(first.iter().all(|&byte| byte == 7) && rest.iter().all(|&byte| byte == 8));
    }

    /// A message that grew by itself borrows memory later, if any is available.
    #[test]
    fn memory_that_other_messages_return_is_used() {
        let pool = new_pool();
        let others = message(&pool, 3 * MIB);
        let mut part = begin(&pool, 2 * MIB, MIB);
        assert_eq!((part.buffer.borrowed, capacity(&part)), (0, 2 * MIB));
        let mut later = begin(&pool, 2 * MIB, 500_000);
        let place = others.as_ptr();
        drop(others);
        // The message has room for its whole length and needs no more.
        part.push(&[7; 100]).unwrap();
        assert_eq!(part.buffer.borrowed, 0);
        later.push(&vec![7; 500_001]).unwrap();
        assert_eq!((later.buffer.bytes.as_ptr(), later.buffer.borrowed), (place, 3 * MIB));
        assert!(later.len() == 1_000_001 && later.buffer.bytes.iter().all(|&byte| byte == 7));
    }

    #[test]
    fn announced_lengths_take_nothing_from_the_pool() {
        let pool = new_pool();
        drop(message(&pool, 60 * MIB));
        let parts: Vec<PartialMessage> = (0..1000).map(|_| begin(&pool, 60 * MIB, 100)).collect();
        assert_eq!(parts.iter().map(capacity).sum::<usize>(), 1000 * 200);
        assert_eq!(pooled(&pool), (1, 60 * MIB));
    }

    /// Some clients send long messages continuously while others hold theirs back. In addition to
    /// lent and kept memory, a message uses at most twice the bytes that have arrived.
    #[test]
    fn lent_and_kept_memory_is_bounded_together() {
        let pool = new_pool();
        let mut held_back = Vec::new();
        for _ in 0..20 {
            drop((message(&pool, 20 * MIB), message(&pool, 20 * MIB)));
            held_back.push(begin(&pool, 20 * MIB, 2 * MIB));
            pooled(&pool);
        }
        let (lent, own): (Vec<PartialMessage>, _) =
            held_back.into_iter().partition(|part| part.buffer.borrowed > 0);
        assert_eq!((lent.len(), pool.state.lock("check").lent), (3, 60 * MIB));
        assert!(own.iter().all(|part| capacity(part) == 4 * MIB));
        assert_eq!(pooled(&pool), (0, 0));
        // The loan ends when a message is complete or abandoned.
        let mut lent = lent.into_iter();
        let mut first = lent.next().unwrap();
        first.push(&vec![7; first.missing()]).unwrap();
        let first = first.finish();
        assert_eq!(pool.state.lock("check").lent, 40 * MIB);
        drop((first, lent));
        assert_eq!(pool.state.lock("check").lent, 0);
        assert_eq!(pooled(&pool), (3, 60 * MIB));
    }

    #[test]
    fn memory_of_long_messages_is_reused() {
        let pool = new_pool();
        let first = message(&pool, 2 * MIB);
        let place = first.as_ptr();
        assert_eq!(pooled(&pool), (0, 0));
        drop(first);
        assert_eq!(pooled(&pool), (1, 2 * MIB));
        // The memory suits neither longer nor much shorter messages.
        assert_ne!(begin(&pool, 2 * MIB + 1, 2 * MIB).buffer.bytes.as_ptr(), place);
        drop((message(&pool, MIB - 1), message(&pool, POOLED_BYTES_MIN - 1)));
        assert_eq!(pooled(&pool).0, 3);
        let second = message(&pool, MIB);
        assert_eq!((second.as_ptr(), second.len()), (place, MIB));
        assert!(second.iter().all(|&byte| byte == 7));
        // A slice keeps the whole message alive.
        let slice = second.slice(5..6);
        drop(second);
        assert_eq!(pooled(&pool).0, 2);
        drop(slice);
        assert_eq!(pooled(&pool).0, 3);
    }

    #[test]
    fn the_newest_memory_is_kept_within_the_bound() {
        let pool = new_pool();
        drop((0..10).map(|_| message(&pool, 10 * MIB)).collect::<Vec<_>>());
        assert_eq!(pooled(&pool), (6, 60 * MIB));
        drop(message(&pool, POOL_BYTES_MAX + 1));
        assert_eq!(pooled(&pool), (6, 60 * MIB));
        drop(message(&pool, POOL_BYTES_MAX));
        assert_eq!(pooled(&pool), (1, POOL_BYTES_MAX));
    }

    #[test]
    fn unused_memory_is_freed() {
        let pool = new_pool();
        let messages = [message(&pool, MIB), message(&pool, MIB)];
        assert!(pool.end_period());
        drop(messages);
        assert!(!pool.end_period());
        // One of the two was in use again, and is kept for longer.
        drop(message(&pool, MIB));
        assert!(!pool.end_period());
        assert_eq!(pooled(&pool), (1, MIB));
        assert!(pool.end_period());
        assert_eq!(pooled(&pool), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_door_keeps_nothing() {
        let pool = new_pool();
        let idle = async {
            for _ in 0..3 {
                drop(message(&pool, MIB));
                // sleep: the clock is paused
                tokio::time::sleep(PERIOD - Duration::from_millis(1)).await;
                assert_eq!(pooled(&pool).0, 1);
                // sleep: the clock is paused
                tokio::time::sleep(PERIOD + Duration::from_millis(2)).await;
                assert_eq!(pooled(&pool).0, 0);
            }
        };
        tokio::select! {
            never = pool.shrink_in_time() => match never {},
            () = idle => {}
        }
    }

    #[test]
    fn kept_memory_gives_way_near_the_limit() {
        let ledger = Arc::new(MemoryLedger::new(Some(40 * MIB)));
        let account = Arc::new(MemoryAccount::without_base(ledger.clone()));
        let pool = Arc::new(MessagePool::new(ledger.clone()));
        let memory = MessageMemory { pool: pool.clone(), account: account.clone() };
        let send = |length| {
            let mut part = PartialMessage::new(length, &memory);
            part.push(&vec![7; length]).unwrap();
            part.finish()
        };
        let others = MemoryCharge::new(&account, 36 * MIB).unwrap();
        drop(send(3 * MIB));
        assert_eq!(pooled(&pool), (0, 0), "held until it is freed, and kept, are too much");
        drop(others);
        drop(send(3 * MIB));
        assert_eq!(pooled(&pool), (1, 3 * MIB));
        // Another message needs the memory.
        let others = MemoryCharge::new(&account, 36 * MIB).unwrap();
        drop(send(2 * MIB));
        assert_eq!(pooled(&pool), (0, 0));
        drop(others);
        assert_eq!(ledger.held(), account.held());
    }

    #[test]
    fn a_message_is_charged_before_its_memory_is_allocated() {
        let ledger = Arc::new(MemoryLedger::new(Some(10 * MIB)));
        let account = Arc::new(MemoryAccount::without_base(ledger.clone()));
        let memory = MessageMemory { pool: Arc::new(MessagePool::new(ledger.clone())), account };
        let begin = |there: usize| {
            let mut part = PartialMessage::new(8 * MIB, &memory);
            part.push(&vec![7; there]).map(|()| part)
        };
        // Below the threshold, only the received bytes are charged; beyond it, the whole message
        // is.
        let below = begin(200_000).unwrap();
        assert_eq!(ledger.held(), 400_000);
        let first = begin(loan_threshold(8 * MIB)).unwrap();
        assert_eq!(ledger.held(), 8 * MIB + 400_000);
        let failure = begin(loan_threshold(8 * MIB)).unwrap_err();
        assert_eq!(failure.code, GrpcCode::ResourceExhausted);
        assert!(failure.retry_after_secs.is_some(), "{failure:?}");
        drop(below);
        let mut first = first;
        first.push(&vec![7; first.missing()]).unwrap();
        let slice = first.finish().slice(5..6);
        assert_eq!(ledger.held(), 8 * MIB);
        // This buffer exceeds an eighth of the limit, so it isn't kept.
        drop(slice);
        assert!(ledger.held() == 0 && pooled(&memory.pool).1 <= 10 * MIB / POOL_SHARE);
        let single = memory.charged(Bytes::from(vec![7; 100_000])).unwrap();
        assert_eq!(ledger.held(), 100_000);
        drop(single);
        assert_eq!(ledger.held(), 0);
    }
}
