//! Keeps the worker of an instance running.
//!
//! A thread per instance reads what the worker says beside executions, notices its end, fails
//! what it held, and starts it anew: at once, and after further failures with growing pauses.

mod schedule;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use galatea_backend::LogLevel;
use galatea_infer::Status;
use galatea_stdx::{Condvar, Lock};

use crate::process::Process;
use crate::wire::{Frame, FrameSplitter, kind_a};
use crate::worker::{Lost, Started, Worker, unhealthy};
use schedule::Restarts;

/// How long the supervisor sleeps while nothing happens. Free memory is returned after it.
const IDLE: Duration = Duration::from_secs(1);
/// How long a worker may take to end by itself after its sockets did.
const EXIT_GRACE: Duration = Duration::from_millis(200);

/// Starts workers of an instance.
pub(crate) trait Starter: Send + Sync {
    /// Starts one that serves.
    fn start(&self) -> Result<Started, Status>;
    /// The instance's name.
    fn instance(&self) -> &str;
    /// Writes a line to the log.
    fn log(&self, level: LogLevel, message: &str);
    /// How long `finalize` of the model may take.
    fn finalize_patience(&self) -> Duration;
}

/// What the threads of an instance share.
pub(crate) struct Supervised {
    state: Lock<State>,
    changed: Condvar,
    starter: Box<dyn Starter>,
}

enum State {
    Serving(Arc<Worker>),
    /// It is being started again.
    Starting,
    /// It could not be started; it is tried again later.
    Broken(Status),
    /// The instance ends.
    Stopped,
}

/// Runs the supervisor's thread. Dropping it ends the worker.
pub(crate) struct Supervisor {
    shared: Arc<Supervised>,
    thread: Option<JoinHandle<()>>,
}

impl Supervisor {
    /// Starts the first worker.
    ///
    /// # Errors
    ///
    /// Why it could not be started.
    pub(crate) fn start(starter: Box<dyn Starter>) -> Result<Self, Status> {
        let started = starter.start()?;
        let state = Lock::new(State::Serving(started.worker.clone()));
        let shared = Arc::new(Supervised { state, changed: Condvar::default(), starter });
        let supervised = shared.clone();
        let thread = std::thread::Builder::new()
            .name(String::from("python-worker"))
            .spawn(move || supervised.run(started))
            .map_err(|error| Status::internal(format!("failed to start a thread: {error}")))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    pub(crate) const fn shared(&self) -> &Arc<Supervised> {
        &self.shared
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            // It has logged its panic.
            let _ = thread.join();
        }
    }
}

impl Supervised {
    /// The worker, once it serves.
    ///
    /// # Errors
    ///
    /// Why there is none, and that it is tried again.
    pub(crate) fn worker(&self) -> Result<Arc<Worker>, Status> {
        let mut state = self.state.lock("find the worker");
        loop {
            match &*state {
                State::Serving(worker) => return Ok(worker.clone()),
                State::Starting => state = self.changed.wait(state),
                State::Broken(reason) => return Err(reason.clone()),
                State::Stopped => return Err(Status::unavailable("the model is being unloaded")),
            }
        }
    }

    /// Whether there is a worker, without waiting for one.
    pub(crate) fn serving(&self) -> Option<Arc<Worker>> {
        match &*self.state.lock("look for the worker") {
            State::Serving(worker) => Some(worker.clone()),
            State::Starting | State::Broken(_) | State::Stopped => None,
        }
    }

    /// Gives a worker up that an execution has lost. The supervisor sees its end.
    pub(crate) fn lost(&self, worker: &Worker, lost: &Lost) {
        let mut state = self.state.lock("give a worker up");
        if matches!(&*state, State::Serving(serving) if std::ptr::eq(&**serving, worker)) {
            *state = State::Starting;
        }
        drop(state);
        if matches!(lost, Lost::Ended) {
            // The supervisor finds out how, and tells it to those who wait.
            return worker.link.close();
        }
        worker.give_up(&self.unhealthy(&lost.describe(worker.patience())));
    }

    fn unhealthy(&self, what: &str) -> Status {
        unhealthy(self.starter.instance(), what)
    }

    fn stop(&self) {
        let state = std::mem::replace(&mut *self.state.lock("end the worker"), State::Stopped);
        self.changed.notify_all();
        if let State::Serving(worker) = state {
            worker.link.wake();
        }
    }

    fn is_stopped(&self) -> bool {
        matches!(&*self.state.lock("see whether it ends"), State::Stopped)
    }

    fn run(&self, first: Started) {
        let mut restarts = Restarts::default();
        let mut started = first;
        loop {
            let begun = Instant::now();
            let Some(how) = self.serve(started) else { return };
            self.starter.log(
                LogLevel::Error,
                &format!(
                    "the Python worker of '{}' {how}; it is started anew",
                    self.starter.instance()
                ),
            );
            restarts.served(begun.elapsed());
            match self.restart(&mut restarts) {
                Some(next) => started = next,
                None => return,
            }
        }
    }

    /// Serves a worker until it ends; `None` if the instance ends.
    fn serve(&self, started: Started) -> Option<String> {
        let Started { worker, mut process, mut others, .. } = started;
        let lost = loop {
            if self.is_stopped() {
                self.end(&worker, &mut process, &mut others);
                return None;
            }
            let events = worker.link.wait(process.handle.as_ref(), IDLE);
            if events.is_idle {
                worker.trim();
            }
            if events.b
                && let Err(lost) = worker.read_messages(&mut others)
            {
                break lost;
            }
            if events.has_exited && !events.b {
                break Lost::Ended;
            }
        };
        if self.is_stopped() {
            self.end(&worker, &mut process, &mut others);
            return None;
        }
        let mut state = self.state.lock("start the worker anew");
        if !matches!(*state, State::Stopped) {
            *state = State::Starting;
        }
        drop(state);
        worker.link.close();
        let how = match lost {
            Lost::Ended if worker.is_given_up() => process.kill(),
            Lost::Ended => process.stop(EXIT_GRACE),
            other => {
                process.kill();
                other.describe(Duration::ZERO)
            }
        };
        worker.give_up(&self.unhealthy(&how));
        Some(how)
    }

    /// Lets a worker finish.
    fn end(&self, worker: &Arc<Worker>, process: &mut Process, others: &mut FrameSplitter) {
        worker.link.send_a(&Frame::new(kind_a::FINALIZE).finish());
        let deadline = Instant::now().checked_add(self.starter.finalize_patience());
        loop {
            let events = worker.link.wait(process.handle.as_ref(), EXIT_GRACE);
            let has_ended = events.b && worker.read_messages(others).is_err();
            let is_over = deadline.is_none_or(|deadline| Instant::now() >= deadline);
            if has_ended || events.has_exited || is_over {
                break;
            }
        }
        process.stop(EXIT_GRACE);
        worker.give_up(&Status::unavailable("the model was unloaded"));
    }

    /// Starts another worker; `None` if the instance ends.
    fn restart(&self, restarts: &mut Restarts) -> Option<Started> {
        loop {
            if !self.pause(restarts.pause()) {
                return None;
            }
            match self.starter.start() {
                Ok(started) => {
                    let mut state = self.state.lock("serve again");
                    if !matches!(*state, State::Stopped) {
                        *state = State::Serving(started.worker.clone());
                    }
                    drop(state);
                    self.changed.notify_all();
                    return Some(started);
                }
                Err(status) => {
                    restarts.failed();
                    self.break_with(status);
                }
            }
        }
    }

    fn break_with(&self, status: Status) {
        let text = format!("could not be started anew: {}", status.message());
        let instance = self.starter.instance();
        self.starter.log(LogLevel::Error, &format!("the Python worker of '{instance}' {text}"));
        let mut state = self.state.lock("wait before another start");
        if !matches!(*state, State::Stopped) {
            *state = State::Broken(self.unhealthy(&text));
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits; false if the instance ends.
    fn pause(&self, pause: Duration) -> bool {
        let deadline = Instant::now().checked_add(pause);
        let mut state = self.state.lock("wait before another start");
        loop {
            if matches!(*state, State::Stopped) {
                return false;
            }
            let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
            match left.filter(|left| !left.is_zero()) {
                Some(left) => state = self.changed.wait_timeout(state, left),
                None => return true,
            }
        }
    }
}
