//! The end of a model version: where it is drained and destroyed.
//!
//! Everyone who may still send requests to a version holds its [`ModelHandle`]:
//! the registry's snapshots, and the ensembles that it is part of. When the last
//! handle is dropped, nobody can send anything any more; the version's queue is
//! then drained and its instances, and then the model itself, are destroyed on
//! one thread of the server's, never on that of a request.

use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use galatea_backend::LogLevel;
use galatea_infer::Status;

use crate::registry::Registry;
use crate::{LoadedModel, LogSink};

/// A version that requests can be sent to.
pub(crate) struct ModelHandle {
    model: Arc<LoadedModel>,
    retirer: Retirer,
}

impl ModelHandle {
    /// Known by this model, to recognise it when it is gone.
    pub(crate) fn downgrade(&self) -> Weak<LoadedModel> {
        Arc::downgrade(&self.model)
    }
}

impl Deref for ModelHandle {
    type Target = LoadedModel;

    fn deref(&self) -> &LoadedModel {
        &self.model
    }
}

impl Drop for ModelHandle {
    fn drop(&mut self) {
        self.retirer.retire(self.model.clone());
    }
}

impl std::fmt::Debug for ModelHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.model.fmt(f)
    }
}

/// A way to the thread. It ends when the last way is gone and nothing is left
/// to do; nobody waits for that.
#[derive(Clone)]
pub(crate) struct Retirer {
    shared: Arc<Shared>,
    _end: Arc<End>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    arrived: Vec<Arc<LoadedModel>>,
    /// Some model's queue is empty.
    rung: bool,
    /// Versions that have come and are not destroyed yet.
    unfinished: usize,
    closed: bool,
}

/// Closes the thread's inbox.
struct End(Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_all();
    }
}

impl Retirer {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// `Internal` if it can't be started.
    pub(crate) fn start(registry: &Arc<Registry>, log: LogSink) -> Result<Self, Status> {
        let shared = Arc::new(Shared::default());
        let worker = Worker { shared: shared.clone(), registry: Arc::downgrade(registry), log };
        std::thread::Builder::new()
            .name(String::from("galatea-retire"))
            .spawn(move || worker.run())
            .map_err(|error| Status::internal(format!("can't start a thread: {error}")))?;
        let end = Arc::new(End(shared.clone()));
        Ok(Self { shared, _end: end })
    }

    /// Makes a version that requests can be sent to.
    pub(crate) fn handle(&self, model: Arc<LoadedModel>) -> Arc<ModelHandle> {
        Arc::new(ModelHandle { model, retirer: self.clone() })
    }

    /// Waits until nothing is left to destroy, up to `timeout`; returns how many
    /// versions are.
    pub(crate) fn wait_idle(&self, timeout: Duration) -> usize {
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.lock();
        while state.unfinished > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.unfinished
    }

    fn retire(&self, model: Arc<LoadedModel>) {
        let mut state = self.shared.lock();
        state.arrived.push(model);
        state.unfinished += 1;
        drop(state);
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        self.lock().rung = true;
        self.changed.notify_all();
    }

    /// Waits for models to come or queues to become empty; `None` if neither
    /// will happen any more.
    fn next(&self, is_idle: bool) -> Option<Vec<Arc<LoadedModel>>> {
        let mut state = self.lock();
        while state.arrived.is_empty() && !state.rung {
            if state.closed && is_idle {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.rung = false;
        Some(std::mem::take(&mut state.arrived))
    }

    fn finished(&self) {
        let mut state = self.lock();
        state.unfinished -= 1;
        drop(state);
        self.changed.notify_all();
    }
}

struct Worker {
    shared: Arc<Shared>,
    registry: Weak<Registry>,
    log: LogSink,
}

impl Worker {
    fn run(self) {
        let mut draining: Vec<Arc<LoadedModel>> = Vec::new();
        while let Some(arrived) = self.shared.next(draining.is_empty()) {
            for model in arrived {
                let shared = Arc::downgrade(&self.shared);
                model.dispatcher.drain_and_tell(move || {
                    if let Some(shared) = shared.upgrade() {
                        shared.ring();
                    }
                });
                draining.push(model);
            }
            let drained = |model: &mut Arc<LoadedModel>| model.dispatcher.is_drained();
            for model in draining.extract_if(.., drained) {
                self.destroy(model);
                self.shared.finished();
            }
        }
    }

    fn destroy(&self, model: Arc<LoadedModel>) {
        let (name, version) = (model.name.clone(), model.version);
        let known_as = Arc::downgrade(&model);
        model.dispatcher.join_lanes();
        drop(model);
        let line = format_args!("successfully unloaded '{name}' version {version}");
        self.log.write(LogLevel::Info, line);
        if let Some(registry) = self.registry.upgrade() {
            registry.gone(&name, version, &known_as);
        }
    }
}
