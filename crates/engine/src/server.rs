//! The server: every model, and the one entrance to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use galatea_backend::{LogLevel, ModelFiles};
use galatea_infer::{InferenceRequest, InferenceService, ModelState, ResponseSender, Status};

use crate::loader::Loader;
use crate::log::refuse;
use crate::registry::{Registry, VersionEntry};
use crate::scheduling::Holds;
use crate::timer::Timer;
use crate::{HostPolicies, LoadFailure, LoadedModel, LogSink, ModelDefinition, ResponseCache};

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
    /// How often a version that fails to load is tried again.
    pub load_retries: u32,
    /// Where models that ask for it in their configuration keep responses.
    pub cache: Option<Arc<dyn ResponseCache>>,
    /// On which processors instances run.
    pub host_policies: HostPolicies,
    /// Where lines of the log go.
    pub log: LogSink,
}

/// A server with its models.
pub struct Server {
    pub(crate) options: ServerOptions,
    pub(crate) registry: Registry,
    loader: Loader,
    /// Set once, when the server begins to stop.
    exiting: AtomicBool,
}

impl Server {
    /// A server without models.
    ///
    /// # Errors
    ///
    /// `Internal` if its timer's thread can't be started.
    pub fn new(options: ServerOptions) -> Result<Self, Status> {
        let timer = Timer::start()
            .map_err(|error| Status::internal(format!("can't start the timer thread: {error}")))?;
        let loader = Loader {
            timer,
            log: options.log.clone(),
            cache: options.cache.clone(),
            host_policies: options.host_policies.clone(),
            holds: Holds {
                until_queued: options.hold_until_queued,
                until_backlogged: options.hold_until_backlogged,
            },
        };
        Ok(Self { options, registry: Registry::default(), loader, exiting: AtomicBool::new(false) })
    }

    /// The same server with a timer that never goes off.
    #[cfg(test)]
    pub(crate) fn without_timer(mut self) -> Self {
        self.loader.timer = Timer::stopped();
        self
    }

    /// Loads models, up to `threads` at a time, and reports what failed.
    ///
    /// A model's versions load one after another; those that load serve, also
    /// if others fail.
    pub fn load(&self, definitions: Vec<ModelDefinition>, threads: usize) -> Vec<LoadFailure> {
        let threads = threads.clamp(1, definitions.len().max(1));
        let queue = Mutex::new(definitions);
        let failures = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some(definition) = pop(&queue) {
                        let failed = self.load_model_versions(&definition);
                        failures.lock().unwrap_or_else(PoisonError::into_inner).extend(failed);
                    }
                });
            }
        });
        let mut failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
        failures.sort_by(|a, b| (&a.name, a.version).cmp(&(&b.name, b.version)));
        failures
    }

    /// Makes a model known of which no version can be tried: the index lists
    /// it by name alone, as the original does, and the server isn't ready.
    pub fn declare(&self, name: &str) {
        self.registry.declare(name);
    }

    fn load_model_versions(&self, definition: &ModelDefinition) -> Vec<LoadFailure> {
        let mut failures = Vec::new();
        self.registry.declare(&definition.name);
        for files in &definition.versions {
            let version = files.version();
            self.note(definition, version, ModelState::Loading, String::new(), None);
            self.options
                .log
                .write(LogLevel::Info, format_args!("loading: {}:{version}", definition.name));
            match self.load_version(definition, files.as_ref()) {
                Ok(model) => {
                    self.note(definition, version, ModelState::Ready, String::new(), Some(model));
                    let line = format!("successfully loaded '{}'", definition.name);
                    self.options.log.write(LogLevel::Info, &line);
                }
                Err(status) => {
                    let reason = String::from(status.message());
                    let line =
                        format!("failed to load '{}' version {version}: {status}", definition.name);
                    self.options.log.write(LogLevel::Error, &line);
                    self.note(definition, version, ModelState::Unavailable, reason, None);
                    let name = definition.name.clone();
                    failures.push(LoadFailure { name, version: Some(version), status });
                }
            }
        }
        failures
    }

    /// Loads a version, and tries again at once, as the original does, as often
    /// as the options say.
    fn load_version(
        &self,
        definition: &ModelDefinition,
        files: &dyn ModelFiles,
    ) -> Result<Arc<LoadedModel>, Status> {
        let mut retries = self.options.load_retries;
        loop {
            let outcome = self.loader.load(definition, files);
            let Err(status) = outcome else { return outcome };
            let Some(left) = retries.checked_sub(1) else { return Err(status) };
            retries = left;
            self.options.log.write(
                LogLevel::Warning,
                format_args!(
                    "'{}' version {} failed to load and is tried again: {status}",
                    definition.name,
                    files.version()
                ),
            );
        }
    }

    fn note(
        &self,
        definition: &ModelDefinition,
        version: i64,
        state: ModelState,
        reason: String,
        model: Option<Arc<LoadedModel>>,
    ) {
        self.registry.set(&definition.name, version, VersionEntry { state, reason, model });
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

    /// Lets every queued request run, then unloads every model. Returns the
    /// number of models that were not done within `timeout`.
    pub fn unload_all(&self, timeout: Duration) -> usize {
        let deadline = Instant::now() + timeout;
        let models: Vec<Arc<LoadedModel>> = self.registry.snapshot().ready().cloned().collect();
        for model in &models {
            model.drain();
        }
        let mut left = 0;
        for model in models {
            let wait = deadline.saturating_duration_since(Instant::now());
            if !model.dispatcher.wait_drained(wait) {
                left += 1;
                continue;
            }
            let entry = VersionEntry {
                state: ModelState::Unavailable,
                reason: String::from("unloaded"),
                model: None,
            };
            self.registry.set(&model.name, model.version, entry);
            let line = format!("successfully unloaded '{}' version {}", model.name, model.version);
            self.options.log.write(LogLevel::Info, &line);
        }
        left
    }
}

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

fn pop(queue: &Mutex<Vec<ModelDefinition>>) -> Option<ModelDefinition> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).pop()
}
