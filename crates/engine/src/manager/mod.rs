//! Models that come and go: the driver of the lifecycle plan.
//!
//! What is loaded and unloaded, and in which order, is decided by
//! [`Lifecycle`](galatea_policy::Lifecycle); this owns it, looks at the
//! repositories, has models loaded on threads of its own and puts them into
//! service.
//!
//! Its one lock is held for a step of the plan, and while the registry learns what
//! must not come apart from it: what is wanted, what serves now, and why something
//! failed. Nothing is looked at, loaded or destroyed under it.

mod load;
mod operations;
mod plan;
mod pool;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use galatea_dispatch::{Loader, LogSink};
use galatea_infer::Status;
use galatea_policy::{LifecycleEvent, ModelName};

pub(crate) use self::plan::Target;
use self::plan::{Deed, Plan};
use self::pool::Pool;
use crate::catalog::Catalog;
use crate::registry::Registry;
use crate::retire::Retirer;

/// How models come and go.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ControlMode {
    /// All are loaded at start; nothing changes later.
    None,
    /// Changes of the repositories are followed.
    Poll,
    /// Clients load and unload them.
    Explicit,
}

impl ControlMode {
    /// The word that the command line has for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Poll => "poll",
            Self::Explicit => "explicit",
        }
    }
}

/// Whether several models may have the same name.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// A name is one model's.
    None,
    /// Each repository is a namespace, whose models may be called as those of others.
    Repositories,
}

/// What a manager is made of.
pub(crate) struct ManagerParts {
    pub(crate) catalog: Arc<dyn Catalog>,
    pub(crate) mode: ControlMode,
    /// Whether models may have the same name in different namespaces.
    pub(crate) namespaces: Namespaces,
    pub(crate) registry: Arc<Registry>,
    pub(crate) retirer: Retirer,
    pub(crate) loader: Loader,
    /// How many versions of models load at the same time.
    pub(crate) threads: usize,
    /// How often a version that fails to load is tried again.
    pub(crate) retries: u32,
    pub(crate) log: LogSink,
}

/// The models of a server. Its threads end with it.
pub(crate) struct Manager {
    shared: Arc<Shared>,
}

struct Shared {
    parts: ManagerParts,
    pool: Pool,
    plan: Mutex<Plan>,
    /// The plan changed, and what followed from that is done or begun.
    changed: Condvar,
    /// Held by whoever looks at all repositories, until the plan knows what was found:
    /// what was seen earlier must not be followed later.
    polling: Mutex<()>,
}

impl Manager {
    pub(crate) fn new(parts: ManagerParts) -> Self {
        let catalog = parts.catalog.clone();
        let pool = Pool::new(parts.threads, Box::new(move || catalog.release_memory()));
        let plan = Mutex::new(match parts.namespaces {
            Namespaces::None => Plan::default(),
            Namespaces::Repositories => Plan::with_namespaces(),
        });
        let (changed, polling) = (Condvar::new(), Mutex::default());
        let shared = Shared { parts, pool, plan, changed, polling };
        Self { shared: Arc::new(shared) }
    }

    /// Begins no new loads from now on and takes every model out of service.
    pub(crate) fn close(&self) {
        let mut plan = self.shared.lock();
        plan.closed = true;
        let waiting = plan.waiting_agents();
        drop(plan);
        drop(waiting);
        self.shared.parts.registry.withdraw_all();
        self.shared.changed.notify_all();
    }

    /// Waits until no load is under way, up to `timeout`; returns how many are.
    pub(crate) fn wait_idle(&self, timeout: Duration) -> usize {
        self.shared.pool.wait_idle(timeout)
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.pool.stop();
        self.shared.parts.registry.withdraw_all();
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One step of the plan, and whatever follows from it.
    fn step(self: &Arc<Self>, event: LifecycleEvent) {
        self.change(|plan, deeds| plan.step(event, deeds));
    }

    /// Changes the plan and does what it says.
    fn change<T>(self: &Arc<Self>, change: impl FnOnce(&mut Plan, &mut Vec<Deed>) -> T) -> T {
        self.change_in(self.lock(), change)
    }

    /// The same with the plan locked already.
    fn change_in<'s, T>(
        self: &'s Arc<Self>,
        mut plan: MutexGuard<'s, Plan>,
        change: impl FnOnce(&mut Plan, &mut Vec<Deed>) -> T,
    ) -> T {
        let mut deeds = Vec::new();
        let result = change(&mut plan, &mut deeds);
        self.parts.registry.set_wanted(plan.wanted());
        let begun: Vec<(Deed, Performing<'_>)> = deeds
            .into_iter()
            .map(|deed| {
                plan.begin(deed.id());
                let performing = Performing { shared: self, id: deed.id().clone() };
                (deed, performing)
            })
            .collect();
        drop(plan);
        for (deed, performing) in begun {
            self.perform(deed);
            drop(performing);
        }
        self.changed.notify_all();
        result
    }

    fn perform(self: &Arc<Self>, deed: Deed) {
        match deed {
            Deed::Load(job) => {
                let shared = self.clone();
                self.pool.submit(Box::new(move || shared.load(job)));
            }
            Deed::Unload(name, reason) => {
                // Its agents are others' code: whatever they do, the model goes.
                let announce = || self.parts.registry.announce_unload(&name, None);
                let _ = catch_unwind(AssertUnwindSafe(announce));
                self.parts.registry.withdraw(&name, reason.as_deref());
                self.step(LifecycleEvent::Unloaded(name));
            }
            Deed::Block(name, reason) => self.refuse(&name, &reason),
        }
    }

    /// Says that a model of the plan can't be loaded.
    fn refuse(&self, id: &ModelName, reason: &str) {
        self.log_failure(id, reason);
        let plan = self.lock();
        // It may have been given up meanwhile, and then nothing is to be left of it.
        if plan.is_wanted(id) {
            self.parts.registry.fail(id, reason);
        }
    }

    fn log_failure(&self, name: &str, reason: &str) {
        use galatea_backend::LogLevel;
        let line = format_args!("failed to load '{name}': {reason}");
        self.parts.log.write(LogLevel::Error, line);
    }

    /// Waits until `is_done`, or the manager is closed.
    fn wait(&self, is_done: impl Fn(&Plan) -> bool) -> Result<MutexGuard<'_, Plan>, Status> {
        let mut plan = self.lock();
        loop {
            if plan.closed {
                return Err(Status::unavailable("Server exiting"));
            }
            if is_done(&plan) {
                return Ok(plan);
            }
            plan = self.changed.wait(plan).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A deed that is begun. It ends when this is dropped, however that comes.
struct Performing<'s> {
    shared: &'s Shared,
    id: ModelName,
}

impl Drop for Performing<'_> {
    fn drop(&mut self) {
        self.shared.lock().end(&self.id);
        self.shared.changed.notify_all();
    }
}

/// How long is left of `timeout`, counted from `start`.
fn left_of(start: Instant, timeout: Duration) -> Duration {
    timeout.saturating_sub(start.elapsed())
}
