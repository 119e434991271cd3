//! The manager: the driver of the lifecycle, which brings models into service and takes them out
//! of it.
//!
//! Orders, polls and the start all say the same: which models shall serve. The pure [`Plan`]
//! decides what is loaded and unloaded for that, and in which order; the [`Driver`] performs its
//! effects and reports the results as events. It knows repositories only as a [`Catalog`].
//!
//! The one lock is held for a step of the plan, and while the registry applies the step's
//! changes, so that both always agree. Nothing is looked up, loaded or destroyed under it.
//!
//! # Reload, step by step
//!
//! A first load takes the same steps, with nothing that serves.
//!
//! 1. **Order.** `Manager::load` begins an `OrderInProgress`, of which a name has one at a time.
//!    `Manager::poll` holds `scanning` from the scan until the plan knows what it found. The
//!    start is a poll or a list of names (`load_named`).
//! 2. **Search.** `Searcher` asks the catalog for the models and those that they need, without
//!    the lock. A model that the plan has as it is stays `CandidateContent::Unchanged`. Others
//!    are defined (`DefinedModel::define`): the configuration is read, and repository agents
//!    agree or refuse. Their lease waits in the `AgentLeaseSlot`.
//! 3. **Plan.** `Plan::set_desired` takes in all candidates or none; each that was defined is a
//!    revision of its own. `Lifecycle` begins the load once no other load or unload of the model
//!    is under way and the models that it needs have settled.
//! 4. **Preparation.** `LoadWorker::prepare`, on a thread of the [`Pool`], claims the lease, pins
//!    the versions that an ensemble needs (`PinnedModels`), and divides the model's versions.
//!    Those whose files and configuration did not change stay, at most with other instances; the
//!    others are loaded.
//! 5. **Versions.** Threads load them side by side, beside those that serve
//!    (`LoadWorker::work_on_version`). An instance that a version lacks is created and serves in
//!    it at once. A version that fails is tried again as often as `load_retries` says.
//! 6. **Decision.** The last result decides (`Plan::conclude_if_complete`). If every version is
//!    ready, the load commits. If one failed, or the model is not desired any more, it is
//!    abandoned.
//! 7. **Commit.** `LoadWorker::commit`, without the lock: surplus instances leave after their
//!    batches, the agents of the old model are told that it goes, then those of the new one that
//!    it serves.
//! 8. **Publication.** `Plan::publish` puts all versions into one snapshot
//!    (`RegistryChange::Publish`), under the lock. `Lifecycle` marks the ensembles that need the
//!    model as stale: each is reloaded by these steps, and pins the new versions.
//! 9. **Old versions.** The snapshot before is dropped. The last `ModelHandle` of an old version
//!    gives it to the reaper, which drains and destroys it ([`reaper`](crate::reaper)). The lease
//!    of its agents ends with their last version.
//!
//! An abandoned load ends in `LoadWorker::abandon`: added instances are removed, the agents are
//! told, the versions that were loaded go to the reaper, and what served serves on. The plan does
//! not try a failed revision again; another order or a change in the repository makes the next
//! one.
//!
//! An unload (`Manager::unload`, or a poll that misses the model) tells the agents without the
//! lock (`Effect::AnnounceUnload`), withdraws the versions from the snapshot, and ends with step
//! 9. The ensembles that need the model go out of service with it.
//!
//! # Races
//!
//! - **A request arrives during step 8.** It finds the old version or the new one in its
//!   snapshot, and holds that snapshot until it is queued: an old version is drained later. A
//!   door may have read the old configuration before. `Admission` checks the request against the
//!   version that executes it, and `SingleResponse` refuses a second response, so a misfit is an
//!   error.
//! - **Requests wait in the old version's queue.** They stay there and are executed: a drained
//!   scheduler refuses only what arrives later, and nothing does, since no handle is left.
//! - **A sequence is open.** It belongs to its version. Requests that have arrived are executed;
//!   the drain ends the sequence; its next request finds the new version and is refused unless it
//!   has the START flag. A version that stays keeps its sequences, and a surplus instance leaves
//!   after its own.
//! - **A decoupled model responds after its execution.** A drain waits for lanes, not for such
//!   responses. A compiled backend keeps instance and model until its last object
//!   (`InstanceGuard`), and the reaper waits for that (`Model::wait_until_unused`) before the
//!   version counts as unloaded, as in Triton. A worker in Python gets `finalize` at once, and `FINALIZE_PATIENCE` for
//!   it; a request that it then still holds fails.
//! - **Two orders for one name.** The second waits in `OrderInProgress::begin` until the first
//!   has its response, then compares the repository with what serves.
//! - **A newer revision becomes desired while one loads**, by a poll or by the order for an
//!   ensemble. A model has one load (`Plan::begin_load` asserts it). The older one ends and
//!   serves for a moment; then `Lifecycle` begins the newer.
//! - **The plan changes between search and plan.** A candidate that was unchanged may have been
//!   unloaded or have failed since. `set_desired` gives all candidates back; that one is defined,
//!   and the step repeated. Each round defines more of them, so the rounds end.
//! - **An unload overtakes a load.** `Driver::wait_without_loads` stops the load: a warmup ends,
//!   and work that waits for a thread is skipped on the unload's own. An `initialize` goes on,
//!   and the unload waits for it. It keeps the lock from the end of the load to
//!   `Plan::remove_desired`, so no other load begins between. The client of the load gets a
//!   success (`Plan::is_overtaken`), as in Triton, where the unload follows the load. A load that
//!   a desired ensemble needs is not stopped.
//! - **The model is removed between steps 7 and 8.** `publish` asks `may_serve` under the lock,
//!   and abandons the load. The agents had been told that the model serves; now they are told
//!   that it goes (`AbandonNotice::Unloading`).
//! - **A model is reloaded while an ensemble that needs it loads.** `Lifecycle` marks the
//!   ensemble as stale. Its load ends with the versions that it pinned, and is followed by
//!   another; a failure before that counts for nothing.
//! - **A model is replaced under a serving ensemble.** The ensemble's pins keep the old versions,
//!   which serve for it alone. The reaper gets them when it has destroyed the ensemble, and so
//!   after its last request.
//! - **A load is ordered while agents are told of an unload.** `begin_unload` expires the lease
//!   under the lock, before the agents hear of it. `DefinedModel::is_current` sees that, and
//!   other agents are asked; a load that was prepared with the old lease is refused
//!   (`ClaimedLease::Expired`).
//! - **An old version ends while the same number serves again.** `Registry::version_destroyed`
//!   compares versions by identity, not by number.
//! - **A backend or an agent panics.** `Loader` makes the panic the failure of the version, and
//!   agents are called behind `catch_unwind`: the event that ends the effect follows, and the
//!   order that waits for it ends.
//! - **The server stops.** `Plan::is_closed` is set under the lock: a publication came before and
//!   is withdrawn, or comes later and is abandoned. `crates/galatea/src/shutdown.rs` tells the
//!   rest.
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
mod withdrawal;
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
use self::withdrawal::Withdrawal;
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
    withdrawal: Arc<Withdrawal>,
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
        let (scanning, unread, withdrawal) = Default::default();
        Self { catalog, mode, driver, scanning, unread, withdrawal }
    }

    fn searcher(&self) -> Searcher<'_> {
        Searcher { catalog: self.catalog.as_ref(), driver: &self.driver }
    }

    /// Begins no more loads, and takes every model out of service, as far as `timeout` allows.
    pub(crate) fn close(&self, timeout: Duration) {
        self.give_up_loads();
        self.withdraw_all(timeout);
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

    /// Takes every model out of service, and waits for at most `timeout` until the repository
    /// agents were told.
    pub(crate) fn withdraw_all(&self, timeout: Duration) {
        self.withdrawal.run(&self.driver, timeout);
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
        if !self.withdrawal.is_running() {
            self.driver.worker.withdraw_all();
        }
        self.driver.notify();
    }
}
