//! Which thread drives a run.
//!
//! An answer is handled by the thread that brings it. That may bring more: a
//! composing model without threads answers before `infer` returns, and its
//! dispatcher may execute requests of other runs in the same breath. Handled
//! where they come, answers would pile up on the stack; so a thread that drives a
//! run already puts the next one on its list, and takes it up when it is back.
//!
//! A thread handles a bounded number of events for others. What is left is for
//! the spare thread, because nobody else may come along.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{Builder, ThreadId};

use galatea_infer::Status;

use crate::run::Run;

/// Events that a thread handles before it leaves the rest to the spare one.
pub(crate) const EVENTS_MAX: usize = 256;

/// The threads that drive runs, and what is on their lists.
#[derive(Default)]
pub(crate) struct Turns {
    state: Mutex<State>,
    /// Told of work for the spare thread, and of the end.
    spare: Arc<Spare>,
}

#[derive(Default)]
struct State {
    /// One for each thread that drives a run now.
    lists: Vec<List>,
}

struct List {
    thread: ThreadId,
    runs: VecDeque<Arc<Run>>,
}

#[derive(Default)]
struct Spare {
    inbox: Mutex<Inbox>,
    filled: Condvar,
}

#[derive(Default)]
struct Inbox {
    runs: VecDeque<Arc<Run>>,
    stopped: bool,
}

/// Whether a run has events left that nobody handles.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    Nothing,
    Events,
}

impl Turns {
    /// # Errors
    ///
    /// `Internal` if the spare thread can't be started.
    pub(crate) fn start() -> Result<Arc<Self>, Status> {
        let turns = Arc::new(Self::default());
        let (this, spare) = (Arc::downgrade(&turns), turns.spare.clone());
        Builder::new()
            .name(String::from("ensembles"))
            .spawn(move || spare.work(&this))
            .map_err(|error| Status::internal(format!("can't start a thread: {error}")))?;
        Ok(turns)
    }

    /// Drives a run that has events on this thread, now or in a moment.
    pub(crate) fn take(&self, run: Arc<Run>) {
        self.drive(run, EVENTS_MAX);
    }

    fn drive(&self, run: Arc<Run>, mut budget: usize) {
        let thread = std::thread::current().id();
        if let Some(list) = self.lock().lists.iter_mut().find(|list| list.thread == thread) {
            list.runs.push_back(run);
            return;
        }
        self.lock().lists.push(List { thread, runs: VecDeque::new() });
        let turn = Turn { turns: self, thread };
        let mut current = Some(run);
        while let Some(run) = current {
            if run.drain(&mut budget) == Left::Events {
                self.spare.put(run);
            }
            current = turn.next();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that drives runs. If it comes to grief, others go on with its list.
struct Turn<'a> {
    turns: &'a Turns,
    thread: ThreadId,
}

impl Turn<'_> {
    /// The next run on the list; without one the list goes.
    fn next(&self) -> Option<Arc<Run>> {
        let mut state = self.turns.lock();
        let place = state.lists.iter().position(|list| list.thread == self.thread)?;
        let run = state.lists.get_mut(place)?.runs.pop_front();
        if run.is_none() {
            state.lists.swap_remove(place);
        }
        run
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        while let Some(run) = self.next() {
            self.turns.spare.put(run);
        }
    }
}

impl Drop for Turns {
    /// The thread goes when it has seen this; nobody waits for it.
    fn drop(&mut self) {
        self.spare.lock().stopped = true;
        self.spare.filled.notify_one();
    }
}

impl Spare {
    fn put(&self, run: Arc<Run>) {
        self.lock().runs.push_back(run);
        self.filled.notify_one();
    }

    fn work(&self, turns: &Weak<Turns>) {
        while let Some(run) = self.take() {
            let Some(turns) = turns.upgrade() else { return };
            turns.drive(run, EVENTS_MAX);
        }
    }

    fn take(&self) -> Option<Arc<Run>> {
        let mut inbox = self.lock();
        loop {
            if let Some(run) = inbox.runs.pop_front() {
                return Some(run);
            }
            if inbox.stopped {
                return None;
            }
            inbox = self.filled.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Turns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Turns")
    }
}
