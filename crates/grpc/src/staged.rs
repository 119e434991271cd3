//! What lies between a socket and `h2`: bytes that were read ahead, and bytes that
//! are to be written together.
//!
//! A connection has memory for them only while there are some. One task runs at a
//! time on a worker, and hardly any of them leaves something behind, so a worker's
//! connections share a few pieces, which stay in the processor's caches.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The size of a piece.
pub(crate) const STAGED_BYTES_MAX: usize = 64 * 1024;
/// How many pieces a worker keeps that none of its connections uses.
const SPARES_MAX: usize = 4;

/// The memory that the connections of a worker share.
#[derive(Debug, Default)]
pub(crate) struct Spares(Mutex<Vec<Box<[u8]>>>);

impl Spares {
    fn take(&self) -> Box<[u8]> {
        let spare = self.lock().pop();
        spare.unwrap_or_else(|| vec![0; STAGED_BYTES_MAX].into_boxed_slice())
    }

    fn give_back(&self, piece: Box<[u8]>) {
        let mut spares = self.lock();
        if spares.len() < SPARES_MAX {
            spares.push(piece);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Box<[u8]>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }
}

/// Bytes in their order, [`STAGED_BYTES_MAX`] at most.
#[derive(Debug)]
pub(crate) struct Staged {
    /// Empty while there is no memory.
    piece: Box<[u8]>,
    start: usize,
    end: usize,
    spares: Arc<Spares>,
}

impl Staged {
    pub(crate) fn new(spares: Arc<Spares>) -> Self {
        Self { piece: Box::default(), start: 0, end: 0, spares }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.piece.get(self.start..self.end).unwrap_or_default()
    }

    pub(crate) const fn len(&self) -> usize {
        self.end.saturating_sub(self.start)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes bytes out in front.
    pub(crate) fn advance(&mut self, count: usize) {
        self.start = self.start.saturating_add(count).min(self.end);
    }

    /// Appends bytes, for which there is room.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.begin();
        if self.end.saturating_add(bytes.len()) > self.piece.len() {
            self.piece.copy_within(self.start..self.end, 0);
            self.end = self.len();
            self.start = 0;
        }
        let end = self.end.saturating_add(bytes.len());
        if let Some(room) = self.piece.get_mut(self.end..end) {
            room.copy_from_slice(bytes);
            self.end = end;
        }
    }

    /// The whole memory, to be filled instead of what is there.
    pub(crate) fn refill(&mut self) -> &mut [u8] {
        self.begin();
        (self.start, self.end) = (0, 0);
        &mut self.piece
    }

    /// So much of it was filled.
    pub(crate) fn set_filled(&mut self, count: usize) {
        self.end = count.min(self.piece.len());
    }

    fn begin(&mut self) {
        if self.piece.is_empty() {
            self.piece = self.spares.take();
        }
    }

    /// Leaves the memory to other connections, if nothing is there.
    pub(crate) fn rest(&mut self) {
        if self.is_empty() {
            self.let_go();
        }
    }

    fn let_go(&mut self) {
        if self.piece.is_empty() {
            return;
        }
        (self.start, self.end) = (0, 0);
        self.spares.give_back(std::mem::take(&mut self.piece));
    }

    #[cfg(test)]
    pub(crate) const fn has_memory(&self) -> bool {
        !self.piece.is_empty()
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.let_go();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_their_order() {
        let mut staged = Staged::new(Arc::default());
        let mut expected = Vec::<u8>::new();
        // Pushed at the end of the memory again and again, with something in front.
        let steps = [(40_000, 39_999), (60_000, 50_000), (55_535, 100)].repeat(3);
        for (step, (pushed, advanced)) in (0..).zip(steps) {
            let room = STAGED_BYTES_MAX - staged.len();
            let bytes: Vec<u8> = (0..=u8::MAX).map(|byte| byte ^ step).collect();
            let bytes: Vec<u8> = bytes.into_iter().cycle().take(pushed.min(room)).collect();
            staged.push(&bytes);
            expected.extend(&bytes);
            let advanced = expected.len().min(advanced);
            staged.advance(advanced);
            expected.drain(..advanced);
            assert!(expected == staged.bytes());
        }
    }

    #[test]
    fn memory_is_there_only_while_bytes_are() {
        let spares = Arc::<Spares>::default();
        let mut one = Staged::new(spares.clone());
        assert!(!one.has_memory());
        one.push(&[1, 2, 3]);
        one.rest();
        one.advance(2);
        one.rest();
        assert_eq!((one.bytes(), one.len(), spares.count()), (&[3][..], 1, 0));
        one.advance(1);
        one.rest();
        assert!(!one.has_memory() && one.bytes().is_empty());
        let place = spares.lock()[0].as_ptr();
        // The next one takes it, and leaves it when it goes.
        let mut other = Staged::new(spares.clone());
        let room = other.refill();
        assert_eq!((room.len(), room.as_ptr()), (STAGED_BYTES_MAX, place));
        room[..5].copy_from_slice(&[7; 5]);
        other.set_filled(5);
        assert_eq!((other.bytes(), spares.count()), (&[7; 5][..], 0));
        drop(other);
        assert_eq!(spares.count(), 1);
    }

    #[test]
    fn few_are_kept() {
        let spares = Arc::<Spares>::default();
        let mut busy: Vec<Staged> = (0..10).map(|_| Staged::new(spares.clone())).collect();
        busy.iter_mut().for_each(|staged| staged.push(&[7]));
        drop(busy);
        assert_eq!(spares.count(), SPARES_MAX);
    }
}
