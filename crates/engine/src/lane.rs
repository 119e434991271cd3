//! One instance and whatever thread executes it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use galatea_backend::{ExecutionPolicy, Instance, LogLevel};
use galatea_infer::{FailureReason, PendingRequest, Status};
use galatea_policy::InstanceId;

use crate::{Dispatcher, LogSink};

/// An instance that executes one batch at a time, on a thread of its own or
/// on the thread that brings the batch.
pub(crate) struct Lane {
    name: String,
    log: LogSink,
    kind: Kind,
}

enum Kind {
    Threaded {
        mailbox: Arc<Mailbox>,
        /// The thread takes it when it starts.
        instance: Mutex<Option<Box<dyn Instance>>>,
        thread: Mutex<Option<JoinHandle<()>>>,
    },
    /// The scheduler gives a lane one batch at a time, so the lock is free
    /// whenever it is asked for.
    Inline { instance: Mutex<Option<Box<dyn Instance>>> },
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
    batch: Option<Vec<PendingRequest>>,
    stopped: bool,
}

impl Mailbox {
    fn put(&self, batch: Vec<PendingRequest>) {
        let displaced = lock(&self.content).batch.replace(batch);
        assert!(displaced.is_none(), "a lane was given a second batch");
        // After unlocking: a thread that wakes to a held lock goes back to
        // sleep.
        self.filled.notify_one();
    }

    fn stop(&self) {
        lock(&self.content).stopped = true;
        self.filled.notify_one();
    }

    /// Waits for a batch; `None` when the lane stops.
    fn take(&self) -> Option<Vec<PendingRequest>> {
        let mut content = lock(&self.content);
        loop {
            if let Some(batch) = content.batch.take() {
                return Some(batch);
            }
            if content.stopped {
                return None;
            }
            content = self.filled.wait(content).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// What became of a batch given to a lane.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Handover {
    /// The lane's thread has it and will report back.
    Sent,
    /// It was executed; the lane is free.
    Done,
}

impl Handover {
    pub(crate) const fn is_done(self) -> bool {
        matches!(self, Self::Done)
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
                instance: Mutex::new(Some(instance)),
                thread: Mutex::new(None),
            },
        };
        Self { name, log, kind }
    }

    /// Starts the lane's thread if it has one.
    pub(crate) fn start(&self, id: InstanceId, dispatcher: &Arc<Dispatcher>) -> Result<(), Status> {
        let Kind::Threaded { mailbox, instance, thread } = &self.kind else { return Ok(()) };
        let Some(instance) = lock(instance).take() else { return Ok(()) };
        let worker = Worker {
            id,
            instance,
            mailbox: mailbox.clone(),
            dispatcher: dispatcher.clone(),
            name: self.name.clone(),
            log: self.log.clone(),
        };
        let handle = std::thread::Builder::new()
            .name(self.name.clone())
            .spawn(move || worker.run())
            .map_err(|error| {
                Status::internal(format!("can't start a thread for {}: {error}", self.name))
            })?;
        *lock(thread) = Some(handle);
        Ok(())
    }

    /// Executes a batch or sends it to the lane's thread.
    pub(crate) fn execute(&self, batch: Vec<PendingRequest>) -> Handover {
        match &self.kind {
            Kind::Threaded { mailbox, .. } => {
                mailbox.put(batch);
                Handover::Sent
            }
            Kind::Inline { instance } => {
                if let Some(instance) = lock(instance).as_mut() {
                    execute(instance.as_mut(), batch, &self.name, &self.log);
                }
                Handover::Done
            }
        }
    }

    /// Lets the thread end, and the instance with it, after its last batch.
    pub(crate) fn stop(&self) {
        match &self.kind {
            Kind::Threaded { mailbox, .. } => mailbox.stop(),
            Kind::Inline { instance } => {
                lock(instance).take();
            }
        }
    }

    /// Waits for the thread's end.
    pub(crate) fn join(&self) {
        let Kind::Threaded { thread, .. } = &self.kind else { return };
        let handle = lock(thread).take();
        if let Some(handle) = handle {
            let _ = handle.join();
        }
    }
}

/// A lane's thread.
struct Worker {
    id: InstanceId,
    instance: Box<dyn Instance>,
    mailbox: Arc<Mailbox>,
    dispatcher: Arc<Dispatcher>,
    name: String,
    log: LogSink,
}

impl Worker {
    fn run(mut self) {
        while let Some(mut batch) = self.mailbox.take() {
            loop {
                execute(self.instance.as_mut(), batch, &self.name, &self.log);
                // The doors now have responses to send, and behind those the
                // next requests. Where they share a core with this thread,
                // letting them go first makes the next batch larger; where
                // they don't, this costs next to nothing.
                std::thread::yield_now();
                match self.dispatcher.lane_free(self.id) {
                    Some(next) => batch = next,
                    None => break,
                }
            }
        }
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

/// Executes one batch; whatever the backend does, every request is answered.
fn execute(instance: &mut dyn Instance, batch: Vec<PendingRequest>, name: &str, log: &LogSink) {
    match catch_unwind(AssertUnwindSafe(|| instance.execute(batch))) {
        Ok(Ok(())) => {}
        Ok(Err(refused)) => {
            for request in refused.requests {
                request.fail(refused.status.clone(), FailureReason::Backend);
            }
        }
        // The requests were dropped while the stack unwound, and answered
        // with an internal error.
        Err(_) => {
            log.write(LogLevel::Error, &format!("instance '{name}' panicked while executing"))
        }
    }
}
