//! One instance and whatever thread executes it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
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
        messages: mpsc::Sender<Message>,
        /// What the thread takes with it when it starts.
        parts: Mutex<Option<ThreadParts>>,
        thread: Mutex<Option<JoinHandle<()>>>,
    },
    /// The scheduler gives a lane one batch at a time, so the lock is free
    /// whenever it is asked for.
    Inline { instance: Mutex<Option<Box<dyn Instance>>> },
}

/// What a lane's thread owns.
type ThreadParts = (Box<dyn Instance>, mpsc::Receiver<Message>);

/// What a lane's thread is told.
enum Message {
    Execute(Vec<PendingRequest>),
    Stop,
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
            ExecutionPolicy::Blocking => {
                let (messages, inbox) = mpsc::channel();
                Kind::Threaded {
                    messages,
                    parts: Mutex::new(Some((instance, inbox))),
                    thread: Mutex::new(None),
                }
            }
        };
        Self { name, log, kind }
    }

    /// Starts the lane's thread if it has one.
    pub(crate) fn start(&self, id: InstanceId, dispatcher: &Arc<Dispatcher>) -> Result<(), Status> {
        let Kind::Threaded { parts, thread, .. } = &self.kind else { return Ok(()) };
        let Some((mut instance, inbox)) = lock(parts).take() else { return Ok(()) };
        let dispatcher = dispatcher.clone();
        let (name, log) = (self.name.clone(), self.log.clone());
        let handle = std::thread::Builder::new()
            .name(self.name.clone())
            .spawn(move || {
                while let Ok(Message::Execute(mut batch)) = inbox.recv() {
                    loop {
                        execute(instance.as_mut(), batch, &name, &log);
                        match dispatcher.lane_free(id) {
                            Some(next) => batch = next,
                            None => break,
                        }
                    }
                }
            })
            .map_err(|error| {
                Status::internal(format!("can't start a thread for {}: {error}", self.name))
            })?;
        *lock(thread) = Some(handle);
        Ok(())
    }

    /// Executes a batch or sends it to the lane's thread.
    pub(crate) fn execute(&self, batch: Vec<PendingRequest>) -> Handover {
        match &self.kind {
            Kind::Threaded { messages, .. } => {
                // A thread that is gone drops the batch, and its requests
                // answer for themselves.
                let _ = messages.send(Message::Execute(batch));
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
            Kind::Threaded { messages, .. } => {
                let _ = messages.send(Message::Stop);
            }
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
        Err(_) => log(LogLevel::Error, &format!("instance '{name}' panicked while executing")),
    }
}
