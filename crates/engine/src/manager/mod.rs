//! The manager drives the model lifecycle: it brings models into and out of service.
//!
//! Orders, polls and startup all specify which models should serve. The pure [`Plan`] decides what
//! to load and unload and in which order; the [`Driver`] performs the plan's effects and reports
//! the results as events. The manager sees repositories only as a [`LoadableModels`].
//!
//! A single lock is held while the plan is stepped and while the registry applies the step's
//! changes, so the two always agree. No lookup, load or destruction happens under that lock.
//!
//! # Reload, step by step
//!
//! A first load takes the same steps, with nothing in service yet.
//!
//! 1. **Order.** `Manager::load` begins an `OrderInProgress`, one per name at a time.
//!    `Manager::poll` holds `scanning` from the scan until the plan knows its results. Startup is
//!    either a poll or a list of names (`load_named`).
//! 2. **Search.** Without the lock, `Searcher` asks the catalog for the models and the models that
//!    they need. A model that the plan already has unchanged becomes `CandidateContent::Unchanged`.
//!    Others are defined (`DefinedModel::define`): the configuration is read, and repository agents
//!    agree or refuse. Their lease waits in the `AgentLeaseSlot`.
//! 3. **Plan.** `Plan::set_desired` accepts all candidates or none; each defined candidate is a new
//!    revision. `LifecyclePlanner` begins the load once no other load or unload of the model is in
//!    progress and the models that it needs have settled.
//! 4. **Preparation.** On a [`Pool`] thread, `LoadWorker::prepare` claims the lease, pins the
//!    versions that an ensemble needs (`PinnedModels`), and sorts the model's versions into two
//!    groups. Versions with unchanged files and configuration stay, possibly with a change to their
//!    instances; the others are loaded.
//! 5. **Versions.** Threads load the versions in parallel, next to those in service
//!    (`LoadWorker::work_on_version`). If a version lacks an instance, the instance is created and
//!    starts serving immediately. A version that fails is retried up to `load_retries` times.
//! 6. **Decision.** The last result decides (`Plan::conclude_if_complete`). If every version is
//!    ready, the load commits. If one failed, or the model is no longer desired, the load is
//!    abandoned.
//! 7. **Commit.** `LoadWorker::commit` runs without the lock. Surplus instances leave after their
//!    batches. The old model's agents are notified that it is going out of service, then the new
//!    model's agents that it is entering service.
//! 8. **Publication.** `Plan::publish` puts all versions into one snapshot
//!    (`RegistryChange::Publish`), under the lock. `LifecyclePlanner` marks the ensembles that need
//!    the model as stale: each is reloaded by the same steps, and pins the new versions.
//! 9. **Old versions.** The previous snapshot is dropped. The last `ModelHandle` of an old version
//!    gives it to the reaper, which drains and destroys it ([`reaper`](crate::reaper)). The agents'
//!    lease ends with the last of their versions.
//!
//! An abandoned load ends in `LoadWorker::abandon`: added instances are removed, the agents are
//! notified, the loaded versions go to the reaper, and versions in service keep serving. The plan
//! does not retry a failed revision; only another order or a change in the repository creates the
//! next one.
//!
//! An unload (`Manager::unload`, or a poll that no longer finds the model) notifies the agents
//! without the lock (`Effect::AnnounceUnload`), withdraws the versions from the snapshot, and ends
//! with step
//! 9. The ensembles that need the model go out of service with it.
//!
//! # Races
//!
//! - **A request arrives during step 8.** It finds either the old or the new version in its
//!   snapshot, and holds that snapshot until it is queued, so an old version is drained only later.
//!   A door may have read the old configuration earlier. `Admission` checks the request against the
//!   version that executes it, and `SingleResponse` refuses a second response, so a mismatch is an
//!   error.
//! - **Requests wait in the old version's queue.** They stay there and are executed. A draining
//!   scheduler only refuses later arrivals, and there are none, because no handle is left.
//! - **A sequence is open.** It belongs to its version. Requests that have arrived are executed,
//!   and the drain ends the sequence. The sequence's next request finds the new version and is
//!   refused unless it has the START flag. A version that stays keeps its sequences, and a surplus
//!   instance leaves after finishing its own.
//! - **A decoupled model responds after its execution.** A drain waits for lanes, not for such
//!   responses. A compiled backend keeps the instance and model until its last object is gone
//!   (`InstanceGuard`). The reaper waits for that (`Model::wait_until_unused`) before the version
//!   counts as unloaded, as in Triton. A Python worker is sent `finalize` immediately and has
//!   `FINALIZE_PATIENCE` to complete it; a request that it still holds after that fails.
//! - **Two orders for one name.** The second waits in `OrderInProgress::begin` until the first has
//!   its response, then compares the repository with the models in service.
//! - **A newer revision becomes desired during a load**, through a poll or an order for an
//!   ensemble. A model has only one load at a time (`Plan::begin_load` asserts this). The older
//!   load ends and serves for a moment; then `LifecyclePlanner` begins the newer one.
//! - **The plan changes between search and plan.** An unchanged candidate may since have been
//!   unloaded or have failed. `set_desired` then returns all candidates, that candidate is defined,
//!   and the step is repeated. Each round defines more candidates, so the rounds end.
//! - **An unload overtakes a load.** `Driver::wait_without_loads` stops the load: a warmup ends,
//!   and work waiting for a thread is skipped on the unload's own thread. An `initialize`
//!   continues, and the unload waits for it. The unload keeps the lock from the end of the load to
//!   `Plan::remove_desired`, so no other load begins in between. The load's client gets a success
//!   (`Plan::is_overtaken`), as in Triton, where the unload follows the load. A load that a desired
//!   ensemble needs is not stopped.
//! - **The model is removed between steps 7 and 8.** `publish` checks `may_serve` under the lock,
//!   and abandons the load. The agents were notified that the model serves, and are now notified
//!   that it is going out of service (`AbandonNotice::Unloading`).
//! - **A model is reloaded while an ensemble that needs it loads.** `LifecyclePlanner` marks the
//!   ensemble as stale. Its load ends with the versions that it pinned, and another load follows; a
//!   failure of the first load is ignored.
//! - **A model is replaced under a serving ensemble.** The ensemble's pins keep the old versions,
//!   which then serve only the ensemble. The reaper gets them once it has destroyed the ensemble,
//!   which is after the ensemble's last request.
//! - **A load is ordered while agents are notified of an unload.** `begin_unload` expires the lease
//!   under the lock, before the agents are notified. `DefinedModel::is_current` notices that, and
//!   new agents are asked; a load that was prepared with the old lease is refused
//!   (`ClaimedLease::Expired`).
//! - **An old version ends while the same number serves again.** `Registry::version_destroyed`
//!   compares versions by identity, not by number.
//! - **A backend or an agent panics.** `VersionLoader` turns the panic into a failure of the
//!   version, and agents are called under `catch_unwind`. The event that ends the effect still
//!   follows, so the order waiting for it ends.
//! - **The server stops.** `Plan::is_closed` is set under the lock, so a publication either came
//!   before and is withdrawn, or comes later and is abandoned. `crates/galatea/src/shutdown.rs`
//!   describes the rest.
//!
//! # Files
//!
//! | file | what |
//! |---|---|
//! | `orders.rs`, `polling.rs` | the interface for the rest of the engine |
//! | `search.rs`, `candidate.rs`, `defined_model.rs` | from a name to definitions |
//! | `plan/`, `load.rs` | the decisions, as values |
//! | `effect.rs`, `driver.rs`, `worker.rs`, `pool.rs` | the consequences of the decisions |

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

use galatea_dispatch::{LogSink, VersionLoader};
use galatea_policy::ModelIdsByName;
use galatea_repository::ScanProblem;
use galatea_stdx::Lock;

use self::driver::Driver;
use self::plan::Plan;
use self::pool::Pool;
use self::search::Searcher;
use self::withdrawal::AgentWithdrawals;
use self::worker::LoadWorker;
use crate::catalog::LoadableModels;
use crate::reaper::Reaper;
use crate::registry::Registry;

/// The source of load and unload decisions.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ControlMode {
    /// All models are loaded at startup. Nothing changes later.
    None,
    /// The server follows changes in the repositories.
    Poll,
    /// Clients order loads and unloads.
    Explicit,
    /// Requests and clients order loads. Models are unloaded when the memory is full.
    Demand,
}

impl ControlMode {
    /// The mode's name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Poll => "poll",
            Self::Explicit => "explicit",
            Self::Demand => "demand",
        }
    }

    /// Returns true if clients may load and unload models.
    #[must_use]
    pub const fn allows_orders(self) -> bool {
        match self {
            Self::Explicit | Self::Demand => true,
            Self::None | Self::Poll => false,
        }
    }
}

/// The meaning of model names: unique, or shared by several models.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum NamespaceMode {
    /// A name belongs to a single model.
    None,
    /// Each repository is a namespace. Models in different namespaces may have the same name.
    Repositories,
}

/// The manager options.
pub(crate) struct ManagerOptions {
    pub(crate) catalog: Arc<dyn LoadableModels>,
    pub(crate) mode: ControlMode,
    pub(crate) namespaces: NamespaceMode,
    pub(crate) registry: Arc<Registry>,
    pub(crate) reaper: Reaper,
    pub(crate) loader: VersionLoader,
    /// The number of threads that load models.
    pub(crate) threads: usize,
    /// The number of times that a failed version is retried.
    pub(crate) retries: u32,
    pub(crate) log: LogSink,
}

/// The manager of a server's models. Dropping it ends its threads.
pub(crate) struct Manager {
    catalog: Arc<dyn LoadableModels>,
    mode: ControlMode,
    driver: Arc<Driver>,
    /// Held from the start of a scan of all repositories until its results are in the plan, so that
    /// an earlier scan is never applied after a later one.
    scanning: Lock<()>,
    /// The problems of the latest scan.
    unread: Lock<Vec<ScanProblem>>,
    withdrawal: Arc<AgentWithdrawals>,
}

impl Manager {
    pub(crate) fn new(options: ManagerOptions) -> Self {
        let ManagerOptions { catalog, mode, registry, reaper, loader, log, .. } = options;
        let names = match options.namespaces {
            NamespaceMode::None => None,
            NamespaceMode::Repositories => Some(ModelIdsByName::default()),
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

    /// Stops beginning loads, and tries to take every model out of service within `timeout`.
    pub(crate) fn close(&self, timeout: Duration) {
        self.give_up_loads();
        self.withdraw_all(timeout);
    }

    /// Stops beginning loads. Orders that wait for a load end with an error.
    pub(crate) fn give_up_loads(&self) {
        let mut plan = self.driver.lock("close");
        plan.is_closed = true;
        plan.stop_all_loads();
        let leases = plan.take_unclaimed_leases();
        drop(plan);
        drop(leases);
        self.driver.notify();
    }

    /// Takes every model out of service, and waits up to `timeout` for the repository agents to be
    /// notified.
    pub(crate) fn withdraw_all(&self, timeout: Duration) {
        self.withdrawal.run(&self.driver, timeout);
    }

    /// Returns true if an order for this name is in progress.
    #[cfg(test)]
    pub(crate) fn is_ordered(&self, name: &str) -> bool {
        self.driver.lock("look for an order").is_ordered(name)
    }

    /// Returns true if a model should serve, because of an order or because another model needs it.
    #[cfg(test)]
    pub(crate) fn wants(&self, id: &str) -> bool {
        self.driver.lock("look for a model").is_desired(id)
    }

    /// Waits up to `timeout` until no load is in progress. Returns the number of remaining jobs.
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
