//! The manager: the driver of the lifecycle, which brings models into service and takes
//! them out of it.
//!
//! # Desired state
//!
//! Orders, polls and the start all say the same: which models shall serve. The pure
//! [`Plan`] decides what is loaded and unloaded for that, and in which order; the [`Driver`]
//! performs its effects and reports the results as events. It knows repositories only as a
//! [`Catalog`].
//!
//! The one lock is held for a step of the plan, and while the registry applies the step's
//! changes, so that both always agree. Nothing is looked up, loaded or destroyed under it.
//!
//! # A reload is one swap
//!
//! The versions of a model are loaded side by side on the threads of a [`Pool`], each as
//! work of its own, next to the versions that serve. The last one to be done replaces the
//! model in the registry once, or not at all. [`Load`](load::Load) is the state of that.
//!
//! # Files
//!
//! | file | what |
//! |---|---|
//! | `orders.rs`, `polling.rs` | what the rest of the engine calls |
//! | `search.rs`, `candidate.rs`, `defined_model.rs` | from a name to definitions |
//! | `plan/`, `load.rs` | the decisions, as values |
//! | `effect.rs`, `driver.rs`, `worker.rs`, `pool.rs` | what follows from them |

mod candidate;
mod defined_model;
mod driver;
mod effect;
mod load;
mod orders;
mod plan;
mod polling;
mod pool;
mod search;
#[cfg(test)]
mod tests;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use galatea_dispatch::{Loader, LogSink};
use galatea_policy::ModelNames;
use galatea_repository::ScanProblem;
use galatea_stdx::Lock;

use self::driver::Driver;
use self::plan::Plan;
use self::pool::Pool;
use self::search::Searcher;
use self::worker::LoadWorker;
use crate::catalog::Catalog;
use crate::reaper::Reaper;
use crate::registry::Registry;

/// The cause of loads and unloads.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ControlMode {
    /// All models are loaded at start. Nothing changes later.
    None,
    /// Changes of the repositories are followed.
    Poll,
    /// Clients order loads and unloads.
    Explicit,
}

impl ControlMode {
    /// The name of the mode on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Poll => "poll",
            Self::Explicit => "explicit",
        }
    }
}

/// The use of names: several models may have the same one, or not.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// Each name is that of one model.
    None,
    /// Each repository is a namespace. Models of different namespaces may have the same
    /// name.
    Repositories,
}

/// The parts of a manager.
pub(crate) struct ManagerOptions {
    pub(crate) catalog: Arc<dyn Catalog>,
    pub(crate) mode: ControlMode,
    pub(crate) namespaces: Namespaces,
    pub(crate) registry: Arc<Registry>,
    pub(crate) reaper: Reaper,
    pub(crate) loader: Loader,
    /// The number of threads that load models.
    pub(crate) threads: usize,
    /// The number of times that a version which fails to load is tried again.
    pub(crate) retries: u32,
    pub(crate) log: LogSink,
}

/// The manager of a server's models. Its threads end with it.
pub(crate) struct Manager {
    catalog: Arc<dyn Catalog>,
    mode: ControlMode,
    driver: Arc<Driver>,
    /// Held while all repositories are scanned, until the plan knows what was found: an
    /// earlier scan must not be followed later.
    scanning: Lock<()>,
    /// The problems of the newest scan.
    unread: Lock<Vec<ScanProblem>>,
}

impl Manager {
    pub(crate) fn new(options: ManagerOptions) -> Self {
        let ManagerOptions { catalog, mode, registry, reaper, loader, log, .. } = options;
        let names = match options.namespaces {
            Namespaces::None => None,
            Namespaces::Repositories => Some(ModelNames::default()),
        };
        let plan = Plan::new(names, options.retries.saturating_add(1), mode);
        let worker = LoadWorker { registry, loader, reaper, log };
        let memory = catalog.clone();
        let pool = Pool::new(options.threads, Box::new(move || memory.release_memory()));
        let driver = Arc::new(Driver::new(plan, worker, pool));
        Self { catalog, mode, driver, scanning: Lock::default(), unread: Lock::default() }
    }

    fn searcher(&self) -> Searcher<'_> {
        Searcher { catalog: self.catalog.as_ref(), driver: &self.driver }
    }

    /// Begins no more loads, and takes every model out of service.
    pub(crate) fn close(&self) {
        self.give_up_loads();
        self.withdraw_all();
    }

    /// Begins no more loads. Orders that wait for one end with an error.
    pub(crate) fn give_up_loads(&self) {
        let mut plan = self.driver.lock("close");
        plan.is_closed = true;
        plan.stop_all_loads();
        let leases = plan.take_unclaimed_leases();
        drop(plan);
        drop(leases);
        self.driver.notify();
    }

    /// Takes every model out of service.
    pub(crate) fn withdraw_all(&self) {
        self.driver.worker.withdraw_all();
    }

    /// Returns true if an order for this name is being carried out.
    #[cfg(test)]
    pub(crate) fn is_ordered(&self, name: &str) -> bool {
        self.driver.lock("look for an order").is_ordered(name)
    }

    /// Returns true if a model is to be served, because an order or a model that needs it wants it.
    #[cfg(test)]
    pub(crate) fn wants(&self, id: &str) -> bool {
        self.driver.lock("look for a model").is_desired(id)
    }

    /// Waits until no load is under way, for at most `timeout`. Returns the number of jobs
    /// that are left.
    pub(crate) fn wait_idle(&self, timeout: Duration) -> usize {
        self.driver.pool.wait_idle(timeout)
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let mut plan = self.driver.lock("close with the server");
        plan.is_closed = true;
        plan.stop_all_loads();
        drop(plan);
        self.driver.pool.stop();
        self.withdraw_all();
        self.driver.notify();
    }
}
