//! A thread that takes a sample of the server every few seconds.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread;

use galatea_stdx::Lock;

use crate::history;
use crate::watchers::Watchers;

/// A handle to the thread. Dropping it ends the thread.
pub(crate) struct Sampler(Lock<Option<SyncSender<()>>>);

impl Sampler {
    /// Starts the thread. If it can't be started, pages show no history.
    pub(crate) fn start(watchers: Arc<Watchers>) -> Self {
        let (sender, receiver) = sync_channel(0);
        let sample = move || {
            watchers.sample();
            while receiver.recv_timeout(history::PERIOD) == Err(RecvTimeoutError::Timeout) {
                watchers.sample();
            }
        };
        let started = thread::Builder::new().name(String::from("dashboard")).spawn(sample);
        Self(Lock::new(started.ok().map(|_| sender)))
    }

    /// Ends the thread, which then releases the server.
    pub(crate) fn end(&self) {
        drop(self.0.lock("end the samples").take());
    }
}
