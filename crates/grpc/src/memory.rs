//! The memory that messages in several pieces are put together in.
//!
//! A client announces a message's length before any of it is there, and may never
//! send the rest. So memory follows the bytes at first: at most twice of what is
//! there. When a share of the message has come ([`share`]), it gets memory for
//! its whole length, which saves the copies of a buffer that grows. A connection
//! may have [`RESERVED_BYTES_MAX`] of such memory for messages that are not whole;
//! beyond that it goes on following the bytes.
//!
//! Touching fresh memory is what costs: the system makes it page by page, and
//! takes it back when a long message is freed. So the door keeps the memory of
//! some long messages for the next ones, and frees what nobody took for a while.
//! What it keeps and what it lent to messages that are not whole is
//! [`KEPT_BYTES_MAX`] at most, whoever else sends long messages meanwhile. That
//! is all that can be had of it by holding messages back.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use galatea_codec::grpc::GrpcCode;
use tokio::sync::Notify;

use crate::answer::Failure;

/// The memory that a connection's messages may have before they are whole, beside
/// what follows the bytes. This is what 4,096 calls would take of 64 KiB each.
const RESERVED_BYTES_MAX: usize = 256 << 20;
/// The memory of shorter messages is not kept: the allocator has some.
const KEPT_LEAST_BYTES: usize = 128 << 10;
/// How much memory is kept that nobody uses, or lent to messages that are not
/// whole.
const KEPT_BYTES_MAX: usize = 64 << 20;
/// How long memory is kept that nobody uses, at least; at most twice as long.
const PERIOD: Duration = Duration::from_secs(5);

/// The part of a message that there must be of it at least...
const SHARE: usize = 16;
/// ...or so much. Memory for messages of more than sixteen times this comes fresh
/// from the system; what is shorter may come from what the allocator has, and
/// that was touched before.
const SHARE_BYTES_MAX: usize = 2 << 20;

/// How much of a message must be there before it gets memory for all of it.
fn share(length: usize) -> usize {
    (length / SHARE).min(SHARE_BYTES_MAX)
}

/// What a connection's messages are put together in.
#[derive(Debug)]
pub(crate) struct Memory {
    kept: Arc<Kept>,
    /// The memory of the messages that have all of it and are not whole.
    reserved: AtomicUsize,
    reserved_max: usize,
}

impl Memory {
    pub(crate) const fn new(kept: Arc<Kept>) -> Self {
        Self { kept, reserved: AtomicUsize::new(0), reserved_max: RESERVED_BYTES_MAX }
    }

    /// How much may still be reserved. Only the connection's task does that.
    fn room(&self) -> usize {
        self.reserved_max.saturating_sub(self.reserved.load(Ordering::Relaxed))
    }

    /// Counts a message's memory, for which there is room.
    fn reserve(self: &Arc<Self>, bytes: usize) -> Reserved {
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
        Reserved { memory: self.clone(), bytes }
    }
}

/// A message's memory, counted for as long as this exists.
#[derive(Debug)]
struct Reserved {
    memory: Arc<Memory>,
    bytes: usize,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.memory.reserved.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A message of which a part is there.
#[derive(Debug)]
pub(crate) struct Part {
    length: usize,
    buffer: Buffer,
    reserved: Option<Reserved>,
    memory: Arc<Memory>,
}

impl Part {
    /// Begins a message of this length; takes no memory yet.
    pub(crate) fn new(length: usize, memory: &Arc<Memory>) -> Self {
        let buffer = Buffer { bytes: Vec::new(), lent: 0, kept: memory.kept.clone() };
        Self { length, buffer, reserved: None, memory: memory.clone() }
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

    /// Takes memory for this many bytes, or for all if enough is there.
    fn make_room(&mut self, there: usize) -> Result<(), Failure> {
        let share = share(self.length);
        if there >= share && self.reserved.is_none() && self.take_all(share) {
            return Ok(());
        }
        let twice = there.saturating_mul(2);
        // One that is below its share will move, or grow to its whole length.
        let most = if there < share { share } else { self.length };
        if self.grow(most.min(twice)) || self.grow(there) {
            return Ok(());
        }
        Err(Failure::new(GrpcCode::ResourceExhausted, "the server has no memory for the message"))
    }

    /// Takes memory for the whole message, if that may be.
    fn take_all(&mut self, share: usize) -> bool {
        let room = self.memory.room();
        if self.length > room {
            return false;
        }
        // Where little is there, moving it costs less than touching fresh memory.
        let most = self.length.saturating_mul(2).min(room);
        let kept = &self.memory.kept;
        if self.len() <= share
            && let Some(mut bytes) = kept.take(self.length, most)
        {
            self.buffer.lent = bytes.capacity();
            bytes.extend_from_slice(&self.buffer.bytes);
            self.buffer.bytes = bytes;
        } else if !self.grow(self.length) {
            return false;
        }
        self.reserved = Some(self.memory.reserve(self.buffer.bytes.capacity()));
        true
    }

    fn grow(&mut self, capacity: usize) -> bool {
        let bytes = &mut self.buffer.bytes;
        bytes.try_reserve_exact(capacity.saturating_sub(bytes.len())).is_ok()
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
    /// Lends memory for a message of this length, empty, and not more than `most`.
    fn take(&self, length: usize, most: usize) -> Option<Vec<u8>> {
        if length < KEPT_LEAST_BYTES {
            return None;
        }
        let fitting = length..=most;
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

    fn memory() -> Arc<Memory> {
        Arc::new(Memory::new(Arc::default()))
    }

    fn begin(memory: &Arc<Memory>, length: usize, there: usize) -> Part {
        let mut part = Part::new(length, memory);
        part.push(&vec![7; there]).unwrap();
        part
    }

    fn capacity(part: &Part) -> usize {
        part.buffer.bytes.capacity()
    }

    /// A whole message of this length.
    fn message(memory: &Arc<Memory>, length: usize) -> Bytes {
        begin(memory, length, length).finish()
    }

    fn kept(memory: &Memory) -> (usize, usize) {
        let state = memory.kept.lock();
        let bytes: usize = state.buffers.iter().map(|(bytes, _)| bytes.capacity()).sum();
        assert_eq!(state.bytes, bytes);
        assert!(state.in_all() <= KEPT_BYTES_MAX);
        (state.buffers.len(), bytes)
    }

    #[test]
    fn a_message_has_its_memory_when_a_share_is_there() {
        let memory = memory();
        let mut part = Part::new(3 * MIB, &memory);
        part.push(&[]).unwrap();
        assert_eq!(capacity(&part), 0);
        part.push(&[1; 1000]).unwrap();
        assert_eq!(capacity(&part), 2000);
        part.push(&vec![1; share(3 * MIB) - 1001]).unwrap();
        assert_eq!(capacity(&part), share(3 * MIB));
        assert_eq!(memory.reserved.load(Ordering::Relaxed), 0);
        part.push(&[1; 2]).unwrap();
        let place = part.buffer.bytes.as_ptr();
        assert_eq!(capacity(&part), 3 * MIB);
        assert_eq!(memory.reserved.load(Ordering::Relaxed), 3 * MIB);
        let ones = part.len();
        while part.missing() > 0 {
            part.push(&vec![2; part.missing().min(100_000)]).unwrap();
        }
        let message = part.finish();
        assert_eq!((message.len(), message.as_ptr()), (3 * MIB, place));
        let (first, rest) = message.split_at(ones);
        assert!(first.iter().all(|&byte| byte == 1) && rest.iter().all(|&byte| byte == 2));
        assert_eq!(memory.reserved.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn announcements_take_nothing_that_was_kept() {
        let memory = memory();
        drop(message(&memory, 60 * MIB));
        let mut parts: Vec<Part> = (0..1000).map(|_| begin(&memory, 60 * MIB, 100)).collect();
        assert_eq!(parts.iter().map(capacity).sum::<usize>(), 1000 * 200);
        assert_eq!(kept(&memory), (1, 60 * MIB));
        // The first that sends some of it gets it, with what it had.
        let part = &mut parts[7];
        part.push(&[7; SHARE_BYTES_MAX]).unwrap();
        assert_eq!(part.buffer.lent, 60 * MIB);
        assert!(part.len() == 100 + SHARE_BYTES_MAX);
        assert!(part.buffer.bytes.iter().all(|&byte| byte == 7));
        assert_eq!(kept(&memory), (0, 0));
    }

    /// Others send long messages all the time, and some hold theirs back.
    #[test]
    fn what_is_lent_and_kept_is_bounded_together() {
        let kept_by_door = Arc::<Kept>::default();
        let memories = [(); 5].map(|()| Arc::new(Memory::new(kept_by_door.clone())));
        let mut held_back = Vec::new();
        for memory in memories.iter().cycle().take(20) {
            drop((message(memory, 20 * MIB), message(memory, 20 * MIB)));
            held_back.push(begin(memory, 20 * MIB, 2 * MIB));
            kept(memory);
        }
        let lent: usize = held_back.iter().map(|part| part.buffer.lent).sum();
        assert_eq!((lent, kept_by_door.lock().lent), (60 * MIB, 60 * MIB));
        assert_eq!(kept(&memories[0]), (0, 0));
        // One that comes whole is lent no longer, and so is one that is given up.
        held_back.retain(|part| part.buffer.lent > 0);
        let mut first = held_back.remove(0);
        first.push(&vec![7; first.missing()]).unwrap();
        let first = first.finish();
        assert_eq!(kept_by_door.lock().lent, 40 * MIB);
        drop((first, held_back));
        assert_eq!(kept_by_door.lock().lent, 0);
        assert_eq!(kept(&memories[0]), (3, 60 * MIB));
    }

    #[test]
    fn what_is_reserved_is_bounded() {
        let memory = memory();
        let parts: Vec<Part> = (0..5).map(|_| begin(&memory, 100 * MIB, 3 * MIB)).collect();
        let taken: Vec<usize> = parts.iter().map(|part| capacity(part) / MIB).collect();
        assert_eq!(taken, [100, 100, 6, 6, 6]);
        drop(parts);
        let most = begin(&memory, RESERVED_BYTES_MAX, SHARE_BYTES_MAX);
        assert_eq!(capacity(&most), RESERVED_BYTES_MAX);
    }

    /// What was kept may be longer than the message, and counts as what it is.
    #[test]
    fn the_capacity_is_reserved() {
        let mut memory = Memory::new(Arc::default());
        memory.reserved_max = 5 * MIB;
        let memory = Arc::new(memory);
        drop((message(&memory, 4 * MIB), message(&memory, 4 * MIB)));
        let first = begin(&memory, 2 * MIB, MIB);
        assert_eq!(capacity(&first), 4 * MIB);
        assert_eq!(memory.reserved.load(Ordering::Relaxed), 4 * MIB);
        // There is room for this one's length, but not for what is kept.
        let second = begin(&memory, MIB, 100_000);
        assert_eq!((capacity(&second), second.buffer.lent), (MIB, 0));
        assert_eq!(capacity(&begin(&memory, MIB, 100_000)), 200_000);
        drop((first, second));
        assert_eq!(memory.reserved.load(Ordering::Relaxed), 0);
    }

    /// The shape of CVE-2025-23331.
    #[test]
    fn without_a_reservation_memory_follows_the_bytes() {
        let memory = memory();
        let mut part = begin(&memory, RESERVED_BYTES_MAX + 1, 10);
        assert_eq!(capacity(&part), 20);
        for _ in 0..100 {
            part.push(&[7; 999]).unwrap();
            assert!(capacity(&part) <= 2 * part.len());
        }
        assert_eq!(part.len(), 10 + 100 * 999);
    }

    /// One that began small may get the rest when there is room.
    #[test]
    fn room_that_others_leave_is_used() {
        let memory = memory();
        let first = begin(&memory, RESERVED_BYTES_MAX, SHARE_BYTES_MAX);
        let mut second = begin(&memory, MIB, 100_000);
        assert_eq!(capacity(&second), 200_000);
        drop(first);
        second.push(&[7; 100_001]).unwrap();
        assert_eq!(capacity(&second), MIB);
        assert!(second.buffer.bytes.iter().all(|&byte| byte == 7));
    }

    #[test]
    fn the_memory_of_long_messages_is_used_again() {
        let memory = memory();
        let first = message(&memory, 2 * MIB);
        let place = first.as_ptr();
        assert_eq!(kept(&memory), (0, 0));
        drop(first);
        assert_eq!(kept(&memory), (1, 2 * MIB));
        // Neither for what is longer nor for what is much shorter.
        assert_ne!(begin(&memory, 2 * MIB + 1, MIB).buffer.bytes.as_ptr(), place);
        drop((message(&memory, MIB - 1), message(&memory, KEPT_LEAST_BYTES - 1)));
        assert_eq!(kept(&memory).0, 3);
        let second = message(&memory, MIB);
        assert_eq!((second.as_ptr(), second.len()), (place, MIB));
        assert!(second.iter().all(|&byte| byte == 7));
        // A slice keeps all of it.
        let slice = second.slice(5..6);
        drop(second);
        assert_eq!(kept(&memory).0, 2);
        drop(slice);
        assert_eq!(kept(&memory).0, 3);
    }

    #[test]
    fn what_is_kept_is_bounded_and_the_newest() {
        let memory = memory();
        drop((0..10).map(|_| message(&memory, 10 * MIB)).collect::<Vec<_>>());
        assert_eq!(kept(&memory), (6, 60 * MIB));
        drop(message(&memory, KEPT_BYTES_MAX + 1));
        assert_eq!(kept(&memory), (6, 60 * MIB));
        drop(message(&memory, KEPT_BYTES_MAX));
        assert_eq!(kept(&memory), (1, KEPT_BYTES_MAX));
    }

    #[test]
    fn what_nobody_takes_is_freed() {
        let memory = memory();
        let messages = [message(&memory, MIB), message(&memory, MIB)];
        assert!(memory.kept.end_period());
        drop(messages);
        assert!(!memory.kept.end_period());
        // One of the two is in use again, and is kept for longer.
        drop(message(&memory, MIB));
        assert!(!memory.kept.end_period());
        assert_eq!(kept(&memory), (1, MIB));
        assert!(memory.kept.end_period());
        assert_eq!(kept(&memory), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_door_keeps_nothing() {
        let memory = memory();
        let idle = async {
            for _ in 0..3 {
                drop(message(&memory, MIB));
                tokio::time::sleep(PERIOD - Duration::from_millis(1)).await;
                assert_eq!(kept(&memory).0, 1);
                tokio::time::sleep(PERIOD + Duration::from_millis(2)).await;
                assert_eq!(kept(&memory).0, 0);
            }
        };
        tokio::select! {
            never = memory.kept.free_in_time() => match never {},
            () = idle => {}
        }
    }
}
