//! The thread on which requests to object stores run.

use std::future::Future;
use std::io;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A runtime on one thread of its own. Callers wait for results on their own threads, so that
/// nothing outside of this crate is asynchronous.
#[derive(Debug)]
pub(crate) struct Runtime {
    handle: Handle,
    /// The thread ends when this is dropped.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Runtime {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// If the system has no thread or descriptor left.
    pub(crate) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let work = move || drop(runtime.block_on(stopped));
        let thread = thread::Builder::new().name(String::from("buckets")).spawn(work)?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Waits for what a future gives. `None` if it panicked.
    pub(crate) fn wait_for<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (done, result) = mpsc::sync_channel(1);
        self.handle.spawn(async move {
            // The caller waits.
            let _ = done.send(future.await);
        });
        result.recv().ok()
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
