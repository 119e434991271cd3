//! Chooses the thread that drives a run.
//!
//! The thread that posts an event also handles it. Handling an event may post more events: a
//! composing model without threads replies before `infer` returns, and its dispatcher may execute
//! other runs' requests in the same call. If each event were handled immediately, the stack would
//! overflow. Therefore, a thread that is already driving a run queues the next run and drives it
//! afterwards.
//!
//! A thread handles at most [`EVENTS_MAX`] events in a row. The overflow thread handles the
//! remaining ones, because no other thread is guaranteed to come along.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::thread::{Builder, ThreadId};

use galatea_infer::Status;
use galatea_stdx::{Inbox, Lock};

/// The number of events that a thread handles before it leaves the rest to the overflow thread.
pub(crate) const EVENTS_MAX: usize = 256;

/// A task that has events to handle.
pub(crate) trait Task: Send + Sync {
    /// Handles at most `budget` events and decrements the budget for each one. Returns the task if
    /// events remain.
    fn run(self: Arc<Self>, budget: &mut usize) -> Option<Arc<dyn Task>>;
}

/// Runs tasks on the threads that submit them. Each thread runs one task at a time.
pub(crate) struct Executor {
    queues: Lock<Vec<ThreadQueue>>,
    overflow: Arc<Inbox<Arc<dyn Task>>>,
}

/// The tasks that wait for a thread that is already running another task.
struct ThreadQueue {
    thread: ThreadId,
    tasks: VecDeque<Arc<dyn Task>>,
}

impl Executor {
    /// Starts the overflow thread.
    ///
    /// # Errors
    ///
    /// `Internal` if the thread can't be started.
    pub(crate) fn start() -> Result<Arc<Self>, Status> {
        let overflow = Arc::new(Inbox::new());
        let executor = Arc::new(Self { queues: Lock::default(), overflow: overflow.clone() });
        let weak = Arc::downgrade(&executor);
        Builder::new()
            .name(String::from("ensembles"))
            .spawn(move || run_overflow(&overflow, &weak))
            .map_err(|error| Status::internal(format!("can't start a thread: {error}")))?;
        Ok(executor)
    }

    /// Runs a task on this thread, either immediately or after the task that the thread is already
    /// running.
    pub(crate) fn submit(&self, task: Arc<dyn Task>) {
        let thread = std::thread::current().id();
        let mut queues = self.queues.lock("queue a task");
        if let Some(queue) = queues.iter_mut().find(|queue| queue.thread == thread) {
            queue.tasks.push_back(task);
            return;
        }
        queues.push(ThreadQueue { thread, tasks: VecDeque::new() });
        drop(queues);
        let queue = QueueOwner { executor: self, thread };
        let mut budget = EVENTS_MAX;
        let mut current = Some(task);
        while let Some(task) = current {
            if let Some(unfinished) = task.run(&mut budget) {
                self.push_overflow(unfinished);
            }
            current = queue.next();
        }
    }

    fn push_overflow(&self, task: Arc<dyn Task>) {
        // The inbox is closed only when the executor is dropped.
        let _is_open = self.overflow.push_and_wake(task);
    }
}

impl Drop for Executor {
    /// The overflow thread then ends on its own.
    fn drop(&mut self) {
        self.overflow.close();
    }
}

fn run_overflow(overflow: &Inbox<Arc<dyn Task>>, executor: &Weak<Executor>) {
    while let Some(task) = overflow.recv() {
        let Some(executor) = executor.upgrade() else { return };
        executor.submit(task);
    }
}

/// Marks the current thread as running tasks. If a task panics, the overflow thread takes over the
/// remaining ones.
struct QueueOwner<'a> {
    executor: &'a Executor,
    thread: ThreadId,
}

impl QueueOwner<'_> {
    /// Returns the next task. If there is none, removes the queue.
    fn next(&self) -> Option<Arc<dyn Task>> {
        let mut queues = self.executor.queues.lock("take the next task");
        let index = queues.iter().position(|queue| queue.thread == self.thread)?;
        let task = queues.get_mut(index)?.tasks.pop_front();
        if task.is_none() {
            queues.swap_remove(index);
        }
        task
    }
}

impl Drop for QueueOwner<'_> {
    fn drop(&mut self) {
        while let Some(task) = self.next() {
            self.executor.push_overflow(task);
        }
    }
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Executor")
    }
}
