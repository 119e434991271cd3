//! Where outcomes from other threads reach a worker's requests.
//!
//! A batch answers many requests at once. Waking a runtime from outside costs
//! a system call each time; so the outcomes are put into the worker's
//! mailroom, and only the first of a burst wakes it, once the batch is
//! answered.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Wake, Waker};
use std::thread::ThreadId;

use galatea_stdx::wake_batch;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use crate::reply::Outcome;

/// The mailroom of one worker, which delivers what others posted.
#[derive(Default)]
pub(crate) struct Mailroom {
    /// The worker's thread, once it runs.
    thread: OnceLock<ThreadId>,
    inbox: Mutex<Inbox>,
    arrived: Notify,
}

#[derive(Default)]
struct Inbox {
    letters: Vec<Letter>,
    /// The worker was woken for them. A thread in a turn wakes it later: until it
    /// really does, others who post wake it at once.
    called: bool,
}

/// An outcome and who waits for it.
struct Letter {
    waiting: oneshot::Sender<Outcome>,
    outcome: Outcome,
}

/// The mailrooms of a door's workers.
#[derive(Clone, Default)]
pub(crate) struct Mailrooms(Arc<[Arc<Mailroom>]>);

impl Mailrooms {
    /// Opens a mailroom in each of these runtimes.
    pub(crate) fn open(workers: &[Handle]) -> Self {
        let open = |worker: &Handle| {
            let room = Arc::<Mailroom>::default();
            worker.spawn(room.clone().run());
            room
        };
        Self(workers.iter().map(open).collect())
    }

    /// The mailroom of the worker whose thread this is; there is none before
    /// it runs, and then outcomes go to their requests one by one.
    pub(crate) fn here(&self) -> Option<Arc<Mailroom>> {
        self.0.iter().find(|room| room.is_here()).cloned()
    }
}

impl Wake for Mailroom {
    fn wake(self: Arc<Self>) {
        let mut inbox = self.lock();
        if !inbox.called && !inbox.letters.is_empty() {
            inbox.called = true;
            drop(inbox);
            self.arrived.notify_one();
        }
    }
}

impl Mailroom {
    async fn run(self: Arc<Self>) {
        let _ = self.thread.set(std::thread::current().id());
        loop {
            self.arrived.notified().await;
            for letter in std::mem::take(&mut *self.lock()).letters {
                // Nobody waits if the client has gone.
                let _ = letter.waiting.send(letter.outcome);
            }
        }
    }

    fn is_here(&self) -> bool {
        self.thread.get().is_some_and(|thread| *thread == std::thread::current().id())
    }

    /// Brings `outcome` to whoever waits for it: at once on the worker's own
    /// thread, with the next delivery from another.
    pub(crate) fn post(self: &Arc<Self>, waiting: oneshot::Sender<Outcome>, outcome: Outcome) {
        if self.is_here() {
            let _ = waiting.send(outcome);
            return;
        }
        let mut inbox = self.lock();
        inbox.letters.push(Letter { waiting, outcome });
        let called = inbox.called;
        drop(inbox);
        if !called {
            wake_batch::defer(Waker::from(self.clone()));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use galatea_infer::Status;
    use galatea_stdx::WakeBatch;

    use super::*;

    #[test]
    fn a_burst_from_another_thread_arrives_whole() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let rooms = Mailrooms::open(&[runtime.handle().clone()]);
        assert!(rooms.here().is_none(), "the worker does not run yet");
        runtime.block_on(async {
            while rooms.here().is_none() {
                tokio::task::yield_now().await;
            }
            let room = rooms.here().unwrap();
            let (waiting, outcomes): (Vec<_>, Vec<_>) =
                (0..100).map(|_| oneshot::channel()).unzip();
            let poster = std::thread::spawn(move || {
                let _turn = WakeBatch::begin();
                for sender in waiting {
                    room.post(sender, Err(Status::unavailable("busy")));
                }
            });
            for outcome in outcomes {
                assert_eq!(outcome.await.unwrap().unwrap_err().message(), "busy");
            }
            poster.join().unwrap();
        });
    }

    #[test]
    fn a_letter_that_waits_for_a_turn_holds_no_other_back() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let rooms = Mailrooms::open(&[runtime.handle().clone()]);
        runtime.block_on(async {
            while rooms.here().is_none() {
                tokio::task::yield_now().await;
            }
            let room = rooms.here().unwrap();
            let busy = || Err(Status::unavailable("busy"));
            let ((first, outcome), (second, others)) = (oneshot::channel(), oneshot::channel());
            let (posted, end) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
            let of_the_turn = room.clone();
            let holder = std::thread::spawn(move || {
                let _turn = WakeBatch::begin();
                of_the_turn.post(first, busy());
                posted.0.send(()).unwrap();
                let _ended = end.1.recv();
            });
            posted.1.recv().unwrap();
            std::thread::spawn(move || room.post(second, busy())).join().unwrap();
            assert!(others.await.unwrap().is_err());
            assert!(outcome.await.unwrap().is_err(), "what is there is taken along");
            drop(end.0);
            holder.join().unwrap();
        });
    }

    #[test]
    fn an_outcome_from_the_worker_itself_needs_no_delivery() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let rooms = Mailrooms::open(&[runtime.handle().clone()]);
        runtime.block_on(async {
            while rooms.here().is_none() {
                tokio::task::yield_now().await;
            }
            let (sender, mut receiver) = oneshot::channel();
            let outcome = Err(Status::unavailable("busy"));
            rooms.here().unwrap().post(sender, outcome);
            assert!(receiver.try_recv().is_ok());
        });
    }
}
