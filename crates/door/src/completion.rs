//! Finished requests on their way back to their connection's I/O thread.
//!
//! A batch completes many requests at once, on its lane's thread. Waking a runtime from outside
//! costs one system call each time. Completions therefore go to a queue of the I/O thread, and only
//! the first completion in a burst wakes the thread, at the end of the lane's wake batch.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::thread::ThreadId;

use galatea_stdx::Inbox;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// The completion queue of one I/O thread. `T` is the result of a request.
pub struct CompletionQueue<T> {
    /// The I/O thread, once it is running.
    thread: OnceLock<ThreadId>,
    inbox: Arc<Inbox<Completion<T>>>,
}

/// The result of a request, along with its receiver.
struct Completion<T> {
    receiver: oneshot::Sender<T>,
    result: T,
}

impl<T> Completion<T> {
    fn deliver(self) {
        // The receiver is dropped together with its client.
        let _ = self.receiver.send(self.result);
    }
}

/// The completion queues of a door, one per I/O thread.
pub struct CompletionQueues<T>(Arc<[Arc<CompletionQueue<T>>]>);

impl<T: Send + 'static> CompletionQueues<T> {
    /// Starts a completion queue in each of these runtimes.
    pub fn start(workers: &[Handle]) -> Self {
        let start = |worker: &Handle| {
            let queue = Arc::new(CompletionQueue::new());
            worker.spawn(queue.clone().run());
            queue
        };
        Self(workers.iter().map(start).collect())
    }

    /// Returns the queue of the current thread. Returns `None` until its runtime has started;
    /// results are then sent to their requests individually.
    #[must_use]
    pub fn current(&self) -> Option<Arc<CompletionQueue<T>>> {
        self.0.iter().find(|queue| queue.is_current()).cloned()
    }
}

impl<T: Send + 'static> CompletionQueue<T> {
    fn new() -> Self {
        Self { thread: OnceLock::new(), inbox: Arc::new(Inbox::new()) }
    }

    async fn run(self: Arc<Self>) {
        let _ = self.thread.set(std::thread::current().id());
        poll_fn(|context| {
            self.inbox.register_reader(context.waker());
            // Fresh memory is used each time, so that a burst leaves none allocated.
            let mut completions = VecDeque::new();
            self.inbox.drain_into(&mut completions);
            completions.into_iter().for_each(Completion::deliver);
            if !self.inbox.try_sleep() {
                context.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        })
        .await;
    }

    fn is_current(&self) -> bool {
        self.thread.get().is_some_and(|thread| *thread == std::thread::current().id())
    }

    /// Sends `result` to `receiver`, directly on the I/O thread itself and through the queue from
    /// other threads.
    pub fn complete(&self, receiver: oneshot::Sender<T>, result: T) {
        let completion = Completion { receiver, result };
        if self.is_current() {
            completion.deliver();
        } else {
            // The inbox is never closed.
            let _ = self.inbox.push(completion);
        }
    }
}

impl<T> Clone for CompletionQueues<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use galatea_stdx::WakeBatch;
    use galatea_stdx::testing::wait_in_task;

    use super::*;

    /// Runs `test` on the thread of a completion queue.
    fn with_queue<F: Future>(test: impl FnOnce(Arc<CompletionQueue<u32>>) -> F) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let queues = CompletionQueues::start(&[runtime.handle().clone()]);
        assert!(queues.current().is_none(), "the runtime has not run");
        runtime.block_on(async {
            wait_in_task("the queue has started", || queues.current().is_some()).await;
            test(queues.current().unwrap()).await;
        });
    }

    #[test]
    fn a_burst_from_another_thread_arrives_whole() {
        with_queue(async |queue| {
            let (senders, receivers): (Vec<_>, Vec<_>) =
                (0..100).map(|_| oneshot::channel()).unzip();
            let lane = std::thread::spawn(move || {
                let _batch = WakeBatch::begin();
                for (sender, result) in senders.into_iter().zip(0..) {
                    queue.complete(sender, result);
                }
            });
            for (receiver, result) in receivers.into_iter().zip(0..) {
                assert_eq!(receiver.await.unwrap(), result);
            }
            lane.join().unwrap();
        });
    }

    #[test]
    fn a_completion_in_a_wake_batch_holds_no_other_back() {
        with_queue(async |queue| {
            let ((first, first_result), (second, second_result)) =
                (oneshot::channel(), oneshot::channel());
            let (pushed, end) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
            let queue_of_lane = queue.clone();
            let lane = std::thread::spawn(move || {
                let _batch = WakeBatch::begin();
                queue_of_lane.complete(first, 1);
                pushed.0.send(()).unwrap();
                let _ended = end.1.recv();
            });
            pushed.1.recv().unwrap();
            std::thread::spawn(move || queue.complete(second, 2)).join().unwrap();
            assert_eq!(second_result.await.unwrap(), 2);
            assert_eq!(first_result.await.unwrap(), 1);
            drop(end.0);
            lane.join().unwrap();
        });
    }

    #[test]
    fn a_completion_on_the_io_thread_is_delivered_at_once() {
        with_queue(async |queue| {
            let (sender, mut receiver) = oneshot::channel();
            queue.complete(sender, 1);
            assert_eq!(receiver.try_recv(), Ok(1));
        });
    }
}
