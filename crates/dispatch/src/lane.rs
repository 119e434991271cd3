//! One instance and whatever thread executes it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Wake, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use galatea_backend::{ExecutionGuarantee, ExecutionPolicy, Instance, LogLevel};
use galatea_infer::{FailureReason, Status};
use galatea_policy::InstanceId;
use galatea_stdx::{InlineBudget, WakeBatch, wake_batch};

use crate::assembly::Work;
use crate::forecast::Forecast;
use crate::host_policy::{Binding, bound};
use crate::pace::Pace;
use crate::permits::Needs;
use crate::{Dispatcher, LogSink, request_log};

/// An instance that executes one batch at a time, on a thread of its own or
/// on the thread that brings the batch.
///
/// An instance with a thread may promise to be predictable. What is foreseen to be
/// quick may then be executed by the thread that brings it as an errand, while the
/// lane's own sleeps.
pub(crate) struct Lane {
    name: String,
    log: LogSink,
    kind: Kind,
    /// Where its thread runs; `None` for anywhere.
    binding: Option<Binding>,
    /// What it needs of the rate limiter.
    needs: Needs,
}

enum Kind {
    Threaded {
        mailbox: Arc<Mailbox>,
        seat: Arc<Mutex<Seat>>,
        guarantee: ExecutionGuarantee,
        thread: Mutex<Option<JoinHandle<()>>>,
        /// For tests: more than there is, so that the thread can't be started.
        #[cfg(test)]
        stack_size: Option<usize>,
    },
    /// The scheduler gives a lane one batch at a time, so the lock is free
    /// whenever it is asked for.
    Inline { instance: Mutex<Option<Box<dyn Instance>>> },
}

/// An instance with a thread, and what is known of it.
///
/// Whoever has the batch that the scheduler gave to the lane locks this: the lane's
/// thread, or one on an errand. There is one batch at a time, so nobody waits.
#[derive(Default)]
struct Seat {
    /// The thread takes it along when it ends.
    instance: Option<Box<dyn Instance>>,
    forecast: Forecast,
}

/// Where a lane's thread finds what to do next: one batch at a time, because
/// the scheduler gives it no second one before it is free.
#[derive(Default)]
struct Mailbox {
    content: Mutex<Content>,
    filled: Condvar,
}

#[derive(Default)]
struct Content {
    work: Option<Work>,
    stopped: bool,
}

impl Mailbox {
    fn put(self: &Arc<Self>, work: Work) {
        let displaced = lock(&self.content).work.replace(work);
        assert!(displaced.is_none(), "a lane was given a second batch");
        // After unlocking: a thread that wakes to a held lock goes back to
        // sleep.
        wake_batch::defer(Waker::from(self.clone()));
    }

    fn stop(&self) {
        lock(&self.content).stopped = true;
        self.filled.notify_one();
    }

    /// Waits for a batch; `None` when the lane stops.
    fn take(&self) -> Option<Work> {
        let mut content = lock(&self.content);
        loop {
            if let Some(work) = content.work.take() {
                return Some(work);
            }
            if content.stopped {
                return None;
            }
            content = self.filled.wait(content).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Wake for Mailbox {
    fn wake(self: Arc<Self>) {
        self.filled.notify_one();
    }
}

impl Lane {
    /// A lane around `instance`; threads start with [`Lane::start`].
    pub(crate) fn new(
        name: String,
        instance: Box<dyn Instance>,
        policy: ExecutionPolicy,
        log: LogSink,
    ) -> Self {
        let kind = match policy {
            ExecutionPolicy::Inline => Kind::Inline { instance: Mutex::new(Some(instance)) },
            ExecutionPolicy::Blocking => Kind::Threaded {
                mailbox: Arc::default(),
                guarantee: instance.guarantee(),
                seat: Arc::new(Mutex::new(Seat { instance: Some(instance), ..Seat::default() })),
                thread: Mutex::new(None),
                #[cfg(test)]
                stack_size: None,
            },
        };
        Self { name, log, kind, binding: None, needs: Needs::default() }
    }

    /// Executes only when the rate limiter has what it needs. Only for lanes with a
    /// thread: a permit comes on any.
    pub(crate) fn with_needs(self, needs: Needs) -> Self {
        Self { needs, ..self }
    }

    /// What it needs of the rate limiter.
    pub(crate) const fn needs(&self) -> &Needs {
        &self.needs
    }

    /// Binds the lane's thread, if it has one, to processors and memory.
    pub(crate) fn bound(self, binding: Option<Binding>) -> Self {
        Self { binding, ..self }
    }

    /// Whether the lane has no thread: [`Lane::execute_inline`] is for it, and
    /// [`Lane::send`] for the others.
    pub(crate) const fn is_inline(&self) -> bool {
        matches!(self.kind, Kind::Inline { .. })
    }

    /// The instance's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Makes starting the thread fail.
    #[cfg(test)]
    pub(crate) fn ask_too_much(&mut self) {
        if let Kind::Threaded { stack_size, .. } = &mut self.kind {
            *stack_size = Some(usize::MAX / 4);
        }
    }

    /// Starts the lane's thread if it has one.
    pub(crate) fn start(&self, id: InstanceId, dispatcher: &Arc<Dispatcher>) -> Result<(), Status> {
        let Kind::Threaded { mailbox, seat, guarantee, thread, .. } = &self.kind else {
            return Ok(());
        };
        let worker = Worker {
            id,
            seat: seat.clone(),
            guarantee: *guarantee,
            mailbox: mailbox.clone(),
            dispatcher: dispatcher.clone(),
            name: self.name.clone(),
            log: self.log.clone(),
            pace: Pace::default(),
        };
        // A name with a NUL in it would be no name.
        let builder = std::thread::Builder::new().name(self.name.replace('\0', ""));
        #[cfg(test)]
        let builder = match &self.kind {
            Kind::Threaded { stack_size: Some(size), .. } => builder.stack_size(*size),
            Kind::Threaded { .. } | Kind::Inline { .. } => builder,
        };
        let spawned = bound(self.binding.as_ref(), || builder.spawn(move || worker.run()))?;
        let handle = spawned.map_err(|error| {
            Status::internal(format!("can't start a thread for {}: {error}", self.name))
        })?;
        *lock(thread) = Some(handle);
        Ok(())
    }

    /// Sends a batch to the lane's thread, which reports back.
    pub(crate) fn send(&self, work: Work) {
        if let Kind::Threaded { mailbox, .. } = &self.kind {
            mailbox.put(work);
        }
    }

    /// Executes a batch on this thread, if that is as good as sending it: the thread
    /// has time for an errand, and the batch is sure to be quick.
    ///
    /// # Errors
    ///
    /// The batch if not.
    pub(crate) fn execute_as_errand(
        &self,
        work: Work,
        dispatcher: &Dispatcher,
    ) -> Result<(), Work> {
        // A thread that is bound to processors is meant to execute there.
        let Kind::Threaded { seat, guarantee: ExecutionGuarantee::Predictable, .. } = &self.kind
        else {
            return Err(work);
        };
        if self.binding.is_some() {
            return Err(work);
        }
        let Some(mut budget) = InlineBudget::take() else { return Err(work) };
        let Seat { instance, forecast } = &mut *lock(seat);
        let signature = forecast.signature(&work);
        match instance {
            Some(instance) if forecast.foresees_quick(signature) => {
                let took = execute(instance.as_mut(), work, dispatcher, &self.name, &self.log);
                forecast.note(signature, took);
                budget.charge(took);
                Ok(())
            }
            Some(_) | None => Err(work),
        }
    }

    /// Executes a batch on this thread.
    pub(crate) fn execute_inline(&self, work: Work, dispatcher: &Dispatcher) {
        if let Kind::Inline { instance } = &self.kind
            && let Some(instance) = lock(instance).as_mut()
        {
            let _took = execute(instance.as_mut(), work, dispatcher, &self.name, &self.log);
        }
    }

    /// Lets the thread end, and the instance with it, after its last batch. An
    /// instance without a thread goes when it is joined: whoever stops it may be
    /// in the middle of something of its backend's.
    pub(crate) fn stop(&self) {
        if let Kind::Threaded { mailbox, .. } = &self.kind {
            mailbox.stop();
        }
    }

    /// Waits for the thread's end, after which the instance is gone.
    pub(crate) fn join(&self) {
        match &self.kind {
            Kind::Threaded { thread, .. } => {
                let handle = lock(thread).take();
                if let Some(handle) = handle {
                    let _ = handle.join();
                }
            }
            Kind::Inline { instance } => {
                let instance = lock(instance).take();
                drop(instance);
            }
        }
    }
}

/// A lane's thread.
struct Worker {
    id: InstanceId,
    seat: Arc<Mutex<Seat>>,
    guarantee: ExecutionGuarantee,
    mailbox: Arc<Mailbox>,
    dispatcher: Arc<Dispatcher>,
    name: String,
    log: LogSink,
    pace: Pace,
}

impl Worker {
    fn run(mut self) {
        while let Some(first) = self.mailbox.take() {
            let mut next = Some(first);
            let mut turn = None;
            while let Some(work) = next {
                let size = self.may_hold().then(|| work.input_bytes());
                // Nobody whose answer is there waits for a batch that may be slow, or
                // that may wait for them.
                if !size.is_some_and(|size| self.pace.foresees_quick(size)) {
                    turn = None;
                } else if turn.is_none() {
                    turn = Some(WakeBatch::begin());
                }
                let took = self.execute(work);
                if let Some(size) = size {
                    self.pace.note(size, took);
                }
                if turn.is_none() || self.pace.is_turn_over() {
                    self.let_others_go(turn.take());
                }
                next = self.dispatcher.lane_free(self.id);
            }
            drop(turn);
        }
        // The instance ends on the thread that it lived on.
        let instance = lock(&self.seat).instance.take();
        drop(instance);
    }

    /// Whether others may be woken later than they could be.
    fn may_hold(&self) -> bool {
        self.guarantee >= ExecutionGuarantee::NonBlocking
    }

    fn execute(&self, work: Work) -> Duration {
        let Seat { instance, forecast } = &mut *lock(&self.seat);
        let signature = match self.guarantee {
            ExecutionGuarantee::Unspecified | ExecutionGuarantee::NonBlocking => None,
            ExecutionGuarantee::Predictable => forecast.signature(&work),
        };
        let Some(instance) = instance else { return Duration::ZERO };
        let took = execute(instance.as_mut(), work, &self.dispatcher, &self.name, &self.log);
        forecast.note(signature, took);
        took
    }

    /// The doors have responses to send, and behind those the next requests. Where
    /// they share a core with this thread, letting them go first makes the next
    /// batch larger; where they don't, this costs next to nothing.
    fn let_others_go(&mut self, turn: Option<WakeBatch>) {
        drop(turn);
        self.pace.begin_turn();
        std::thread::yield_now();
    }
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lane({})", self.name)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Executes one batch and returns how long that took; whatever the backend does, every
/// request is answered and released.
fn execute(
    instance: &mut dyn Instance,
    work: Work,
    dispatcher: &Dispatcher,
    name: &str,
    log: &LogSink,
) -> Duration {
    let start = Instant::now();
    let execute = || {
        let requests = dispatcher.assemble(work);
        request_log::executes(log, name, &requests);
        instance.execute(requests)
    };
    match catch_unwind(AssertUnwindSafe(execute)) {
        Ok(Ok(())) => {}
        Ok(Err(refused)) => {
            for request in refused.requests {
                request.fail(refused.status.clone(), FailureReason::Backend);
            }
        }
        // The requests were dropped while the stack unwound, and answered
        // with an internal error.
        Err(_) => {
            log.write(LogLevel::Error, format_args!("instance '{name}' panicked while executing"))
        }
    }
    start.elapsed()
}
