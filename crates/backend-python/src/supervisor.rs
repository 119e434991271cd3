//! Keeps the worker of an instance running: the protocol of a worker's death.
//!
//! [`WorkerLife`] decides when a worker is given up, ended and started anew; this is its driver,
//! with a thread per instance. The death costs the requests that the worker holds, and each of
//! them one error. Other instances don't notice.
//!
//! # The steps
//!
//! 1. **A thread notices.** The lane's thread, in `Worker::begin` or `Worker::wait`: the socket of
//!    executions has ended, brought nonsense, or was silent for `execute-timeout-seconds`
//!    ([`Lost`]), which it reports to [`Supervised::lost`]. Or the supervisor's thread
//!    (`Supervised::listen`): the same on the second socket, or the handle of the process tells
//!    its end. Without a time limit, a model that loops is an execution that lasts.
//! 2. **No batch gets this worker any more.** The event moves [`WorkerLife`] out of `Serving`
//!    under the lock of [`SupervisorState`]. From then on [`Supervised::worker`] waits or refuses, and
//!    [`Supervised::serving`] finds none, so that an I/O thread leaves its batch to the lane.
//! 3. **The process ends.** Nonsense and silence kill it at once. If only its sockets ended, it has
//!    `EXIT_GRACE_NS` to end by itself, so that its exit status tells why; then it is asked, then
//!    killed, with its group of processes.
//! 4. **Its execution fails.** `WorkerAction::GiveUp` calls `Worker::give_up`: each request that
//!    `HeldRequests` has fails for [`FailureReason::Backend`](galatea_infer::FailureReason) with
//!    the cause in its text, the calls of other models are cancelled, the open readiness question
//!    ends, and the sockets are shut down. That wakes the lane's thread if it still reads. It
//!    drops the batch, whose requests have no way back any more, which releases their sequences,
//!    and asks for the next batch.
//! 5. **The next start.** It begins when the process has ended, never before: `WorkerLife` says
//!    after which pause. A template forks the worker. One that ends, hangs or forks a worker that
//!    does not speak is given up for a time ([`TemplateLife`](galatea_policy::TemplateLife)), and
//!    in the same start the worker begins by itself (`Started::launch`).
//! 6. **Requests wait or fail.** The instance's next batch waits in [`Supervised::worker`] during
//!    starts and short pauses; other batches wait in the scheduler, or go to other instances.
//!    During long pauses, and after a start that failed, a batch is refused with the cause. The
//!    model is not ready until the worker serves.
//! 7. **It serves again.** `Supervised::start` puts the new worker in place, steps `Started`, and
//!    wakes who waits.
//! 8. **The instance ends.** The lane's thread drops its instance, and with it [`Supervisor`],
//!    which waits until senders have answered their requests, as in Triton. A request whose client
//!    has left is not waited for. Then `WorkerEvent::Stop` lets the worker finalize its model, then it is asked to end, then
//!    killed. The drop waits for that.
//!
//! # The races
//!
//! - **Two threads notice.** Both report under one lock, and `WorkerLife` ignores the second
//!   event. The first cause stays (`State::loss`).
//! - **A late report.** A lane may report a worker whose successor serves already.
//!   [`Supervised::lost`] compares the workers and ignores it.
//! - **The death while a batch is handed over.** `HeldRequests` is closed once, under its lock.
//!   A request that comes later is refused and its batch goes back to the lane, which fails it.
//!   A request that came before fails in step 4, and the send, or the read behind it, finds the
//!   sockets ended.
//! - **The death behind a result.** The lane may have the result while step 4 runs. The way back
//!   to a caller is taken from `HeldRequests` by one of them, so the caller gets the answer or the
//!   error. If a sender has the request, the lane only counts it: `Count` lets the first of the
//!   two count, as executed or as failed. Frames on the second socket are read to their end before
//!   the end of the process counts; a lane that waits for them waits a second at most
//!   (`FrameProgress::wait_for`).
//! - **The death while a sender's response is passed on.** The request is out of `HeldRequests` to
//!   be answered without a lock. `HeldRequests::put_back` finds them closed and fails it.
//! - **The death while calls of other models are in flight.** Their replies find the sockets shut:
//!   the memory of the reply is given back, and the reply is dropped. A call that the lane's thread
//!   reads behind step 4 is not cancelled; it runs to its end for no one.
//! - **The process ends, but not its sockets,** because a process that it has forked holds them.
//!   The handle of the process tells, and `Link::close` ends the lane's read.
//! - **The end of the instance during a death.** `Stop` is noted in each state: a process that is
//!   ending is not followed by another, a pause is over at once, a start looks every
//!   `CHECK_INTERVAL` and ends its process. But an instance ends behind its batch: a batch that
//!   waits for a start lets the unload wait, too, as long as `initialize` takes.
//! - **The unload of a version whose requests are with senders.** The scheduler is drained when its
//!   lanes are free; step 8 waits for the senders, on the lane's thread. What a worker holds at its
//!   end, because the client has left, fails with `the model was unloaded`.
//! - **The death of a template.** Workers outlive it. A worker's number is trusted only if the
//!   template still lived when the worker's handle was open (`Process::forked`). A template
//!   keeps the numbers of its workers until it is asked how they ended. If it is gone, that
//!   may be unknown, and a number that another process may have by then is not signalled
//!   (`Process::has_number`).
//! - **Two deaths at once.** Each instance has a supervisor, a life and a process of its own. They
//!   share the templates of an environment, whose lock lets one start at a time ask.
//! - **The death of the server.** The system closes the lifelines (`Process`), which kills
//!   templates and workers.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use galatea_backend::LogLevel;
use galatea_infer::Status;
use galatea_policy::{Time, WorkerAction, WorkerEvent, WorkerLife, WorkerStatus, WorkerWait};
use galatea_stdx::{Condvar, Lock};

use crate::process::Process;
use crate::wire::{Frame, FrameSplitter, to_a};
use crate::worker::{Lost, Started, Worker, unhealthy};

/// The time that the supervisor sleeps while nothing happens. Free memory is returned after it.
const IDLE: Duration = Duration::from_secs(1);

/// Starts workers of an instance.
pub(crate) trait Starter: Send + Sync {
    /// Starts one that serves, unless it is cancelled meanwhile.
    fn start(&self, is_cancelled: &dyn Fn() -> bool) -> Result<Started, Status>;
    /// The instance's name.
    fn instance(&self) -> &str;
    /// Writes a line to the log.
    fn log(&self, level: LogLevel, message: &str);
    /// The time that `finalize` of the model may take.
    fn finalize_patience(&self) -> Duration;
}

/// The state that the threads of an instance share.
pub(crate) struct Supervised {
    state: Lock<SupervisorState>,
    changed: Condvar,
    starter: Box<dyn Starter>,
    /// When time began.
    origin: Instant,
}

struct SupervisorState {
    life: WorkerLife,
    /// The tasks of the supervisor's thread.
    actions: Vec<WorkerAction>,
    /// The worker that serves, or served last.
    worker: Arc<Worker>,
    /// The end of the worker, in words that follow "the worker".
    loss: Option<String>,
    /// Why requests fail while no worker serves.
    reason: Status,
}

/// A worker's process, as the supervisor's thread sees it.
struct RunningWorker {
    worker: Arc<Worker>,
    process: Process,
    /// The reader of the second socket.
    others: FrameSplitter,
    /// True if the second socket was read to its end.
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
        let state = SupervisorState {
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
        self.shared.wait_until_answered();
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

    /// The worker that serves, without waiting for one.
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

    fn lose(&self, state: &mut SupervisorState, lost: &Lost) {
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

    /// Waits until requests that are with senders have their last responses.
    fn wait_until_answered(&self) {
        let worker = self.state.lock("find the last worker").worker.clone();
        worker.wait_until_answered();
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
        let mut running = Some(RunningWorker::new(first));
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
    fn act(&self, running: &mut Option<RunningWorker>) {
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
    fn listen(&self, running: &mut RunningWorker, timeout: Duration) {
        let RunningWorker { worker, process, others, .. } = running;
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
    fn notice_exit(&self, running: &mut Option<RunningWorker>) {
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
    fn start(&self) -> Option<RunningWorker> {
        match self.starter.start(&|| self.is_stopping()) {
            Ok(started) => {
                let mut state = self.state.lock("serve again");
                state.worker = started.worker.clone();
                state.loss = None;
                drop(state);
                self.step("serve again", WorkerEvent::Started);
                Some(RunningWorker::new(started))
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

impl RunningWorker {
    fn new(started: Started) -> Self {
        let Started { worker, process, others, .. } = started;
        Self { worker, process, others, is_drained: false, has_exited: false }
    }

    fn finalize(&self) {
        self.worker.link.send_a(&Frame::new(to_a::FINALIZE).finish());
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

    /// Ends the rest of the process, and returns the words for its end.
    fn end(mut self) -> String {
        self.process.kill()
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
