//! Thread-local state about the current thread.
//!
//! An I/O thread runs an event loop: it polls tasks until none is ready, then waits for its
//! sockets. Two decisions depend on the thread's position in that loop:
//!
//! - when to issue the wake-ups of other threads: after the work at hand ([`wake_batch`]);
//! - whether to do short work itself instead of handing it to another thread ([`InlineBudget`]).
//!
//! The state behind these decisions is thread-local rather than passed as an argument. A wake-up
//! happens deep inside code that knows nothing about event loops: in the `Waker` of a sink that a
//! backend calls, in foreign callbacks, in destructors. An argument would have to pass through
//! every one of those layers, and some have C signatures.
//!
//! The owner of a thread declares it an I/O thread by entering it ([`IoThreadGuard::enter`]). All
//! other threads wake immediately and have no inline budget, unless they begin their own
//! [`WakeBatch`].

mod inline_budget;
mod state;
#[cfg(test)]
mod tests;
pub mod wake_batch;

use std::marker::PhantomData;
use std::task::Waker;
use std::time::Duration;

pub use self::inline_budget::InlineBudget;
use self::state::{ThreadState, replace_state, with_state};
pub use self::wake_batch::WakeBatch;

/// Makes its thread an I/O thread for as long as the value exists.
///
/// The thread's runtime calls [`IoThreadGuard::refill_inline_budget`] and
/// [`IoThreadGuard::flush_wakes`] from callbacks and tasks that can't own the value, because they
/// could move to other threads. Both functions affect the current thread, which must be an I/O
/// thread.
#[derive(Debug)]
#[must_use = "the thread is an I/O thread until this is dropped"]
pub struct IoThreadGuard {
    /// Keeps the value on its thread.
    here: PhantomData<*const ()>,
}

impl IoThreadGuard {
    /// Makes this thread an I/O thread, which may spend `inline_budget` on inline work between one
    /// [`refill`](Self::refill_inline_budget) and the next. There is no budget before the first
    /// refill.
    pub fn enter(inline_budget: Duration) -> Self {
        with_state(|state| {
            state.inline_budget_max = inline_budget;
            state.inline_budget = Duration::ZERO;
        });
        Self { here: PhantomData }
    }

    /// Restores the full inline budget, because the thread has nothing else to do.
    pub fn refill_inline_budget() {
        with_state(|state| state.inline_budget = state.inline_budget_max);
    }

    /// Issues the deferred wake-ups. From now on, the thread defers all wake-ups, and the first one
    /// wakes `flusher`, a task of the thread that calls this function again.
    ///
    /// The task runs after all tasks that are ready when it is woken, so their wake-ups are issued
    /// together.
    pub fn flush_wakes(flusher: &Waker) {
        let deferred = with_state(|state| {
            state.flusher = Some(flusher.clone());
            std::mem::take(&mut state.deferred)
        });
        deferred.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Drop for IoThreadGuard {
    /// Issues the deferred wake-ups. Later wake-ups are issued immediately.
    fn drop(&mut self) {
        let deferred = with_state(|state| {
            state.flusher = None;
            state.inline_budget_max = Duration::ZERO;
            state.inline_budget = Duration::ZERO;
            std::mem::take(&mut state.deferred)
        });
        deferred.into_iter().flatten().for_each(Waker::wake);
    }
}

/// Runs foreign code, which may wait for any other thread. Deferred wake-ups are issued before it
/// runs. While it runs, wake-ups are issued immediately, and the thread has no inline budget.
///
/// A callback may wait for the reply to another request; the thread for that request must already
/// be awake.
pub fn run_foreign_code<R>(foreign: impl FnOnce() -> R) -> R {
    let _suspended = SuspendedIoThread::begin();
    foreign()
}

/// The saved state of a thread that runs foreign code; dropping the value restores it.
struct SuspendedIoThread {
    before: ThreadState,
}

impl SuspendedIoThread {
    fn begin() -> Self {
        let mut before = replace_state(ThreadState::default());
        let deferred = std::mem::take(&mut before.deferred);
        deferred.into_iter().for_each(Waker::wake);
        Self { before }
    }
}

impl Drop for SuspendedIoThread {
    fn drop(&mut self) {
        // Nothing is deferred: every wake batch begun in the meantime has ended.
        replace_state(std::mem::take(&mut self.before));
    }
}
