//! The state of the current thread.

use std::cell::RefCell;
use std::task::Waker;
use std::time::Duration;

use smallvec::SmallVec;

use crate::sync::thread_local;

/// Wake-ups that are to be issued, each waker once.
pub(super) type Deferred = SmallVec<[Waker; 4]>;

#[derive(Default)]
pub(super) struct ThreadState {
    /// The number of [`WakeBatch`](super::WakeBatch)es that are open.
    pub(super) open_batches: u32,
    /// The task that issues this thread's wake-ups, if it is an I/O thread.
    pub(super) flusher: Option<Waker>,
    pub(super) deferred: Deferred,
    /// The rest of the inline budget.
    pub(super) inline_budget: Duration,
    /// The inline budget after a refill.
    pub(super) inline_budget_max: Duration,
}

thread_local! {
    static STATE: RefCell<ThreadState> = RefCell::default();
}

/// Calls `change` with the state; returns `None` on a thread that is ending, which has
/// none any more. `change` calls no code of others, which might come here again.
pub(super) fn with_state<R>(change: impl FnOnce(&mut ThreadState) -> R) -> Option<R> {
    STATE.try_with(|state| change(&mut state.borrow_mut())).ok()
}

/// Replaces the state; returns the one before.
pub(super) fn replace_state(new: ThreadState) -> ThreadState {
    with_state(|state| std::mem::replace(state, new)).unwrap_or_default()
}
