//! The withdrawal of all models when a server stops.
//!
//! Repository agents are notified before their models go out of service, as in Triton. Agents are
//! foreign code that may never return, so a thread notifies them, and shutdown waits for that
//! thread only for a limited time. Models without agents don't wait for other models' agents.

use std::sync::Arc;
use std::time::{Duration, Instant};

use galatea_stdx::{Condvar, Lock};

use super::driver::Driver;

/// A manager's withdrawals, one at a time.
#[derive(Default)]
pub(super) struct AgentWithdrawals {
    /// True while a thread is notifying agents.
    is_running: Lock<bool>,
    ended: Condvar,
}

impl AgentWithdrawals {
    /// Takes every model out of service, and waits up to `timeout` for the models' agents.
    pub(super) fn run(self: &Arc<Self>, driver: &Arc<Driver>, timeout: Duration) {
        driver.worker.withdraw_without_agents();
        if driver.worker.has_withdrawn_all() {
            return;
        }
        let start = Instant::now();
        let mut is_running = self.is_running.lock("begin to withdraw models");
        if !*is_running {
            *is_running = true;
            drop(is_running);
            self.start(driver);
            is_running = self.is_running.lock("wait for a withdrawal");
        }
        while *is_running {
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return;
            }
            is_running = self.ended.wait_timeout(is_running, left);
        }
    }

    /// Returns true while a thread is notifying agents.
    pub(super) fn is_running(&self) -> bool {
        *self.is_running.lock("look for a withdrawal")
    }

    /// Withdraws the models on a new thread, or on the calling thread if none can be started.
    fn start(self: &Arc<Self>, driver: &Arc<Driver>) {
        let (this, driver) = (self.clone(), driver.clone());
        let withdraw = move || {
            driver.worker.withdraw_all();
            *this.is_running.lock("end a withdrawal") = false;
            this.ended.notify_all();
        };
        let thread = std::thread::Builder::new().name(String::from("galatea-agents"));
        if let Err(withdraw) = thread.spawn(withdraw.clone()).map_err(|_| withdraw) {
            withdraw();
        }
    }
}
