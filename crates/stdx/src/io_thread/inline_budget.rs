//! The time that a thread may spend on work that another thread would otherwise do.
//!
//! Handing a request to a model's thread and its response back costs two threads a sleep and a
//! wake-up each, which takes longer than executing a small model. A thread that submits such a
//! request can execute it itself if it has nothing else to do. An I/O thread gets a budget for this
//! whenever it has finished its own work
//! ([`IoThreadGuard::refill_inline_budget`](super::IoThreadGuard::refill_inline_budget)); other
//! threads have none.

use std::marker::PhantomData;
use std::time::Duration;

use super::state::with_state;

/// A thread's inline budget while it is in use. Meanwhile, the thread has no other budget: the
/// executed work may lead to more work that could be executed inline, and so on.
#[derive(Debug)]
#[must_use = "what is left of the budget goes back to the thread when this is dropped"]
pub struct InlineBudget {
    left: Duration,
    /// Keeps the value on its thread.
    here: PhantomData<*const ()>,
}

impl InlineBudget {
    /// Takes this thread's budget; `None` if the budget is used up. The work may exceed the budget.
    #[must_use]
    pub fn take() -> Option<Self> {
        let left = with_state(|state| std::mem::take(&mut state.inline_budget))?;
        (!left.is_zero()).then_some(Self { left, here: PhantomData })
    }

    /// Runs `work` with a budget, on a thread that has none of its own. The thread waits for the
    /// results of `work` anyway, so it loses nothing by executing it. An I/O thread keeps its own
    /// budget.
    pub fn run_with_budget<R>(budget: Duration, work: impl FnOnce() -> R) -> R {
        /// A budget lent to the thread, which is taken back on drop.
        struct Loan(bool);
        impl Drop for Loan {
            fn drop(&mut self) {
                if self.0 {
                    with_state(|state| state.inline_budget = Duration::ZERO);
                }
            }
        }
        let lent = with_state(|state| {
            let has_none = state.inline_budget_max.is_zero() && state.inline_budget.is_zero();
            if has_none {
                state.inline_budget = budget;
            }
            has_none
        });
        let _loan = Loan(lent.unwrap_or_default());
        work()
    }

    /// Deducts `time` from the budget.
    pub fn charge(&mut self, time: Duration) {
        self.left = self.left.saturating_sub(time);
    }
}

impl Drop for InlineBudget {
    fn drop(&mut self) {
        with_state(|state| state.inline_budget = self.left);
    }
}
