//! The thread on which requests to object stores run.

use std::future::Future;
use std::io;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use tokio::runtime::{Builder, Handle};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

/// A runtime on a dedicated thread. Callers wait for results on their own threads, so nothing
/// outside this crate is asynchronous.
#[derive(Debug)]
pub(crate) struct Runtime {
    handle: Handle,
    /// Dropping this sender ends the thread.
    stop: Option<oneshot::Sender<()>>,
    /// True once waits must end immediately.
    is_given_up: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Runtime {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// Returns an error if the system is out of threads or descriptors.
    pub(crate) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let work = move || drop(runtime.block_on(stopped));
        let thread = thread::Builder::new().name(String::from("buckets")).spawn(work)?;
        let (is_given_up, _) = watch::channel(false);
        Ok(Self { handle, stop: Some(stop), is_given_up, thread: Some(thread) })
    }

    /// Ends every wait, including future ones: a store that stalls must not delay the server's
    /// exit.
    pub(crate) fn give_up(&self) {
        self.is_given_up.send_replace(true);
    }

    /// Waits for a future's result. Returns `None` if the future panicked or the wait was ended.
    pub(crate) fn wait_for<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.spawn(future).wait()
    }

    /// Starts a future.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> RunningFuture<T> {
        let (done, result) = mpsc::sync_channel(1);
        let mut given_up = self.is_given_up.subscribe();
        let task = self.handle.spawn(async move {
            let value = tokio::select! {
                value = future => value,
                _ = given_up.wait_for(|is_given_up| *is_given_up) => return,
            };
            // The receiver may have stopped waiting.
            let _ = done.send(value);
        });
        RunningFuture { result, task: task.abort_handle() }
    }
}

/// A future that runs on the thread. Dropping this handle on another thread ends the future.
#[derive(Debug)]
pub(crate) struct RunningFuture<T> {
    result: mpsc::Receiver<T>,
    task: AbortHandle,
}

impl<T> RunningFuture<T> {
    /// Waits for the future's result. Returns `None` if the future panicked or the wait was ended.
    pub(crate) fn wait(self) -> Option<T> {
        self.result.recv().ok()
    }
}

impl<T> Drop for RunningFuture<T> {
    fn drop(&mut self) {
        self.task.abort();
        // Wait until the future has been dropped.
        let _ = self.result.recv();
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

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn waits_end_when_they_are_given_up() {
        let runtime = Arc::new(Runtime::start().unwrap());
        assert_eq!(runtime.wait_for(async { 3 }), Some(3));
        let (begun, has_begun) = mpsc::sync_channel(1);
        let other = runtime.clone();
        let waiting = thread::spawn(move || {
            other.wait_for(async move {
                begun.send(()).unwrap();
                pending::<()>().await;
            })
        });
        has_begun.recv().unwrap();
        runtime.give_up();
        assert_eq!(waiting.join().unwrap(), None);
        assert_eq!(runtime.wait_for(pending::<()>()), None);
    }

    #[test]
    fn what_is_dropped_under_way_ends_before() {
        let runtime = Runtime::start().unwrap();
        let (begun, has_begun) = mpsc::sync_channel(1);
        let used = Arc::new(());
        let in_future = used.clone();
        let under_way = runtime.spawn(async move {
            begun.send(()).unwrap();
            pending::<()>().await;
            drop(in_future);
        });
        has_begun.recv().unwrap();
        assert_eq!(Arc::strong_count(&used), 2);
        drop(under_way);
        assert_eq!(Arc::strong_count(&used), 1);
    }
}
