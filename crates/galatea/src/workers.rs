//! The I/O threads that serve sockets: one single-threaded runtime each, so that a connection's
//! work never moves between cores.
//!
//! Each thread has an inline budget ([`IoThreadGuard`]), refilled whenever its runtime is idle, and a
//! task that issues the wake-ups of all tasks in one batch.

use std::future::poll_fn;
use std::io;
use std::num::NonZero;
use std::sync::mpsc;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use galatea_stdx::IoThreadGuard;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::shutdown::PATIENCE_SECS;

/// The time that an I/O thread may spend on small models each time it becomes idle. It roughly
/// equals the cost of handing the work to another thread.
const INLINE_BUDGET: Duration = Duration::from_micros(50);

/// The running I/O threads. Dropping this value ends them.
#[derive(Debug)]
pub(crate) struct Workers {
    handles: Vec<Handle>,
    threads: Vec<IoWorker>,
}

#[derive(Debug)]
struct IoWorker {
    /// Dropping this sender ends the thread's runtime.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Workers {
    /// Starts one worker per processor, but at most `count_max`.
    pub(crate) fn start(count_max: usize) -> io::Result<Self> {
        Self::start_with(count_max, Duration::from_secs(PATIENCE_SECS.into()))
    }

    /// Like `start`, but shutdown waits at most `blocking_patience` for blocking work. Some of that
    /// work removes files when it finishes; other work may be stuck forever in a backend or an
    /// agent.
    fn start_with(count_max: usize, blocking_patience: Duration) -> io::Result<Self> {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        let mut workers = Self { handles: Vec::new(), threads: Vec::new() };
        for number in 0..processors.min(count_max).max(1) {
            let (handle, worker) = start_worker(number, blocking_patience)?;
            workers.handles.push(handle);
            workers.threads.push(worker);
        }
        Ok(workers)
    }

    /// Handles to the runtimes.
    pub(crate) fn handles(&self) -> &[Handle] {
        &self.handles
    }
}

fn start_worker(number: usize, blocking_patience: Duration) -> io::Result<(Handle, IoWorker)> {
    let (started, started_receiver) = mpsc::sync_channel(1);
    let (stop, stopped) = oneshot::channel::<()>();
    let thread = std::thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
        let mut builder = Builder::new_current_thread();
        builder.enable_all().on_thread_park(IoThreadGuard::refill_inline_budget);
        match builder.build() {
            Ok(runtime) => {
                let io_thread = IoThreadGuard::enter(INLINE_BUDGET);
                runtime.spawn(issue_wake_ups());
                let _ = started.send(Ok(runtime.handle().clone()));
                // Ends when the sender is dropped; nothing is ever sent.
                let _ = runtime.block_on(stopped);
                // Remaining tasks don't defer wake-ups as they end.
                drop(io_thread);
                runtime.shutdown_timeout(blocking_patience);
            }
            Err(error) => {
                let _ = started.send(Err(error));
            }
        }
    })?;
    let handle = started_receiver
        .recv()
        .unwrap_or_else(|_| Err(io::Error::other("a worker thread ended at once")))?;
    Ok((handle, IoWorker { stop: Some(stop), thread: Some(thread) }))
}

/// Issues the wake-ups that this thread's tasks have deferred, once all ready tasks have run.
/// Requests that arrive together therefore wake a model's thread only once.
async fn issue_wake_ups() {
    poll_fn(|context| {
        IoThreadGuard::flush_wakes(context.waker());
        Poll::Pending
    })
    .await
}

impl Drop for Workers {
    /// Ends all threads. They shut down concurrently, so their grace periods overlap.
    fn drop(&mut self) {
        self.threads.iter_mut().for_each(|worker| drop(worker.stop.take()));
    }
}

impl Drop for IoWorker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_runs_tasks_on_a_thread_of_its_own() {
        let workers = Workers::start(2).unwrap();
        let names: Vec<_> = workers
            .handles()
            .iter()
            .map(|handle| {
                let (sender, receiver) = mpsc::channel();
                handle.spawn(async move {
                    let _ = sender.send(std::thread::current().name().map(str::to_owned));
                });
                receiver.recv().unwrap().unwrap()
            })
            .collect();
        let expected: Vec<String> =
            (0..names.len()).map(|number| format!("worker-{number}")).collect();
        assert_eq!(names, expected);
        assert!((1..=2).contains(&names.len()));
    }

    #[test]
    fn the_end_does_not_wait_for_ever_for_work_that_blocks() {
        let workers = Workers::start_with(1, Duration::ZERO).unwrap();
        let (begin, begun) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let stuck = workers.handles()[0].spawn_blocking(move || {
            begin.send(()).unwrap();
            released.recv()
        });
        begun.recv().unwrap();
        drop(workers);
        assert!(!stuck.is_finished());
        drop(release);
    }

    #[test]
    fn at_least_one_worker_starts() {
        assert_eq!(Workers::start(0).unwrap().handles().len(), 1);
    }
}
