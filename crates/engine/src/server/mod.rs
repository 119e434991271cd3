//! The server: every model, and the one entrance to them.

use std::sync::atomic::{AtomicBool, Ordering};
mod control;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use galatea_backend::ResponseCache;
use galatea_dispatch::{
    HostPolicies, LoadedModel, Loader, LoaderOptions, LogSink, ModelDefinition, RateLimit, refuse,
};
use galatea_infer::{CacheStatistics, InferenceRequest, InferenceService, ResponseSender, Status};

use crate::LoadFailure;
use crate::catalog::Catalog;
use crate::manager::{ControlMode, Manager, ManagerOptions, Namespaces};
use crate::reaper::Reaper;
use crate::registry::Registry;

/// What a server is told when it is made.
pub struct ServerOptions {
    /// The name that the metadata shows.
    pub name: String,
    /// The version that the metadata shows.
    pub version: String,
    /// Whether the server is ready only if all of its models are.
    pub strict_readiness: bool,
    /// Schedulers hold back until this many requests wait; 0 is off. Makes
    /// batches predictable in tests.
    pub hold_until_queued: u32,
    /// The same for the backlog of sequence batchers, in addition.
    pub hold_until_backlogged: u32,
    /// Where models come from.
    pub catalog: Arc<dyn Catalog>,
    /// How they come and go.
    pub control: ControlMode,
    /// Whether several of them may have the same name.
    pub namespaces: Namespaces,
    /// How many models load at the same time.
    pub load_threads: usize,
    /// How often a version that fails to load is tried again.
    pub load_retries: u32,
    /// Where models that ask for it in their configuration keep responses.
    pub cache: Option<Arc<dyn ResponseCache>>,
    /// On which processors instances run.
    pub host_policies: HostPolicies,
    /// How instances of all models share resources.
    pub rate_limit: RateLimit,
    /// Where lines of the log go.
    pub log: LogSink,
}

/// A server with its models.
pub struct Server {
    pub(crate) options: ServerOptions,
    pub(crate) registry: Arc<Registry>,
    pub(crate) manager: Manager,
    reaper: Reaper,
    /// Set once, when the server begins to stop.
    exiting: AtomicBool,
}

impl Server {
    /// A server without models.
    ///
    /// # Errors
    ///
    /// `Internal` if a thread can't be started.
    pub fn new(options: ServerOptions) -> Result<Self, Status> {
        let loader = Loader::new(LoaderOptions {
            log: options.log.clone(),
            cache: options.cache.clone(),
            hold_until_queued: options.hold_until_queued,
            hold_until_backlogged: options.hold_until_backlogged,
            host_policies: options.host_policies.clone(),
            rate_limit: options.rate_limit.clone(),
        })?;
        let registry = Arc::new(match options.namespaces {
            Namespaces::None => Registry::default(),
            Namespaces::Repositories => Registry::with_namespaces(),
        });
        let known = Arc::downgrade(&registry);
        let on_destroyed = move |id: &str, version: i64, model: &Weak<LoadedModel>| {
            if let Some(registry) = known.upgrade() {
                registry.version_destroyed(id, version, model);
            }
        };
        let reaper = Reaper::start(Box::new(on_destroyed), options.log.clone())?;
        let manager = Manager::new(ManagerOptions {
            catalog: options.catalog.clone(),
            mode: options.control,
            namespaces: options.namespaces,
            registry: registry.clone(),
            reaper: reaper.clone(),
            loader,
            threads: options.load_threads,
            retries: options.load_retries,
            log: options.log.clone(),
        });
        Ok(Self { options, registry, manager, reaper, exiting: AtomicBool::new(false) })
    }

    /// The counters of the response cache as a whole, if it tells any.
    #[must_use]
    pub fn cache_statistics(&self) -> Option<CacheStatistics> {
        self.options.cache.as_ref()?.statistics()
    }

    /// Loads models that are in no repository, and reports what failed.
    pub fn load(&self, definitions: Vec<ModelDefinition>) -> Vec<LoadFailure> {
        self.manager.load_definitions(definitions)
    }

    /// Makes what serves what the repositories hold now: loads what is new or
    /// changed and unloads what is gone. Returns, when that is done, whether
    /// every model of the repositories serves.
    pub fn follow_repositories(&self) -> bool {
        self.manager.poll()
    }

    /// Loads models by name, with what they need. Returns, when that is done,
    /// whether all of them serve.
    pub fn load_named(&self, names: &[String]) -> bool {
        self.manager.load_named(names)
    }

    /// From now on the server isn't ready and takes no new requests; those
    /// that it has go on.
    pub fn begin_exit(&self) {
        self.exiting.store(true, Ordering::Release);
    }

    /// Whether [`Server::begin_exit`] was called.
    #[must_use]
    pub fn is_exiting(&self) -> bool {
        self.exiting.load(Ordering::Acquire)
    }

    /// Takes every model out of service, lets every queued request run and
    /// destroys the models. Returns how many model versions, with those that
    /// were still being loaded, were not done within `timeout`.
    pub fn unload_all(&self, timeout: Duration) -> usize {
        let deadline = Instant::now() + timeout.max(IDLE_MODELS_TIME);
        let left = || deadline.saturating_duration_since(Instant::now());
        self.manager.close();
        let loading = self.manager.wait_idle(left());
        // What was loaded at the last moment goes too.
        self.manager.withdraw_all();
        loading + self.reaper.wait_idle(left())
    }
}

/// How long models that have nothing to do may take to end, without being
/// counted as busy.
const IDLE_MODELS_TIME: Duration = Duration::from_millis(100);

impl InferenceService for Server {
    fn infer(&self, request: InferenceRequest, sender: ResponseSender) {
        if self.is_exiting() {
            let status = Status::unavailable("Server is stopping: no new requests are accepted");
            return refuse(sender, status, &self.options.log);
        }
        let snapshot = self.registry.snapshot();
        match snapshot.find(&request.model_name, request.model_version) {
            Ok(model) => model.infer(request, sender),
            Err(status) => refuse(sender, status, &self.options.log),
        }
    }
}
