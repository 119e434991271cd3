//! The memory that messages in several pieces are put together in.
//!
//! A client announces a message's length before any of it is there, and may never
//! send the rest. So memory follows the bytes: it is at most twice of what is there.
//! Growing copies what is there, at most the message's length in all, and nothing
//! where the system moves pages.
//!
//! Touching fresh memory is what costs: the system makes it page by page, and
//! takes it back when a long message is freed. So the door keeps the memory of
//! some long messages for the next ones, and frees what nobody took for a while.
//! Of that a message has its whole length as soon as a share of it is there
//! ([`share`]), and neither grows nor touches anything for the first time.
//! What the door keeps and what it lent to messages that are not whole is
//! [`KEPT_BYTES_MAX`] at most, whoever else sends long messages meanwhile. That
//! is all that can be had by holding messages back, beside twice of what was sent.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use galatea_codec::grpc::GrpcCode;
use tokio::sync::Notify;

use crate::answer::Failure;

/// The memory of shorter messages is not kept: the allocator has some.
const KEPT_LEAST_BYTES: usize = 128 << 10;
/// How much memory is kept that nobody uses, or lent to messages that are not
/// whole.
const KEPT_BYTES_MAX: usize = 64 << 20;
/// How long memory is kept that nobody uses, at least; at most twice as long.
const PERIOD: Duration = Duration::from_secs(5);

/// The part of a message that there must be of it at least...
const SHARE: usize = 16;
/// ...or so much, before it is lent what others could use.
const SHARE_BYTES_MAX: usize = 2 << 20;

/// How much of a message must be there before it is lent memory for all of it.
fn share(length: usize) -> usize {
    (length / SHARE).min(SHARE_BYTES_MAX)
}

/// A message of which a part is there.
#[derive(Debug)]
pub(crate) struct Part {
    length: usize,
    buffer: Buffer,
}

impl Part {
    /// Begins a message of this length; takes no memory yet.
    pub(crate) fn new(length: usize, kept: &Arc<Kept>) -> Self {
        let buffer = Buffer { bytes: Vec::new(), lent: 0, kept: kept.clone() };
        Self { length, buffer }
    }

    /// How much is there.
    pub(crate) const fn len(&self) -> usize {
        self.buffer.bytes.len()
    }

    /// How much is to come.
    pub(crate) const fn missing(&self) -> usize {
        self.length.saturating_sub(self.len())
    }

    /// Takes the next bytes, at most those that are missing.
    ///
    /// # Errors
    ///
    /// `RESOURCE_EXHAUSTED` if the system has no memory.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let there = self.len().saturating_add(bytes.len());
        if there > self.buffer.bytes.capacity() && !bytes.is_empty() {
            self.make_room(there)?;
        }
        self.buffer.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Takes memory for this many bytes and as many again, or is lent some for all.
    fn make_room(&mut self, there: usize) -> Result<(), Failure> {
        let share = share(self.length);
        if there >= share && self.buffer.borrow(self.length) {
            return Ok(());
        }
        let twice = there.saturating_mul(2);
        // One that is below its share asks again as soon as that is there.
        let most = if there < share { share } else { self.length };
        if self.buffer.grow(most.min(twice)) || self.buffer.grow(there) {
            return Ok(());
        }
        Err(Failure::new(GrpcCode::ResourceExhausted, "the server has no memory for the message"))
    }

    /// The message, once nothing is missing.
    pub(crate) fn finish(self) -> Bytes {
        let mut buffer = self.buffer;
        buffer.end_loan();
        if buffer.bytes.capacity() < KEPT_LEAST_BYTES {
            return Bytes::from(std::mem::take(&mut buffer.bytes));
        }
        Bytes::from_owner(buffer)
    }
}

/// A message's memory, on its way back to where it may be kept.
#[derive(Debug)]
struct Buffer {
    bytes: Vec<u8>,
    /// How much of what was kept this is, while the message is not whole.
    lent: usize,
    kept: Arc<Kept>,
}

impl Buffer {
    /// Moves to memory that was kept, if there is some for so many bytes.
    fn borrow(&mut self, length: usize) -> bool {
        let Some(mut bytes) = self.kept.take(length) else { return false };
        self.lent = bytes.capacity();
        bytes.extend_from_slice(&self.bytes);
        self.bytes = bytes;
        true
    }

    fn grow(&mut self, capacity: usize) -> bool {
        let bytes = &mut self.bytes;
        bytes.try_reserve_exact(capacity.saturating_sub(bytes.len())).is_ok()
    }

    /// The memory has its bytes, and is counted where they are.
    fn end_loan(&mut self) {
        self.kept.end_loan(std::mem::take(&mut self.lent));
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.end_loan();
        if self.bytes.capacity() >= KEPT_LEAST_BYTES {
            self.kept.give_back(std::mem::take(&mut self.bytes));
        }
    }
}

/// The memory that a door keeps.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    state: Mutex<State>,
    /// Told when there is something.
    filled: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The one given back last is behind the others.
    buffers: VecDeque<(Vec<u8>, Period)>,
    bytes: usize,
    /// What was taken by messages that are not whole.
    lent: usize,
    period: Period,
}

/// Counts the looks at what is kept.
type Period = u64;

impl Kept {
    /// Lends memory for a message of this length, empty, and not much more.
    fn take(&self, length: usize) -> Option<Vec<u8>> {
        if length < KEPT_LEAST_BYTES {
            return None;
        }
        let fitting = length..=length.saturating_mul(2);
        let mut state = self.lock();
        let place = state.buffers.iter().rposition(|(b, _)| fitting.contains(&b.capacity()))?;
        let (mut bytes, _) = state.buffers.remove(place)?;
        state.bytes = state.bytes.saturating_sub(bytes.capacity());
        state.lent = state.lent.saturating_add(bytes.capacity());
        drop(state);
        bytes.clear();
        Some(bytes)
    }

    fn end_loan(&self, lent: usize) {
        if lent > 0 {
            let mut state = self.lock();
            state.lent = state.lent.saturating_sub(lent);
        }
    }

    /// Keeps memory, and lets go of some that was kept for longer, if that is too
    /// much beside what is lent.
    fn give_back(&self, bytes: Vec<u8>) {
        if bytes.capacity() > KEPT_BYTES_MAX {
            return;
        }
        let mut state = self.lock();
        let is_first = state.buffers.is_empty();
        let period = state.period;
        state.bytes = state.bytes.saturating_add(bytes.capacity());
        state.buffers.push_back((bytes, period));
        let let_go = state.pop_while(|state, _| state.in_all() > KEPT_BYTES_MAX);
        drop(state);
        // The system takes memory back in its own time, so nobody waits for it.
        drop(let_go);
        if is_first {
            self.filled.notify_one();
        }
    }

    /// Frees what was kept for a whole period; returns whether that was all.
    fn end_period(&self) -> bool {
        let mut state = self.lock();
        let now = state.period;
        let let_go = state.pop_while(|_, since| since < now);
        state.period = now.wrapping_add(1);
        let is_empty = state.buffers.is_empty();
        drop(state);
        drop(let_go);
        is_empty
    }

    /// Frees in time what nobody takes.
    pub(crate) async fn free_in_time(&self) -> Infallible {
        loop {
            self.filled.notified().await;
            tokio::time::sleep(PERIOD).await;
            while !self.end_period() {
                tokio::time::sleep(PERIOD).await;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    const fn in_all(&self) -> usize {
        self.bytes.saturating_add(self.lent)
    }

    /// Takes the oldest out for as long as `wanted` says so.
    fn pop_while(&mut self, wanted: impl Fn(&Self, Period) -> bool) -> Vec<Vec<u8>> {
        let mut popped = Vec::new();
        while let Some(&(_, since)) = self.buffers.front()
            && wanted(self, since)
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

    fn begin(kept: &Arc<Kept>, length: usize, there: usize) -> Part {
        let mut part = Part::new(length, kept);
        part.push(&vec![7; there]).unwrap();
        part
    }

    fn capacity(part: &Part) -> usize {
        part.buffer.bytes.capacity()
    }

    /// A whole message of this length.
    fn message(kept: &Arc<Kept>, length: usize) -> Bytes {
        begin(kept, length, length).finish()
    }

    /// How many buffers are kept, and what they are together.
    fn in_store(kept: &Kept) -> (usize, usize) {
        let state = kept.lock();
        let bytes: usize = state.buffers.iter().map(|(bytes, _)| bytes.capacity()).sum();
        assert_eq!(state.bytes, bytes);
        assert!(state.in_all() <= KEPT_BYTES_MAX);
        (state.buffers.len(), bytes)
    }

    /// The shape of CVE-2025-23331, and what a message costs that comes.
    #[test]
    fn memory_follows_the_bytes() {
        for (length, piece) in [(3 * MIB, 999), (16 * MIB, 16_384), (40 * MIB, MIB), (70, 3)] {
            let mut part = Part::new(length, &Arc::default());
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
            // Once for each time that it doubles, and once at the share.
            assert!(moves <= 2 + (length / piece).ilog2() as usize, "{moves}");
            assert!(part.finish() == sent);
        }
    }

    #[test]
    fn a_message_of_which_a_share_is_there_is_lent_memory_for_all() {
        let kept = Arc::default();
        let place = {
            let first = message(&kept, 3 * MIB);
            first.as_ptr()
        };
        let mut part = begin(&kept, 3 * MIB, share(3 * MIB) - 1);
        assert_eq!((part.buffer.lent, capacity(&part)), (0, share(3 * MIB)));
        part.push(&[7]).unwrap();
        assert_eq!(part.buffer.lent, 0);
        part.push(&[7]).unwrap();
        assert_eq!((part.buffer.lent, kept.lock().lent), (3 * MIB, 3 * MIB));
        let there = part.len();
        part.push(&vec![8; part.missing()]).unwrap();
        let message = part.finish();
        assert_eq!((message.as_ptr(), kept.lock().lent), (place, 0));
        let (first, rest) = message.split_at(there);
        assert!(first.iter().all(|&byte| byte == 7) && rest.iter().all(|&byte| byte == 8));
    }

    /// One that grew by itself is lent memory later, if there is some then.
    #[test]
    fn what_others_leave_is_used() {
        let kept = Arc::default();
        let others = message(&kept, 3 * MIB);
        let mut part = begin(&kept, 2 * MIB, MIB);
        assert_eq!((part.buffer.lent, capacity(&part)), (0, 2 * MIB));
        let mut later = begin(&kept, 2 * MIB, 500_000);
        let place = others.as_ptr();
        drop(others);
        // It has its whole length, and needs none.
        part.push(&[7; 100]).unwrap();
        assert_eq!(part.buffer.lent, 0);
        later.push(&vec![7; 500_001]).unwrap();
        assert_eq!((later.buffer.bytes.as_ptr(), later.buffer.lent), (place, 3 * MIB));
        assert!(later.len() == 1_000_001 && later.buffer.bytes.iter().all(|&byte| byte == 7));
    }

    #[test]
    fn announcements_take_nothing_that_was_kept() {
        let kept = Arc::default();
        drop(message(&kept, 60 * MIB));
        let parts: Vec<Part> = (0..1000).map(|_| begin(&kept, 60 * MIB, 100)).collect();
        assert_eq!(parts.iter().map(capacity).sum::<usize>(), 1000 * 200);
        assert_eq!(in_store(&kept), (1, 60 * MIB));
    }

    /// Others send long messages all the time, and some hold theirs back: beside
    /// what is lent and kept, a message takes at most twice of what is there.
    #[test]
    fn what_is_lent_and_kept_is_bounded_together() {
        let kept = Arc::default();
        let mut held_back = Vec::new();
        for _ in 0..20 {
            drop((message(&kept, 20 * MIB), message(&kept, 20 * MIB)));
            held_back.push(begin(&kept, 20 * MIB, 2 * MIB));
            in_store(&kept);
        }
        let (lent, own): (Vec<Part>, _) =
            held_back.into_iter().partition(|part| part.buffer.lent > 0);
        assert_eq!((lent.len(), kept.lock().lent), (3, 60 * MIB));
        assert!(own.iter().all(|part| capacity(part) == 4 * MIB));
        assert_eq!(in_store(&kept), (0, 0));
        // One that comes whole is lent no longer, and so is one that is given up.
        let mut lent = lent.into_iter();
        let mut first = lent.next().unwrap();
        first.push(&vec![7; first.missing()]).unwrap();
        let first = first.finish();
        assert_eq!(kept.lock().lent, 40 * MIB);
        drop((first, lent));
        assert_eq!(kept.lock().lent, 0);
        assert_eq!(in_store(&kept), (3, 60 * MIB));
    }

    #[test]
    fn the_memory_of_long_messages_is_used_again() {
        let kept = Arc::default();
        let first = message(&kept, 2 * MIB);
        let place = first.as_ptr();
        assert_eq!(in_store(&kept), (0, 0));
        drop(first);
        assert_eq!(in_store(&kept), (1, 2 * MIB));
        // Neither for what is longer nor for what is much shorter.
        assert_ne!(begin(&kept, 2 * MIB + 1, 2 * MIB).buffer.bytes.as_ptr(), place);
        drop((message(&kept, MIB - 1), message(&kept, KEPT_LEAST_BYTES - 1)));
        assert_eq!(in_store(&kept).0, 3);
        let second = message(&kept, MIB);
        assert_eq!((second.as_ptr(), second.len()), (place, MIB));
        assert!(second.iter().all(|&byte| byte == 7));
        // A slice keeps all of it.
        let slice = second.slice(5..6);
        drop(second);
        assert_eq!(in_store(&kept).0, 2);
        drop(slice);
        assert_eq!(in_store(&kept).0, 3);
    }

    #[test]
    fn what_is_kept_is_bounded_and_the_newest() {
        let kept = Arc::default();
        drop((0..10).map(|_| message(&kept, 10 * MIB)).collect::<Vec<_>>());
        assert_eq!(in_store(&kept), (6, 60 * MIB));
        drop(message(&kept, KEPT_BYTES_MAX + 1));
        assert_eq!(in_store(&kept), (6, 60 * MIB));
        drop(message(&kept, KEPT_BYTES_MAX));
        assert_eq!(in_store(&kept), (1, KEPT_BYTES_MAX));
    }

    #[test]
    fn what_nobody_takes_is_freed() {
        let kept = Arc::default();
        let messages = [message(&kept, MIB), message(&kept, MIB)];
        assert!(kept.end_period());
        drop(messages);
        assert!(!kept.end_period());
        // One of the two is in use again, and is kept for longer.
        drop(message(&kept, MIB));
        assert!(!kept.end_period());
        assert_eq!(in_store(&kept), (1, MIB));
        assert!(kept.end_period());
        assert_eq!(in_store(&kept), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_door_keeps_nothing() {
        let kept = Arc::default();
        let idle = async {
            for _ in 0..3 {
                drop(message(&kept, MIB));
                tokio::time::sleep(PERIOD - Duration::from_millis(1)).await;
                assert_eq!(in_store(&kept).0, 1);
                tokio::time::sleep(PERIOD + Duration::from_millis(2)).await;
                assert_eq!(in_store(&kept).0, 0);
            }
        };
        tokio::select! {
            never = kept.free_in_time() => match never {},
            () = idle => {}
        }
    }
}
