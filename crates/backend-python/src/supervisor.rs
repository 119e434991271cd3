//! Keeps the worker of an instance running.
//!
//! A thread per instance reads what the worker says beside executions, notices its end, fails
//! what it held, and starts it anew. What is done and when is decided by
//! [`galatea_policy::WorkerLife`]; this is its driver.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use galatea_backend::LogLevel;
use galatea_infer::Status;
use galatea_policy::{Time, WorkerAction, WorkerEvent, WorkerLife, WorkerStatus, WorkerWait};
use galatea_stdx::{Condvar, Lock};

use crate::process::Process;
use crate::wire::{Frame, FrameSplitter, kind_a};
use crate::worker::{Lost, Started, Worker, unhealthy};

/// How long the supervisor sleeps while nothing happens. Free memory is returned after it.
const IDLE: Duration = Duration::from_secs(1);

/// Starts workers of an instance.
pub(crate) trait Starter: Send + Sync {
    /// Starts one that serves, unless it is cancelled meanwhile.
    fn start(&self, is_cancelled: &dyn Fn() -> bool) -> Result<Started, Status>;
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
    /// When time began.
    origin: Instant,
}

struct State {
    life: WorkerLife,
    /// What the supervisor's thread has to do.
    actions: Vec<WorkerAction>,
    /// The worker that serves, or served last.
    worker: Arc<Worker>,
    /// What happened to it, behind "the worker".
    loss: Option<String>,
    /// Why requests fail while no worker serves.
    reason: Status,
}

/// A worker's process, as the supervisor's thread sees it.
struct Running {
    worker: Arc<Worker>,
    process: Process,
    /// The reader of the second socket.
    others: FrameSplitter,
    /// Whether the second socket was read to its end.
    is_drained: bool,
    has_exited: bool,
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
        let started = starter.start(&|| false)?;
        let finalize_ns = nanoseconds(starter.finalize_patience());
        let state = State {
            life: WorkerLife::serving(Time(0), finalize_ns),
            actions: Vec::new(),
            worker: started.worker.clone(),
            loss: None,
            reason: unhealthy(starter.instance(), "has ended"),
        };
        let (changed, origin) = (Condvar::default(), Instant::now());
        let shared = Arc::new(Supervised { state: Lock::new(state), changed, starter, origin });
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

/// For the threads that execute and ask.
impl Supervised {
    /// The worker, once it serves.
    ///
    /// # Errors
    ///
    /// Why there is none, and that it is tried again.
    pub(crate) fn worker(&self) -> Result<Arc<Worker>, Status> {
        let mut state = self.state.lock("find the worker");
        loop {
            match state.life.status() {
                WorkerStatus::Serving => return Ok(state.worker.clone()),
                WorkerStatus::Starting => state = self.changed.wait(state),
                WorkerStatus::Broken => return Err(state.reason.clone()),
                WorkerStatus::Stopped => {
                    return Err(Status::unavailable("the model is being unloaded"));
                }
            }
        }
    }

    /// Whether there is a worker, without waiting for one.
    pub(crate) fn serving(&self) -> Option<Arc<Worker>> {
        let state = self.state.lock("look for the worker");
        (state.life.status() == WorkerStatus::Serving).then(|| state.worker.clone())
    }

    /// Gives a worker up that an execution has lost.
    pub(crate) fn lost(&self, worker: &Arc<Worker>, lost: &Lost) {
        let mut state = self.state.lock("give a worker up");
        if Arc::ptr_eq(&state.worker, worker) {
            self.lose(&mut state, lost);
        }
        drop(state);
        self.changed.notify_all();
        worker.link.wake();
    }

    fn lose(&self, state: &mut State, lost: &Lost) {
        let event = match lost {
            // How its process ends tells more.
            Lost::Ended => WorkerEvent::SocketsEnded,
            Lost::Malformed(_) | Lost::TimedOut => {
                let how = lost.describe(state.worker.patience());
                state.loss.get_or_insert(how);
                WorkerEvent::Failed
            }
        };
        state.life.step(self.now(), event, &mut state.actions);
    }

    fn stop(&self) {
        let worker = self.step("end the worker", WorkerEvent::Stop);
        worker.link.wake();
    }

    fn step(&self, purpose: &'static str, event: WorkerEvent) -> Arc<Worker> {
        let mut guard = self.state.lock(purpose);
        let state = &mut *guard;
        state.life.step(self.now(), event, &mut state.actions);
        let worker = state.worker.clone();
        drop(guard);
        self.changed.notify_all();
        worker
    }

    fn now(&self) -> Time {
        Time(nanoseconds(self.origin.elapsed()))
    }

    fn is_stopping(&self) -> bool {
        self.state.lock("see whether it ends").life.status() == WorkerStatus::Stopped
    }
}

/// The supervisor's thread.
impl Supervised {
    fn run(&self, first: Started) {
        let mut running = Some(Running::new(first));
        loop {
            self.act(&mut running);
            let state = self.state.lock("plan");
            let (wait, wakeup) = (state.life.wait(), state.life.next_wakeup());
            let has_actions = !state.actions.is_empty();
            drop(state);
            if has_actions {
                continue;
            }
            let left = wakeup.map(|time| time.saturating_since(self.now()));
            let left = left.map_or(IDLE, |left| Duration::from_nanos(left).min(IDLE));
            match (wait, running.as_mut()) {
                (WorkerWait::Messages, Some(running)) => self.listen(running, left),
                (WorkerWait::Exit, Some(running)) => running.wait_for_exit(left),
                (WorkerWait::Pause, _) => self.pause(left),
                (WorkerWait::Start | WorkerWait::Over, _) | (_, None) => return,
            }
            self.notice_exit(&mut running);
            self.step("see what time it is", WorkerEvent::Tick);
        }
    }

    /// Does what was decided.
    fn act(&self, running: &mut Option<Running>) {
        let actions = std::mem::take(&mut self.state.lock("act").actions);
        for action in actions {
            match (action, running.as_mut()) {
                (WorkerAction::GiveUp, _) => self.give_up(),
                (WorkerAction::Start, _) => *running = self.start(),
                (WorkerAction::Finalize, Some(running)) => running.finalize(),
                (WorkerAction::Terminate, Some(running)) => running.process.terminate(),
                (WorkerAction::Kill, Some(running)) => running.process.signal_to_die(),
                (WorkerAction::Finalize | WorkerAction::Terminate | WorkerAction::Kill, None) => {}
            }
        }
    }

    /// Reads what the worker says.
    fn listen(&self, running: &mut Running, timeout: Duration) {
        let Running { worker, process, others, .. } = running;
        let events = worker.link.wait(process.handle.as_ref(), timeout);
        if events.is_idle {
            worker.trim();
        }
        if events.b
            && let Err(lost) = worker.read_messages(others)
        {
            running.is_drained = true;
            self.lose(&mut self.state.lock("lose the worker"), &lost);
            self.changed.notify_all();
        }
        // What it sent before its end is read first.
        running.has_exited = events.has_exited && !events.b;
    }

    /// The end of the process, when what it sent was read.
    fn notice_exit(&self, running: &mut Option<Running>) {
        let Some(ended) = running.take_if(|running| running.has_exited) else { return };
        let how = ended.end();
        self.state.lock("note how it ended").loss.get_or_insert(how);
        self.step("end a worker", WorkerEvent::Exited);
    }

    /// Fails what the worker held.
    fn give_up(&self) {
        let is_stopping = self.is_stopping();
        let mut state = self.state.lock("give the worker up");
        let how = state.loss.clone().unwrap_or_else(|| Lost::Ended.describe(Duration::ZERO));
        let reason = if is_stopping {
            Status::unavailable("the model was unloaded")
        } else {
            unhealthy(self.starter.instance(), &how)
        };
        state.reason = reason.clone();
        let worker = state.worker.clone();
        drop(state);
        worker.give_up(&reason);
        if !is_stopping {
            self.log(&format!("{how}; it is started anew"));
        }
    }

    /// Starts another worker.
    fn start(&self) -> Option<Running> {
        match self.starter.start(&|| self.is_stopping()) {
            Ok(started) => {
                let mut state = self.state.lock("serve again");
                state.worker = started.worker.clone();
                state.loss = None;
                drop(state);
                self.step("serve again", WorkerEvent::Started);
                Some(Running::new(started))
            }
            Err(status) => {
                let text = format!("could not be started anew: {}", status.message());
                if !self.is_stopping() {
                    self.log(&text);
                }
                self.state.lock("fail to start").reason = unhealthy(self.starter.instance(), &text);
                self.step("fail to start", WorkerEvent::StartFailed);
                None
            }
        }
    }

    fn log(&self, text: &str) {
        let instance = self.starter.instance();
        self.starter.log(LogLevel::Error, &format!("the Python worker of '{instance}' {text}"));
    }

    /// Waits, unless the instance ends.
    fn pause(&self, pause: Duration) {
        let state = self.state.lock("wait before another start");
        if state.life.wait() == WorkerWait::Pause {
            drop(self.changed.wait_timeout(state, pause));
        }
    }
}

impl Running {
    fn new(started: Started) -> Self {
        let Started { worker, process, others, .. } = started;
        Self { worker, process, others, is_drained: false, has_exited: false }
    }

    fn finalize(&self) {
        self.worker.link.send_a(&Frame::new(kind_a::FINALIZE).finish());
    }

    /// Reads what the process has sent, and waits for its end.
    fn wait_for_exit(&mut self, timeout: Duration) {
        self.worker.link.close();
        // Nothing more comes: the loop ends with the bytes that are there.
        while !std::mem::replace(&mut self.is_drained, true) {
            self.is_drained = self.worker.read_messages(&mut self.others).is_err();
        }
        self.has_exited = self.process.wait(timeout);
    }

    /// What is left of the process ends; returns how it ended.
    fn end(mut self) -> String {
        self.process.kill()
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
