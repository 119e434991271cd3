//! Keeps an instance's worker running: the protocol for a worker's death.
//!
//! [`WorkerProcessLifecycle`] decides when a worker is given up, ended and restarted. This module drives it,
//! with one thread per instance. When a worker dies, each request that it holds fails with exactly
//! one error. Other instances are not affected.
//!
//! # The steps
//!
//! 1. **A thread notices.** The lane's thread may notice in `Worker::begin` or `Worker::wait` that
//!    the socket for executions has been closed, has delivered a malformed message, or has been
//!    silent for `execute-timeout-seconds` ([`WorkerLoss`]). The thread of a slot may notice in
//!    `Worker::execute_in_slot` that senders haven't answered its request within that time. It
//!    reports this to [`SupervisedInstance::lost`]. Or the supervisor's thread (`SupervisedInstance::listen`)
//!    notices the same on the second socket, or the process handle signals the end of the process.
//!    Without a time limit, a model that loops forever is simply a long execution.
//! 2. **This worker gets no more batches.** The event moves [`WorkerProcessLifecycle`] out of `Serving` under
//!    [`SupervisorState`]'s lock. From then on [`SupervisedInstance::worker`] waits or refuses, and
//!    [`SupervisedInstance::serving`] finds no worker, so that an I/O thread leaves its batch to
//!    the lane.
//! 3. **The process ends.** After a malformed message or a timeout, it is killed immediately. If
//!    only its sockets were closed, it has `EXIT_GRACE_NS` to exit on its own, so that its exit
//!    status reveals the cause. After that, it is asked to terminate, and then killed along with
//!    its process group.
//! 4. **Its execution fails.** `WorkerProcessAction::GiveUp` calls `Worker::give_up`: each request in
//!    `HeldRequests` fails with [`FailureReason::Backend`](galatea_infer::FailureReason) and the
//!    cause in its message, calls to other models are cancelled, the open readiness check ends, and
//!    the sockets are shut down. This wakes the lane's thread if it is still reading. The lane
//!    drops the batch, whose requests no longer have reply channels; this releases their sequences.
//!    The lane then asks for the next batch.
//! 5. **The next start.** It begins after the process has ended and the pause that `WorkerProcessLifecycle`
//!    chooses has passed. The worker is forked from a template. If the template ends, hangs, or
//!    forks a worker that stays silent, the template is given up for a while
//!    ([`ForkTemplateLifecycle`](galatea_policy::ForkTemplateLifecycle)), and the worker is started with its own
//!    interpreter instead (`StartedWorker::launch`).
//! 6. **Requests wait or fail.** The instance's next batch waits in [`SupervisedInstance::worker`]
//!    during starts and short pauses; other batches wait in the scheduler or go to other instances.
//!    During long pauses, and after a failed start, a batch is refused with the cause. The model is
//!    not ready until the worker serves.
//! 7. **The worker serves again.** `SupervisedInstance::start` installs the new worker, passes
//!    `StartedWorker` to the state machine, and wakes the waiting threads.
//! 8. **The instance ends.** The lane's thread drops its instance and thus [`Supervisor`], which
//!    waits until senders have answered their requests, as in Triton. It doesn't wait for requests
//!    whose clients have disconnected. `WorkerProcessEvent::Stop` then lets the worker finalize its model.
//!    After that, the worker is asked to terminate, and then killed. The drop waits for all of
//!    this.
//!
//! # The races
//!
//! - **Two threads notice.** Both report under one lock, and `WorkerProcessLifecycle` ignores the second event.
//!   The first cause is kept (`SupervisorState::loss`).
//! - **A late report.** A lane may report a worker whose successor is already serving.
//!   [`SupervisedInstance::lost`] compares the workers and ignores the report.
//! - **Death while a batch is handed over.** `HeldRequests` is closed once, under its lock. A later
//!   request is refused, and its batch returns to the lane, which fails it. An earlier request
//!   fails in step 4, and the send or the subsequent read finds the sockets closed.
//! - **Death right after a result.** The lane may have received the result while step 4 runs. Only
//!   one of the two takes the caller's reply channel from `HeldRequests`, so the caller gets either
//!   the response or the error. If a sender has the request, the lane only counts it:
//!   `StatisticsEntry` lets whichever comes first count it, as executed or as failed. All frames on
//!   the second socket are read before the end of the process takes effect. A lane that needs them
//!   waits for at most a second (`FrameProgress::wait_for`).
//! - **Death while a sender's response is delivered.** The request has been taken out of
//!   `HeldRequests`, so that it can be answered without a lock. `HeldRequests::put_back` finds the
//!   collection closed and fails the request.
//! - **Death while calls to other models are in flight.** Their replies find the sockets closed:
//!   the replies' memory is released, and the replies are dropped. A call that the lane's thread
//!   reads after step 4 is not cancelled; it runs to completion, and its result is discarded.
//! - **The process ends, but its sockets stay open,** because a process that it forked still has
//!   them. The process handle signals the end, and `WorkerSockets::close` ends the lane's read.
//! - **The end of the instance during a death.** `Stop` takes effect in every state: a process that
//!   is ending isn't replaced, a pause ends immediately, and a start checks for `Stop` every
//!   `CHECK_INTERVAL` and ends its process. However, an instance ends only after its batch, so a
//!   batch that waits for a start delays the unload for as long as `initialize` takes.
//! - **Unload of a version while senders have requests.** The scheduler is drained once its lanes
//!   are free; step 8 waits for the senders on the lane's thread. Requests that a worker still
//!   holds at its end, because their clients have disconnected, fail with `the model was unloaded`.
//! - **Death of a template.** Its workers outlive it. A worker's process ID is trusted only if the
//!   template was still alive after the worker's handle was opened (`Process::forked`). A template
//!   keeps its workers' process IDs reserved until it is asked how they ended. If the template is
//!   gone, the cause may remain unknown, and a process ID that may belong to another process by
//!   then is not signalled (`Process::has_number`).
//! - **Two deaths at once.** Each instance has a supervisor, a life and a process of its own. They
//!   share the environment's templates, whose lock admits one start at a time.
//! - **Death of the server.** The system closes the lifelines (`Process`), which kills templates
//!   and workers.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use galatea_backend::LogLevel;
use galatea_infer::Status;
use galatea_policy::{
    Time, WorkerProcessAction, WorkerProcessAwaits, WorkerProcessEvent, WorkerProcessLifecycle,
    WorkerProcessStatus,
};
use galatea_stdx::{Condvar, Guard, Lock};

use crate::process::Process;
use crate::wire::{Frame, FrameSplitter, to_a};
use crate::worker::{StartedWorker, Worker, WorkerLoss, unhealthy};

/// The time that the supervisor sleeps while nothing happens. Afterwards, it returns free memory to
/// the system.
const IDLE: Duration = Duration::from_secs(1);

/// Starts an instance's workers.
pub(crate) trait Starter: Send + Sync {
    /// Starts a serving worker, unless the start is cancelled in the meantime.
    fn start(&self, is_cancelled: &dyn Fn() -> bool) -> Result<StartedWorker, Status>;
    /// The instance's name.
    fn instance(&self) -> &str;
    /// Writes a line to the log.
    fn log(&self, level: LogLevel, message: &str);
    /// The time that the model's `finalize` may take.
    fn finalize_patience(&self) -> Duration;
}

/// The state that the threads of an instance share.
pub(crate) struct SupervisedInstance {
    state: Lock<SupervisorState>,
    changed: Condvar,
    starter: Box<dyn Starter>,
    /// The zero point of the state machine's clock.
    origin: Instant,
}

struct SupervisorState {
    life: WorkerProcessLifecycle,
    /// The pending actions for the supervisor's thread.
    actions: Vec<WorkerProcessAction>,
    /// The worker that is serving or was the last to serve.
    worker: Arc<Worker>,
    /// The cause of the worker's death, in words that follow "the worker".
    loss: Option<String>,
    /// The error for requests while no worker is serving.
    reason: Status,
    /// The number of threads that wait for a change. A notification is a system call, so it is
    /// skipped while no thread is waiting.
    waiting: usize,
}

/// A worker process, as the supervisor's thread sees it.
struct RunningWorker {
    worker: Arc<Worker>,
    process: Process,
    /// The reader of the second socket.
    others: FrameSplitter,
    /// True if the second socket has been read to its end.
    is_drained: bool,
    has_exited: bool,
}

/// Runs the supervisor's thread. Dropping it ends the worker.
pub(crate) struct Supervisor {
    shared: Arc<SupervisedInstance>,
    thread: Option<JoinHandle<()>>,
}

impl Supervisor {
    /// Starts the first worker.
    ///
    /// # Errors
    ///
    /// The reason why the worker could not be started.
    pub(crate) fn start(starter: Box<dyn Starter>) -> Result<Self, Status> {
        let started = starter.start(&|| false)?;
        let finalize_ns = nanoseconds(starter.finalize_patience());
        let state = SupervisorState {
            life: WorkerProcessLifecycle::new_serving(Time(0), finalize_ns),
            actions: Vec::new(),
            worker: started.worker.clone(),
            loss: None,
            reason: unhealthy(starter.instance(), "has ended"),
            waiting: 0,
        };
        let (changed, origin) = (Condvar::default(), Instant::now());
        let shared =
            Arc::new(SupervisedInstance { state: Lock::new(state), changed, starter, origin });
        let supervised = shared.clone();
        let thread = std::thread::Builder::new()
            .name(String::from("python-worker"))
            .spawn(move || supervised.run(started))
            .map_err(|error| Status::internal(format!("failed to start a thread: {error}")))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    pub(crate) const fn shared(&self) -> &Arc<SupervisedInstance> {
        &self.shared
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.shared.wait_until_answered();
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            // The thread has logged its panic.
            let _ = thread.join();
        }
    }
}

/// Methods for the threads that execute batches or check readiness.
impl SupervisedInstance {
    /// Waits for a serving worker and returns it.
    ///
    /// # Errors
    ///
    /// The reason why no worker is serving, and a note that the server will try again.
    pub(crate) fn worker(&self) -> Result<Arc<Worker>, Status> {
        let mut state = self.state.lock("find the worker");
        loop {
            match state.life.status() {
                WorkerProcessStatus::Serving => return Ok(state.worker.clone()),
                WorkerProcessStatus::Starting => {
                    state.waiting += 1;
                    state = self.changed.wait(state);
                    state.waiting -= 1;
                }
                WorkerProcessStatus::Broken => return Err(state.reason.clone()),
                WorkerProcessStatus::Stopped => {
                    return Err(Status::unavailable("the model is being unloaded"));
                }
            }
        }
    }

    /// The serving worker, without waiting for one.
    pub(crate) fn serving(&self) -> Option<Arc<Worker>> {
        let state = self.state.lock("look for the worker");
        (state.life.status() == WorkerProcessStatus::Serving).then(|| state.worker.clone())
    }

    /// Gives up a worker that an execution has lost.
    pub(crate) fn lost(&self, worker: &Arc<Worker>, lost: &WorkerLoss) {
        let mut state = self.state.lock("give a worker up");
        if Arc::ptr_eq(&state.worker, worker) {
            self.lose(&mut state, lost);
        }
        self.notify(state);
        worker.link.wake();
    }

    fn lose(&self, state: &mut SupervisorState, lost: &WorkerLoss) {
        let event = match lost {
            // The exit status reveals more about the cause.
            WorkerLoss::Ended => WorkerProcessEvent::SocketsEnded,
            WorkerLoss::Malformed(_) | WorkerLoss::TimedOut => {
                let how = lost.describe(state.worker.patience());
                state.loss.get_or_insert(how);
                WorkerProcessEvent::Failed
            }
        };
        state.life.step(self.now(), event, &mut state.actions);
    }

    /// Waits until requests that senders hold have received their last responses.
    fn wait_until_answered(&self) {
        let worker = self.state.lock("find the last worker").worker.clone();
        worker.wait_until_answered();
    }

    fn stop(&self) {
        let worker = self.step("end the worker", WorkerProcessEvent::Stop);
        worker.link.wake();
    }

    fn step(&self, purpose: &'static str, event: WorkerProcessEvent) -> Arc<Worker> {
        let mut guard = self.state.lock(purpose);
        let state = &mut *guard;
        state.life.step(self.now(), event, &mut state.actions);
        let worker = state.worker.clone();
        self.notify(guard);
        worker
    }

    /// Wakes the threads that wait for a change.
    fn notify(&self, state: Guard<'_, SupervisorState>) {
        let is_awaited = state.waiting > 0;
        drop(state);
        if is_awaited {
            self.changed.notify_all();
        }
    }

    fn now(&self) -> Time {
        Time(nanoseconds(self.origin.elapsed()))
    }

    fn is_stopping(&self) -> bool {
        self.state.lock("see whether it ends").life.status() == WorkerProcessStatus::Stopped
    }
}

/// Methods for the supervisor's thread.
impl SupervisedInstance {
    fn run(&self, first: StartedWorker) {
        let mut running = Some(RunningWorker::new(first));
        loop {
            self.act(&mut running);
            let state = self.state.lock("plan");
            let (wait, wakeup) = (state.life.awaited_events(), state.life.next_wakeup());
            let has_actions = !state.actions.is_empty();
            drop(state);
            if has_actions {
                continue;
            }
            let left = wakeup.map(|time| time.saturating_since(self.now()));
            let left = left.map_or(IDLE, |left| Duration::from_nanos(left).min(IDLE));
            match (wait, running.as_mut()) {
                (WorkerProcessAwaits::Messages, Some(running)) => self.listen(running, left),
                (WorkerProcessAwaits::Exit, Some(running)) => running.wait_for_exit(left),
                (WorkerProcessAwaits::Pause, _) => self.pause(left),
                (WorkerProcessAwaits::Start | WorkerProcessAwaits::Over, _) | (_, None) => return,
            }
            self.notice_exit(&mut running);
            self.step("see what time it is", WorkerProcessEvent::Tick);
        }
    }

    /// Performs the pending actions.
    fn act(&self, running: &mut Option<RunningWorker>) {
        let actions = std::mem::take(&mut self.state.lock("act").actions);
        for action in actions {
            match (action, running.as_mut()) {
                (WorkerProcessAction::GiveUp, _) => self.give_up(),
                (WorkerProcessAction::Start, _) => *running = self.start(),
                (WorkerProcessAction::Finalize, Some(running)) => running.finalize(),
                (WorkerProcessAction::Terminate, Some(running)) => running.process.terminate(),
                (WorkerProcessAction::Kill, Some(running)) => running.process.signal_to_die(),
                (
                    WorkerProcessAction::Finalize
                    | WorkerProcessAction::Terminate
                    | WorkerProcessAction::Kill,
                    None,
                ) => {}
            }
        }
    }

    /// Reads the worker's messages.
    fn listen(&self, running: &mut RunningWorker, timeout: Duration) {
        let RunningWorker { worker, process, others, .. } = running;
        let events = worker.link.wait_for_events(process.handle.as_ref(), timeout);
        if events.is_idle {
            worker.trim();
        }
        if events.b
            && let Err(lost) = worker.read_messages(others)
        {
            running.is_drained = true;
            let mut state = self.state.lock("lose the worker");
            self.lose(&mut state, &lost);
            self.notify(state);
        }
        // Messages that the worker sent before it ended are read first.
        running.has_exited = events.has_exited && !events.b;
    }

    /// Reports the end of the process once its messages have been read.
    fn notice_exit(&self, running: &mut Option<RunningWorker>) {
        let Some(ended) = running.take_if(|running| running.has_exited) else { return };
        let how = ended.end();
        self.state.lock("note how it ended").loss.get_or_insert(how);
        self.step("end a worker", WorkerProcessEvent::Exited);
    }

    /// Fails the requests that the worker held.
    fn give_up(&self) {
        let is_stopping = self.is_stopping();
        let mut state = self.state.lock("give the worker up");
        let how = state.loss.clone().unwrap_or_else(|| WorkerLoss::Ended.describe(Duration::ZERO));
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
                self.step("serve again", WorkerProcessEvent::Started);
                Some(RunningWorker::new(started))
            }
            Err(status) => {
                let text = format!("could not be started anew: {}", status.message());
                if !self.is_stopping() {
                    self.log(&text);
                }
                self.state.lock("fail to start").reason = unhealthy(self.starter.instance(), &text);
                self.step("fail to start", WorkerProcessEvent::StartFailed);
                None
            }
        }
    }

    fn log(&self, text: &str) {
        let instance = self.starter.instance();
        self.starter.log(LogLevel::Error, &format!("the Python worker of '{instance}' {text}"));
    }

    /// Pauses, unless the instance is ending.
    fn pause(&self, pause: Duration) {
        let mut state = self.state.lock("wait before another start");
        if state.life.awaited_events() == WorkerProcessAwaits::Pause {
            state.waiting += 1;
            state = self.changed.wait_timeout(state, pause);
            state.waiting -= 1;
        }
    }
}

impl RunningWorker {
    fn new(started: StartedWorker) -> Self {
        let StartedWorker { worker, process, others, .. } = started;
        Self { worker, process, others, is_drained: false, has_exited: false }
    }

    fn finalize(&self) {
        self.worker.link.send_a(&Frame::new(to_a::FINALIZE).finish());
    }

    /// Reads the messages of the process and waits for its end.
    fn wait_for_exit(&mut self, timeout: Duration) {
        self.worker.link.close();
        // No more bytes will arrive, so the loop ends once the available ones have been read.
        while !std::mem::replace(&mut self.is_drained, true) {
            self.is_drained = self.worker.read_messages(&mut self.others).is_err();
        }
        self.has_exited = self.process.wait(timeout);
    }

    /// Ends any remaining processes, and describes how the worker ended.
    fn end(mut self) -> String {
        self.process.kill()
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
