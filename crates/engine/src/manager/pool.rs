//! The thread pool that loads models.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use galatea_policy::ModelId;
use galatea_stdx::{Condvar, Lock};

/// A job's work.
pub(super) type Work = Box<dyn FnOnce() + Send>;

/// Work for a pool thread, and the model that it concerns.
struct Job {
    id: ModelId,
    work: Work,
}

/// A hook that the last thread calls when it ends.
pub(super) type OnIdle = Box<dyn Fn() + Send + Sync>;

/// A thread pool. Threads start on demand, up to a maximum number, and end when no job is left, so
/// an idle server spends no memory on them.
///
/// The queue needs no limit: a model has one load at a time, with at most one job per version.
pub(super) struct Pool {
    shared: Arc<PoolShared>,
    threads_max: usize,
}

struct PoolShared {
    state: Lock<PoolState>,
    changed: Condvar,
    on_idle: OnIdle,
}

#[derive(Default)]
struct PoolState {
    jobs: VecDeque<Job>,
    threads: usize,
    /// The number of threads executing a job.
    busy: usize,
    is_stopped: bool,
}

impl Pool {
    pub(super) fn new(threads_max: usize, on_idle: OnIdle) -> Self {
        let shared = PoolShared { state: Lock::default(), changed: Condvar::new(), on_idle };
        Self { shared: Arc::new(shared), threads_max: threads_max.max(1) }
    }

    /// Executes a job on a pool thread, or on the calling thread if none can be started. A stopped
    /// pool drops the job.
    pub(super) fn submit(&self, id: ModelId, work: Work) {
        let job = Job { id, work };
        let mut state = self.shared.state.lock("add a job");
        if state.is_stopped {
            drop(state);
            drop(job);
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
        let mut state = self.shared.state.lock("note that no thread could be started");
        state.threads -= 1;
        let orphan = if state.threads == 0 { state.jobs.pop_back() } else { None };
        drop(state);
        if let Some(job) = orphan {
            (job.work)();
        }
    }

    /// Removes the waiting jobs of these models and returns them for the caller to execute.
    pub(super) fn withdraw(&self, ids: &[ModelId]) -> Vec<Work> {
        if ids.is_empty() {
            return Vec::new();
        }
        let mut state = self.shared.state.lock("withdraw jobs");
        let jobs = std::mem::take(&mut state.jobs);
        let (withdrawn, kept) = jobs.into_iter().partition(|job| ids.contains(&job.id));
        state.jobs = kept;
        drop(state);
        self.shared.changed.notify_all();
        let withdrawn: VecDeque<Job> = withdrawn;
        withdrawn.into_iter().map(|job| job.work).collect()
    }

    /// Waits up to `timeout` until no job is left. Returns the number of remaining jobs.
    pub(super) fn wait_idle(&self, timeout: Duration) -> usize {
        let start = Instant::now();
        let mut state = self.shared.state.lock("wait until no job is left");
        while state.busy + state.jobs.len() > 0 {
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                break;
            }
            state = self.shared.changed.wait_timeout(state, left);
        }
        state.busy + state.jobs.len()
    }

    /// Drops the waiting jobs, and lets each thread end after its current job without waiting for
    /// it.
    pub(super) fn stop(&self) {
        let mut state = self.shared.state.lock("stop");
        state.is_stopped = true;
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        drop(jobs);
        self.shared.changed.notify_all();
    }
}

impl PoolShared {
    fn run(&self) {
        let is_last = loop {
            match self.next() {
                NextJob::Job(job) => {
                    // A job reports its own failures. A panic is a bug, and must not end the
                    // thread.
                    let _ = catch_unwind(AssertUnwindSafe(job.work));
                    self.state.lock("end a job").busy -= 1;
                    self.changed.notify_all();
                }
                NextJob::None { is_last } => break is_last,
            }
        };
        if is_last {
            (self.on_idle)();
        }
    }

    /// Returns the next job. If there is none, the calling thread ends.
    fn next(&self) -> NextJob {
        let mut state = self.state.lock("take a job");
        if let Some(job) = state.jobs.pop_front() {
            state.busy += 1;
            return NextJob::Job(job);
        }
        state.threads -= 1;
        NextJob::None { is_last: state.threads == 0 }
    }
}

enum NextJob {
    Job(Job),
    None { is_last: bool },
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use galatea_stdx::testing::wait_until;

    use super::*;

    #[test]
    fn the_last_thread_reports_idle_when_all_jobs_are_done() {
        let (sender, receiver) = mpsc::channel();
        let (idle, release) = (sender.clone(), mpsc::channel());
        let pool = Pool::new(1, Box::new(move || idle.send("idle").unwrap()));
        let wait = release.1;
        pool.submit("m".into(), Box::new(move || wait.recv().unwrap()));
        for _ in 0..2 {
            let sender = sender.clone();
            pool.submit("m".into(), Box::new(move || sender.send("job").unwrap()));
        }
        drop(sender);
        release.0.send(()).unwrap();
        drop(pool);
        assert_eq!(receiver.iter().collect::<Vec<_>>(), ["job", "job", "idle"]);
    }

    #[test]
    fn a_thread_that_ends_beside_a_busy_one_does_not_report_idle() {
        let (sender, receiver) = mpsc::channel();
        let idle = sender.clone();
        let pool = Pool::new(2, Box::new(move || idle.send("idle").unwrap()));
        let (release, wait) = mpsc::channel::<()>();
        pool.submit(
            "m".into(),
            Box::new(move || {
                wait.recv().unwrap();
                sender.send("long").unwrap();
            }),
        );
        pool.submit("m".into(), Box::new(|| {}));
        let thread_count = || pool.shared.state.lock("count threads").threads;
        wait_until("the idle thread has ended", || thread_count() == 1);
        release.send(()).unwrap();
        drop(pool);
        assert_eq!(receiver.iter().collect::<Vec<_>>(), ["long", "idle"]);
    }

    #[test]
    fn jobs_that_wait_can_be_withdrawn() {
        let (sender, receiver) = mpsc::channel();
        let pool = Pool::new(1, Box::new(|| {}));
        let (start, started) = mpsc::channel::<()>();
        let (release, wait) = mpsc::channel::<()>();
        pool.submit(
            "busy".into(),
            Box::new(move || {
                start.send(()).unwrap();
                wait.recv().unwrap();
            }),
        );
        started.recv().unwrap();
        for (id, text) in [("a", "a1"), ("b", "b1"), ("a", "a2")] {
            let sender = sender.clone();
            pool.submit(id.into(), Box::new(move || sender.send(text).unwrap()));
        }
        drop(sender);
        assert!(pool.withdraw(&[]).is_empty());
        let withdrawn = pool.withdraw(&["a".into(), "busy".into()]);
        withdrawn.into_iter().for_each(|work| work());
        release.send(()).unwrap();
        drop(pool);
        assert_eq!(receiver.iter().collect::<Vec<_>>(), ["a1", "a2", "b1"]);
    }
}
