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

use galatea_backend::{LogLevel, ModelAgents};
use galatea_dispatch::{LoadedModel, LogSink};
use galatea_infer::Status;

use crate::registry::Registry;
use crate::tenure::Tenure;

/// A version that requests can be sent to.
pub(crate) struct ModelHandle {
    model: Arc<LoadedModel>,
    /// The repository agents of the model, if it has any.
    tenure: Option<Arc<Tenure>>,
    retirer: Retirer,
}

impl ModelHandle {
    /// Known by this model, to recognise it when it is gone.
    pub(crate) fn downgrade(&self) -> Weak<LoadedModel> {
        Arc::downgrade(&self.model)
    }

    /// The repository agents of the model, if it has any.
    pub(crate) const fn tenure(&self) -> Option<&Arc<Tenure>> {
        self.tenure.as_ref()
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
        let leaving = Leaving { model: self.model.clone(), _tenure: self.tenure.take() };
        self.retirer.retire(leaving);
    }
}

impl std::fmt::Debug for ModelHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.model.fmt(f)
    }
}

/// A version that nobody can send requests to any more.
struct Leaving {
    model: Arc<LoadedModel>,
    /// Goes after the model, whose files may be the agents'.
    _tenure: Option<Arc<Tenure>>,
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
    arrived: Vec<Leaving>,
    /// Agents whose models are gone.
    ended: Vec<Box<dyn ModelAgents>>,
    /// Some model's queue is empty.
    rung: bool,
    /// Versions and agents that have come and are not destroyed yet.
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
    pub(crate) fn handle(
        &self,
        model: Arc<LoadedModel>,
        tenure: Option<Arc<Tenure>>,
    ) -> Arc<ModelHandle> {
        Arc::new(ModelHandle { model, tenure, retirer: self.clone() })
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

    /// Ends the agents of a model on the thread.
    pub(crate) fn end(&self, agents: Box<dyn ModelAgents>) {
        let mut state = self.shared.lock();
        state.ended.push(agents);
        state.unfinished += 1;
        drop(state);
        self.shared.changed.notify_all();
    }

    fn retire(&self, leaving: Leaving) {
        let mut state = self.shared.lock();
        state.arrived.push(leaving);
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

    /// Waits for models or agents to come or queues to become empty; `None` if none
    /// of it will happen any more.
    fn next(&self, is_idle: bool) -> Option<Come> {
        let mut state = self.lock();
        while state.arrived.is_empty() && state.ended.is_empty() && !state.rung {
            if state.closed && is_idle {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.rung = false;
        let arrived = std::mem::take(&mut state.arrived);
        Some(Come { arrived, ended: std::mem::take(&mut state.ended) })
    }

    fn finished(&self) {
        let mut state = self.lock();
        state.unfinished -= 1;
        drop(state);
        self.changed.notify_all();
    }
}

/// What the thread is to do.
struct Come {
    arrived: Vec<Leaving>,
    ended: Vec<Box<dyn ModelAgents>>,
}

struct Worker {
    shared: Arc<Shared>,
    registry: Weak<Registry>,
    log: LogSink,
}

impl Worker {
    fn run(self) {
        let mut draining: Vec<Leaving> = Vec::new();
        while let Some(Come { arrived, ended }) = self.shared.next(draining.is_empty()) {
            for agents in ended {
                drop(agents);
                self.shared.finished();
            }
            for leaving in arrived {
                let shared = Arc::downgrade(&self.shared);
                leaving.model.drain(move || {
                    if let Some(shared) = shared.upgrade() {
                        shared.ring();
                    }
                });
                draining.push(leaving);
            }
            let drained = |leaving: &mut Leaving| leaving.model.is_drained();
            for leaving in draining.extract_if(.., drained) {
                self.destroy(leaving);
                self.shared.finished();
            }
        }
    }

    fn destroy(&self, leaving: Leaving) {
        let Leaving { model, _tenure } = leaving;
        let (id, version) = (model.id().clone(), model.version());
        let known_as = Arc::downgrade(&model);
        model.stop();
        drop(model);
        let line = format_args!("successfully unloaded '{id}' version {version}");
        self.log.write(LogLevel::Info, line);
        if let Some(registry) = self.registry.upgrade() {
            registry.gone(&id, version, &known_as);
        }
    }
}
