//! The threads that load models.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::left_of;

/// Something to do on a thread of the pool.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// What to do when nothing is left to do.
pub(super) type Settle = Box<dyn Fn() + Send + Sync>;

/// Threads that start when they are needed, up to a number, and end when there is
/// nothing left to do: an idle server keeps no memory for them.
///
/// The queue needs no bound: there is one load per model at a time, with as many
/// jobs as it has versions.
pub(super) struct Pool {
    shared: Arc<Shared>,
    threads_max: usize,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Called by the last thread that ends.
    settle: Settle,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    /// Threads that execute a job.
    busy: usize,
    stopped: bool,
}

impl Pool {
    pub(super) fn new(threads_max: usize, settle: Settle) -> Self {
        let shared = Shared { state: Mutex::default(), changed: Condvar::new(), settle };
        Self { shared: Arc::new(shared), threads_max: threads_max.max(1) }
    }

    /// Does it on a thread; on this one if not even one can be started.
    pub(super) fn submit(&self, job: Job) {
        let mut state = self.shared.lock();
        if state.stopped {
            // What it would tell nobody waits for any more.
            return;
        }
        let is_short = state.busy + state.jobs.len() >= state.threads;
        state.jobs.push_back(job);
        if is_short && state.threads < self.threads_max {
            state.threads += 1;
            drop(state);
            self.start_thread();
        }
    }

    fn start_thread(&self) {
        let shared = self.shared.clone();
        let name = String::from("galatea-loader");
        let started = std::thread::Builder::new().name(name).spawn(move || shared.run());
        if started.is_ok() {
            return;
        }
        let mut state = self.shared.lock();
        state.threads -= 1;
        let orphan = if state.threads == 0 { state.jobs.pop_back() } else { None };
        drop(state);
        if let Some(job) = orphan {
            job();
        }
    }

    /// Waits until there is nothing to do, up to `timeout`; returns how many
    /// jobs are left.
    pub(super) fn wait_idle(&self, timeout: Duration) -> usize {
        let start = Instant::now();
        let mut state = self.shared.lock();
        while state.busy + state.jobs.len() > 0 {
            let left = left_of(start, timeout);
            if left.is_zero() {
                break;
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.busy + state.jobs.len()
    }

    /// Lets the threads end, each after its job. Nobody waits for that.
    pub(super) fn stop(&self) {
        let mut state = self.shared.lock();
        state.stopped = true;
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        drop(jobs);
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let is_last = loop {
            match self.next() {
                Next::Job(job) => {
                    // A job reports its own failures; this one would be a bug, which
                    // must not take the thread along.
                    let _ = catch_unwind(AssertUnwindSafe(job));
                    self.lock().busy -= 1;
                    self.changed.notify_all();
                }
                Next::End { is_last } => break is_last,
            }
        };
        if is_last {
            (self.settle)();
        }
    }

    /// The next job; without one the thread that asks ends.
    fn next(&self) -> Next {
        let mut state = self.lock();
        if let Some(job) = state.jobs.pop_front() {
            state.busy += 1;
            return Next::Job(job);
        }
        state.threads -= 1;
        Next::End { is_last: state.threads == 0 }
    }
}

/// What a thread does next.
enum Next {
    Job(Job),
    End { is_last: bool },
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn the_last_thread_settles_when_all_jobs_are_done() {
        let (sender, receiver) = mpsc::channel();
        let (settled, release) = (sender.clone(), mpsc::channel());
        let pool = Pool::new(1, Box::new(move || settled.send("settled").unwrap()));
        let wait = release.1;
        pool.submit(Box::new(move || wait.recv().unwrap()));
        for _ in 0..2 {
            let sender = sender.clone();
            pool.submit(Box::new(move || sender.send("job").unwrap()));
        }
        drop(sender);
        release.0.send(()).unwrap();
        drop(pool);
        assert_eq!(receiver.iter().collect::<Vec<_>>(), ["job", "job", "settled"]);
    }

    #[test]
    fn who_ends_while_others_work_does_not_settle() {
        let (sender, receiver) = mpsc::channel();
        let settled = sender.clone();
        let pool = Pool::new(2, Box::new(move || settled.send("settled").unwrap()));
        let (release, wait) = mpsc::channel::<()>();
        pool.submit(Box::new(move || {
            wait.recv().unwrap();
            sender.send("long").unwrap();
        }));
        pool.submit(Box::new(|| {}));
        while pool.shared.lock().threads > 1 {
            std::thread::yield_now();
        }
        release.send(()).unwrap();
        drop(pool);
        assert_eq!(receiver.iter().collect::<Vec<_>>(), ["long", "settled"]);
    }
}
