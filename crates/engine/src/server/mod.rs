//! The server, which owns all models and is the entry point for all requests.

mod control;
#[cfg(test)]
mod tests;
mod traffic;
mod watching;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::time::{Duration, Instant};

use galatea_backend::{LogLevel, ResponseCache};
use galatea_control::{LoadParameters, ServedModel};
use galatea_dispatch::{
    GpuMemoryCheck, HostPolicies, LoadedModel, LoaderOptions, LogSink, ModelDefinition,
    ModelMetricOptions, RateLimiterMode, VersionLoader, refuse_and_log,
};
use galatea_explain::LatencyCauseFinder;
use galatea_gate::ledger::MemoryLedger;
use galatea_infer::{
    AccessPass, CacheStatistics, InferenceRequest, InferenceService, ResponseSender, Status, api,
};
use galatea_policy::RequestOrigin;
use galatea_repository::ScanProblem;

use crate::LoadFailure;
use crate::catalog::LoadableModels;
use crate::demand::{Demand, DemandOptions, ModelMemoryReading, Waiter};
use crate::gpu_losses::GpuLosses;
use crate::handle::ModelHandle;
use crate::manager::{ControlMode, Manager, ManagerOptions, NamespaceMode};
use crate::reaper::Reaper;
use crate::registry::Registry;

/// The server options.
pub struct ServerOptions {
    /// The server name in the metadata.
    pub name: String,
    /// The server version in the metadata.
    pub version: String,
    /// True if the server is ready only when all of its models are.
    pub strict_readiness: bool,
    /// The number of requests that must be queued before schedulers proceed; 0 means off. Tests use
    /// it to make batches predictable.
    pub hold_until_queued: u32,
    /// The additional number of backlogged requests that sequence batchers wait for.
    pub hold_until_backlogged: u32,
    /// Overrides the backend's declaration of whether a model's instances are created in parallel.
    pub parallel_creation: Option<bool>,
    /// Checks a GPU's memory after an instance has been created on it.
    pub gpu_memory_check: Option<GpuMemoryCheck>,
    /// The model catalog.
    pub catalog: Arc<dyn LoadableModels>,
    /// The source of load and unload decisions.
    pub control: ControlMode,
    /// The options for [`ControlMode::Demand`]; `None` in other modes.
    pub demand: Option<DemandOptions>,
    /// The meaning of model names: unique, or shared by several models.
    pub namespaces: NamespaceMode,
    /// The number of threads that load models.
    pub load_threads: usize,
    /// The number of times that a failed version is retried.
    pub load_retries: u32,
    /// The cache for models whose configuration enables caching.
    pub cache: Option<Arc<dyn ResponseCache>>,
    /// The processors on which instances run.
    pub host_policies: HostPolicies,
    /// The way instances of all models share resources.
    pub rate_limit: RateLimiterMode,
    /// The request measurements to make in addition to the statistics.
    pub measurements: ModelMetricOptions,
    /// Determines the main cause of request latency for a model's status; if `None`, the status has
    /// none.
    pub main_cause_text: Option<LatencyCauseFinder>,
    /// Counts the memory of requests, responses and padded batches.
    pub ledger: Arc<MemoryLedger>,
    /// The log.
    pub log: LogSink,
}

/// A server and its models.
pub struct Server {
    pub(crate) options: ServerOptions,
    pub(crate) registry: Arc<Registry>,
    pub(crate) manager: Arc<Manager>,
    /// Loads models on demand; `None` unless the control mode is [`ControlMode::Demand`].
    demand: Option<Arc<Demand>>,
    reaper: Reaper,
    /// Set once, when the server begins to stop.
    exiting: AtomicBool,
    /// Set at most once, before any request, if the server has nothing to serve from.
    failed: AtomicBool,
    /// True if executions are recorded for watchers.
    is_recording: Arc<AtomicBool>,
    gpu_losses: Arc<GpuLosses>,
    /// The number of traffic recordings in progress.
    traffic_recordings: Arc<AtomicUsize>,
}

impl Server {
    /// Creates a server without models.
    ///
    /// # Errors
    ///
    /// `Internal` if a thread can't be started.
    pub fn new(options: ServerOptions) -> Result<Self, Status> {
        let loader = VersionLoader::new(LoaderOptions {
            log: options.log.clone(),
            cache: options.cache.clone(),
            hold_until_queued: options.hold_until_queued,
            hold_until_backlogged: options.hold_until_backlogged,
            parallel_creation: options.parallel_creation,
            gpu_memory_check: options.gpu_memory_check.clone(),
            host_policies: options.host_policies.clone(),
            rate_limit: options.rate_limit.clone(),
            measurements: options.measurements.clone(),
            ledger: options.ledger.clone(),
        })?;
        let registry = Arc::new(match options.namespaces {
            NamespaceMode::None => Registry::default(),
            NamespaceMode::Repositories => Registry::with_namespaces(),
        });
        let gpu_losses = GpuLosses::new(&registry, loader.lost_gpus(), options.log.clone());
        let known = Arc::downgrade(&registry);
        let waiting = Arc::new(OnceLock::<Weak<Demand>>::new());
        let told = waiting.clone();
        let on_destroyed = move |id: &str, version: i64, model: &Weak<LoadedModel>| {
            if let Some(registry) = known.upgrade() {
                registry.version_destroyed(id, version, model);
            }
            if let Some(demand) = told.get().and_then(Weak::upgrade) {
                demand.version_destroyed();
            }
        };
        let reaper = Reaper::start(Box::new(on_destroyed), options.log.clone())?;
        let manager = Arc::new(Manager::new(ManagerOptions {
            catalog: options.catalog.clone(),
            mode: options.control,
            namespaces: options.namespaces,
            registry: registry.clone(),
            reaper: reaper.clone(),
            loader,
            threads: options.load_threads,
            retries: options.load_retries,
            log: options.log.clone(),
        }));
        let demand = options.demand.clone().map(|on_demand| {
            let (manager, registry) = (manager.clone(), registry.clone());
            let catalog = options.catalog.clone();
            Demand::start(on_demand, options.load_threads, manager, registry, catalog)
        });
        let demand = demand.transpose()?;
        if let Some(demand) = &demand {
            // The cell was empty.
            let _ = waiting.set(Arc::downgrade(demand));
        }
        Ok(Self {
            options,
            registry,
            manager,
            demand,
            reaper,
            exiting: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            is_recording: Arc::default(),
            gpu_losses,
            traffic_recordings: Arc::default(),
        })
    }

    /// Returns the function to call when a GPU has failed permanently. Its arguments are the GPU's
    /// number and the reason. All models' instances on that GPU fail their requests and go out of
    /// service; others are unaffected. The function can be called on any thread, returns
    /// immediately, and may be called several times.
    pub fn gpu_loss_handler(&self) -> impl Fn(u32, &str) + Send + Sync + use<> {
        let losses = self.gpu_losses.clone();
        move |gpu, reason| losses.report(gpu, reason)
    }

    /// The response cache's counters, if the server has a cache.
    #[must_use]
    pub fn cache_statistics(&self) -> Option<CacheStatistics> {
        self.options.cache.as_ref()?.statistics()
    }

    /// Loads models that are not in the repositories. Returns the failures.
    pub fn load_definitions(&self, definitions: Vec<ModelDefinition>) -> Vec<LoadFailure> {
        self.manager.load_definitions(definitions)
    }

    /// Serves exactly the models in the repositories: loads new and changed models, and unloads
    /// removed ones. Blocks until that is done. Returns true if all repository models are serving.
    pub fn poll_repositories(&self) -> bool {
        self.manager.poll()
    }

    /// The problems that the last [`Server::poll_repositories`] found: directories and
    /// configurations that could not be read. The index doesn't report these reasons.
    #[must_use]
    pub fn scan_problems(&self) -> Vec<ScanProblem> {
        self.manager.unread()
    }

    /// Loads models by name, along with the models that they need. Blocks until that is done.
    /// Returns true if all of them are serving.
    pub fn load_named(&self, names: &[String]) -> bool {
        self.manager.load_named(names)
    }

    /// Finds the models that are loaded on demand. Without demand, nothing happens.
    pub fn discover_models(&self) {
        self.demand.iter().for_each(Demand::discover);
    }

    /// Loads models by name, and pins them: they stay until a client unloads them. Blocks until
    /// that is done. Returns true if all of them are serving.
    pub fn load_pinned(&self, names: &[String]) -> bool {
        let load = |name: &String| {
            let loaded = match &self.demand {
                Some(demand) => {
                    demand.load_model(RequestOrigin::Client, name, LoadParameters::default())
                }
                None => self.manager.load(name, LoadParameters::default()),
            };
            if let Err(status) = &loaded {
                self.options.log.write(LogLevel::Error, status);
            }
            loaded.is_ok()
        };
        // All are tried, so that the log shows all errors.
        names.iter().filter(|name| !load(name)).count() == 0
    }

    /// The memory of models that are loaded on demand; `None` in other control modes.
    #[must_use]
    pub fn model_memory(&self) -> Option<ModelMemoryReading> {
        self.demand.as_ref().map(|demand| demand.reading())
    }

    /// Begins to stop. From now on the server isn't ready and refuses new requests, but requests in
    /// progress continue.
    pub fn begin_exit(&self) {
        self.exiting.store(true, Ordering::Release);
        self.refuse_waiting_requests();
    }

    /// Refuses the requests that wait for a model.
    fn refuse_waiting_requests(&self) {
        self.demand.iter().for_each(|demand| demand.close());
    }

    /// Looks up the model of a request from a model that is being executed. If the model is loaded
    /// on demand, blocks until it is resident.
    ///
    /// # Errors
    ///
    /// The errors of [`ServerControl::model_for_inference`](galatea_control::ServerControl), and
    /// those of the load.
    pub fn find_nested(
        &self,
        name: &str,
        version: Option<i64>,
    ) -> Result<Arc<dyn ServedModel>, Status> {
        let missing = match self.find(name, version) {
            Ok(model) => return Ok(model),
            Err(status) => status,
        };
        let Some(demand) = &self.demand else { return Err(missing) };
        let (sender, receiver) = mpsc::channel();
        let found = Box::new(move |result| drop(sender.send(result)));
        demand.wait(Waiter::request(name, version, RequestOrigin::Nested, found));
        Ok(receiver.recv().unwrap_or(Err(missing))?)
    }

    /// Executes a request from a model that is being executed.
    pub fn infer_nested(&self, request: Box<InferenceRequest>, sender: ResponseSender) {
        self.infer_from(RequestOrigin::Nested, request, sender);
    }

    /// Loads a model for a model that is being executed, like
    /// [`ServerControl::load_model`](galatea_control::ServerControl).
    ///
    /// # Errors
    ///
    /// The errors of the load. If models are loaded on demand, also `Unavailable` if the load would
    /// have to wait until a model in use is idle.
    pub fn load_nested(&self, name: &str, parameters: LoadParameters) -> Result<(), Status> {
        self.check_initialized()?;
        match &self.demand {
            Some(demand) => demand.load_model(RequestOrigin::Nested, name, parameters),
            None => self.manager.load(name, parameters),
        }
    }

    #[inline]
    fn infer_from(
        &self,
        origin: RequestOrigin,
        mut request: Box<InferenceRequest>,
        sender: ResponseSender,
    ) {
        if self.is_exiting() {
            let status = Status::unavailable("Server is stopping: no new requests are accepted");
            return refuse_and_log(sender, status, &self.options.log);
        }
        let found = request.found_model.take().and_then(|model| model.downcast().ok());
        let model: Result<Arc<ModelHandle>, Status> = match found {
            Some(model) => Ok(model),
            None => self.find(&request.model_name, request.model_version),
        };
        match model {
            Ok(model) => model.infer(request, sender),
            Err(status) => self.wait_or_refuse(origin, request, sender, status),
        }
    }

    /// Lets a request wait for its model, if it is loaded on demand.
    #[cold]
    fn wait_or_refuse(
        &self,
        origin: RequestOrigin,
        request: Box<InferenceRequest>,
        sender: ResponseSender,
        missing: Status,
    ) {
        let Some(demand) = &self.demand else {
            return refuse_and_log(sender, missing, &self.options.log);
        };
        let (name, version) = (request.model_name.clone(), request.model_version);
        let (deadline, cancel) = (request.deadline, request.cancel.clone());
        let log = self.options.log.clone();
        let found = Box::new(move |result: Result<Arc<ModelHandle>, Status>| match result {
            Ok(model) => model.infer(request, sender),
            Err(status) => refuse_and_log(sender, status, &log),
        });
        demand.wait(Waiter::request(&name, version, origin, found).until(deadline, cancel));
    }

    /// Marks the server as not initialized. From now on it is neither live nor ready, and serves
    /// only its own metadata.
    pub fn mark_failed(&self) {
        self.failed.store(true, Ordering::Release);
    }

    fn is_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Returns true if [`Server::begin_exit`] has been called.
    #[must_use]
    pub fn is_exiting(&self) -> bool {
        self.exiting.load(Ordering::Acquire)
    }

    /// Takes every model out of service, executes all queued requests and destroys the models.
    /// Returns the number of model versions that remain after `timeout`, including those still
    /// being loaded.
    pub fn unload_all(&self, timeout: Duration) -> usize {
        let RemainingUnloads { loads, versions } = self.unload_all_detailed(timeout);
        loads + versions
    }

    /// Like [`Self::unload_all`], but returns separate counts of the remaining work.
    pub fn unload_all_detailed(&self, timeout: Duration) -> RemainingUnloads {
        let deadline = Instant::now() + timeout.max(IDLE_MODELS_TIME);
        let left = || deadline.saturating_duration_since(Instant::now());
        self.manager.close(left());
        let loads = self.manager.wait_idle(left());
        // A load may have ended in the meantime. A model whose agents don't return is counted
        // below.
        self.manager.withdraw_all(left());
        RemainingUnloads { loads, versions: self.reaper.wait_idle(left()) }
    }

    /// Stops beginning loads, and fails orders that wait for a load, because the server is exiting.
    /// Models keep serving.
    pub fn cancel_pending_loads(&self) {
        self.refuse_waiting_requests();
        self.manager.give_up_loads();
    }
}

/// The work remaining in a server that is unloading its models.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct RemainingUnloads {
    /// Versions that are still being loaded, although no client waits for their results.
    pub loads: usize,
    /// Versions that still have requests or are being destroyed.
    pub versions: usize,
}

/// The time that models without requests have to end before they count as busy.
const IDLE_MODELS_TIME: Duration = Duration::from_millis(100);

impl InferenceService for Server {
    fn infer(
        &self,
        _: AccessPass<api::Inference>,
        request: Box<InferenceRequest>,
        sender: ResponseSender,
    ) {
        self.infer_from(RequestOrigin::Client, request, sender);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.refuse_waiting_requests();
    }
}
