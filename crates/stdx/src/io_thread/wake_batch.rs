//! Wake-ups that are deferred until the work at hand is done.
//!
//! Waking a thread costs a system call, and a thread that is woken early may take the core from the
//! one that woke it, find one thing to do, and sleep again. A thread that does several things in a
//! row therefore wakes other threads only after the last one, and wakes each thread only once.
//!
//! A thread gathers wake-ups while a [`WakeBatch`] exists on it. An I/O thread always gathers them,
//! and one of its own tasks issues them ([`IoThreadGuard::flush_wakes`](super::IoThreadGuard)).

use std::marker::PhantomData;
use std::task::Waker;

use super::state::{Deferred, ThreadState, with_state};

/// Wakes `waker` at the end of this thread's wake batch, or immediately if there is none.
pub fn defer_wake(waker: Waker) {
    match with_state(|state| state.defer(&waker)) {
        Some(Deferral::Deferred) => {}
        Some(Deferral::First(flusher)) => flusher.wake(),
        Some(Deferral::Refused) | None => waker.wake(),
    }
}

enum Deferral {
    Deferred,
    /// The wake-up is deferred and is the first one, so the task that issues it must be woken.
    First(Waker),
    /// The thread defers no wake-ups.
    Refused,
}

impl ThreadState {
    fn defer(&mut self, waker: &Waker) -> Deferral {
        if self.open_batches == 0 && self.flusher.is_none() {
            return Deferral::Refused;
        }
        if self.deferred.iter().any(|other| other.will_wake(waker)) {
            return Deferral::Deferred;
        }
        self.deferred.push(waker.clone());
        match &self.flusher {
            Some(flusher) if self.open_batches == 0 && self.deferred.len() == 1 => {
                Deferral::First(flusher.clone())
            }
            Some(_) | None => Deferral::Deferred,
        }
    }
}

/// Makes its thread defer wake-ups for as long as the value exists; dropping it issues them.
///
/// If wake batches are nested, the outermost one counts.
#[derive(Debug)]
#[must_use = "a wake batch ends when this is dropped"]
pub struct WakeBatch {
    /// Keeps the value on its thread.
    here: PhantomData<*const ()>,
}

impl WakeBatch {
    /// Begins a wake batch on this thread.
    pub fn begin() -> Self {
        with_state(|state| state.open_batches = state.open_batches.saturating_add(1));
        Self { here: PhantomData }
    }
}

impl Drop for WakeBatch {
    fn drop(&mut self) {
        // A waker may begin a wake batch, so nothing is borrowed while it runs.
        let deferred = with_state(|state| {
            state.open_batches = state.open_batches.saturating_sub(1);
            if state.open_batches == 0 {
                std::mem::take(&mut state.deferred)
            } else {
                Deferred::new()
            }
        });
        deferred.into_iter().flatten().for_each(Waker::wake);
    }
}
