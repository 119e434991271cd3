//! The state of the current thread.

use std::cell::RefCell;
use std::task::Waker;
use std::time::Duration;

use smallvec::SmallVec;

use crate::sync::thread_local;

/// Wake-ups to be issued, once per waker.
pub(super) type Deferred = SmallVec<[Waker; 4]>;

#[derive(Default)]
pub(super) struct ThreadState {
    /// The number of open [`WakeBatch`](super::WakeBatch)es.
    pub(super) open_batches: u32,
    /// The task that issues this thread's wake-ups, if it is an I/O thread.
    pub(super) flusher: Option<Waker>,
    pub(super) deferred: Deferred,
    /// The remaining inline budget.
    pub(super) inline_budget: Duration,
    /// The inline budget after a refill.
    pub(super) inline_budget_max: Duration,
}

thread_local! {
    static STATE: RefCell<ThreadState> = RefCell::default();
}

/// Calls `change` with the state; returns `None` if the thread is ending and its state no longer
/// exists. `change` must not call foreign code, which might call this function again.
pub(super) fn with_state<R>(change: impl FnOnce(&mut ThreadState) -> R) -> Option<R> {
    STATE.try_with(|state| change(&mut state.borrow_mut())).ok()
}

/// Replaces the state and returns the previous one.
pub(super) fn replace_state(new: ThreadState) -> ThreadState {
    with_state(|state| std::mem::replace(state, new)).unwrap_or_default()
}
