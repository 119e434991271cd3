//! The turns of instances that share a worker, whose socket for executions has one user at a time.

use galatea_stdx::{Condvar, Lock};

/// Gives turns to threads, one at a time.
#[derive(Default)]
pub(super) struct ExecutionTurns {
    is_taken: Lock<bool>,
    freed: Condvar,
}

/// A turn, which ends when it is dropped.
pub(super) struct ExecutionTurn<'a>(&'a ExecutionTurns);

impl ExecutionTurns {
    /// Waits for a turn, which takes as long as other executions need to hand over their requests.
    pub(super) fn take(&self) -> ExecutionTurn<'_> {
        let mut is_taken = self.is_taken.lock("wait for a turn");
        while *is_taken {
            is_taken = self.freed.wait(is_taken);
        }
        *is_taken = true;
        ExecutionTurn(self)
    }
}

impl Drop for ExecutionTurn<'_> {
    fn drop(&mut self) {
        *self.0.is_taken.lock("end a turn") = false;
        self.0.freed.notify_one();
    }
}
