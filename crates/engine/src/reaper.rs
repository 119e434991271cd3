//! The reaper, a thread on which retired model versions are drained and destroyed.
//!
//! Any holder of a [`ModelHandle`](crate::handle::ModelHandle) may send requests to a version.
//! Handles are held by the registry's snapshots and by the ensembles that contain the version. Each
//! request holds a snapshot while it looks up its model. Dropping the last handle retires the
//! version. No request can arrive after that, so only then is the queue drained, and the instances
//! and the model are destroyed. All of this happens on the reaper thread, never on a request's
//! thread; a separate thread waits for the instances to end. As a result, no request takes a lock
//! to keep its model alive, and ensembles end before their composing models.
//!
//! The reaper handles step 9 of a reload in `manager/mod.rs`, and steps 7 and 8 of shutdown in
//! `crates/galatea/src/shutdown.rs`.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use galatea_backend::{LogLevel, ModelRepositoryAgents};
use galatea_dispatch::{LoadedModel, LogSink};
use galatea_infer::Status;
use galatea_stdx::{Condvar, Inbox, Lock};

/// A version that can no longer receive requests.
pub(crate) struct RetiredVersion {
    pub(crate) model: Arc<LoadedModel>,
    /// The agents' lease. It is dropped after the model, whose files may belong to the agents.
    pub(crate) lease: Option<Arc<dyn Send + Sync>>,
}

/// A hook that is called after a version has been destroyed, with the model's id and the version
/// number.
pub(crate) type OnDestroyed = Box<dyn Fn(&str, i64, &Weak<LoadedModel>) + Send>;

/// A handle to the thread. The thread ends once the last handle is dropped and nothing is left to
/// destroy. Dropping a handle doesn't wait for that.
#[derive(Clone)]
pub(crate) struct Reaper {
    queue: Arc<ReaperQueue>,
    _closer: Arc<QueueCloser>,
}

#[derive(Default)]
struct ReaperQueue {
    inbox: Arc<Inbox<ReaperMessage>>,
    /// The number of agents and versions that have not yet been destroyed; only versions that have
    /// served or were handed over count.
    unfinished: Lock<usize>,
    finished: Condvar,
}

enum ReaperMessage {
    Retire(RetiredVersion),
    EndAgents(Box<dyn ModelRepositoryAgents>),
    /// The version's queue is empty.
    Drained,
    /// A drained version's threads have ended.
    Stopped(RetiredVersion),
    /// The last handle was dropped.
    Close,
}

struct QueueCloser(Arc<ReaperQueue>);

impl Drop for QueueCloser {
    fn drop(&mut self) {
        self.0.send(ReaperMessage::Close);
    }
}

impl Reaper {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// `Internal` if the thread can't be started.
    pub(crate) fn start(on_destroyed: OnDestroyed, log: LogSink) -> Result<Self, Status> {
        let queue = Arc::<ReaperQueue>::default();
        let worker = ReaperThread { queue: queue.clone(), on_destroyed, log };
        std::thread::Builder::new()
            .name(String::from("galatea-retire"))
            .spawn(move || worker.run())
            .map_err(|error| Status::internal(format!("can't start a thread: {error}")))?;
        let closer = Arc::new(QueueCloser(queue.clone()));
        Ok(Self { queue, _closer: closer })
    }

    /// Counts a version that will be retired, until it is destroyed.
    pub(crate) fn expect_version(&self) {
        self.queue.begin();
    }

    /// Drains and destroys a version that was [expected](Self::expect_version).
    pub(crate) fn retire(&self, version: RetiredVersion) {
        self.queue.send(ReaperMessage::Retire(version));
    }

    /// Drops a model's repository agents.
    pub(crate) fn end_agents(&self, agents: Box<dyn ModelRepositoryAgents>) {
        self.queue.begin();
        self.queue.send(ReaperMessage::EndAgents(agents));
    }

    /// Waits up to `timeout` until nothing is left to destroy. Returns the number of remaining
    /// versions, including those in service.
    pub(crate) fn wait_idle(&self, timeout: Duration) -> usize {
        let deadline = Instant::now() + timeout;
        let mut unfinished = self.queue.unfinished.lock("wait until all is destroyed");
        while *unfinished > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            unfinished = self.queue.finished.wait_timeout(unfinished, left);
        }
        *unfinished
    }
}

impl ReaperQueue {
    fn send(&self, message: ReaperMessage) {
        // The inbox is never closed, because a drain may end after the last handle has been
        // dropped.
        let _ = self.inbox.push_and_wake(message);
    }

    fn begin(&self) {
        *self.unfinished.lock("count what is to be destroyed") += 1;
    }

    fn finish(&self) {
        *self.unfinished.lock("count what was destroyed") -= 1;
        self.finished.notify_all();
    }
}

struct ReaperThread {
    queue: Arc<ReaperQueue>,
    on_destroyed: OnDestroyed,
    log: LogSink,
}

impl ReaperThread {
    fn run(self) {
        let mut draining: Vec<RetiredVersion> = Vec::new();
        let (mut is_closed, mut stopping) = (false, 0_usize);
        while !(is_closed && draining.is_empty() && stopping == 0) {
            let Some(message) = self.queue.inbox.recv() else { return };
            match message {
                ReaperMessage::Retire(version) => {
                    let queue = Arc::downgrade(&self.queue);
                    version.model.drain(move || {
                        if let Some(queue) = queue.upgrade() {
                            queue.send(ReaperMessage::Drained);
                        }
                    });
                    draining.push(version);
                }
                ReaperMessage::EndAgents(agents) => {
                    drop(agents);
                    self.queue.finish();
                }
                ReaperMessage::Drained => {}
                ReaperMessage::Stopped(version) => {
                    stopping -= 1;
                    self.destroy(version);
                    self.queue.finish();
                }
                ReaperMessage::Close => is_closed = true,
            }
            for version in draining.extract_if(.., |version| version.model.is_drained()) {
                stopping += 1;
                self.stop(version);
            }
        }
    }

    /// Waits for a version's threads on a separate thread. An instance ends after its last stream
    /// and may take long to finalize, and other versions shouldn't wait for that.
    fn stop(&self, version: RetiredVersion) {
        let slot = Arc::new(Lock::new(Some(version)));
        let (queue, taken) = (self.queue.clone(), slot.clone());
        let wait = move || {
            if let Some(version) = taken.lock("take a version to stop").take() {
                version.model.join_and_destroy();
                queue.send(ReaperMessage::Stopped(version));
            }
        };
        let thread = std::thread::Builder::new().name(String::from("galatea-stop"));
        // If no thread can be started, the reaper thread itself waits.
        if let Err(wait) = thread.spawn(wait.clone()).map_err(|_| wait) {
            wait();
        }
    }

    fn destroy(&self, version: RetiredVersion) {
        let RetiredVersion { model, lease } = version;
        let (id, number) = (model.id().clone(), model.version());
        let identity = Arc::downgrade(&model);
        drop(model);
        let line = format_args!("successfully unloaded '{id}' version {number}");
        self.log.write(LogLevel::Info, line);
        (self.on_destroyed)(&id, number, &identity);
        drop(lease);
    }
}
