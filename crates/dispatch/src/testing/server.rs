//! A server with loaded versions but without the engine.

use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use galatea_backend::{Backend, ModelFiles, ResponseCache};
use galatea_config::SupportedFeatures;
use galatea_control::ModelStatistics;
use galatea_gate::ledger::MemoryLedger;
use galatea_infer::{AccessPass, InferenceRequest, InferenceService, ResponseSender, Status, api};
use galatea_stdx::Lock;

use super::{FakeBackend, FakeModelFiles, ReplyReceiver, resolved_draft, send_request};
use crate::timer::Timer;
use crate::{
    HostPolicies, InstanceChange, LoadedModel, LoaderOptions, LogSink, ModelDefinition,
    ModelMetricOptions, RateLimiterMode, VersionLoader, refuse_and_log,
};

/// The time that idle versions have to end before they count as unfinished.
const IDLE_MODELS_TIME: Duration = Duration::from_millis(100);

/// A server for the versions that it has loaded.
pub(crate) struct TestServer {
    loader: VersionLoader,
    log: LogSink,
    models: Lock<Models>,
    unloads: Lock<Unloads>,
}

/// The versions, by model name.
type Models = BTreeMap<String, BTreeMap<i64, Arc<LoadedModel>>>;

/// The versions being unloaded.
struct Unloads {
    left: usize,
    done: mpsc::Sender<()>,
    ended: mpsc::Receiver<()>,
}

/// A version that could not be loaded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) name: String,
    pub(crate) status: Status,
}

impl TestServer {
    fn new(loader: VersionLoader, log: LogSink) -> Self {
        let (done, ended) = mpsc::channel();
        let unloads = Lock::new(Unloads { left: 0, done, ended });
        Self { loader, log, models: Lock::default(), unloads }
    }

    /// Loses a GPU, and notifies all models.
    pub(crate) fn lose_gpu(&self, gpu: u32, reason: &str) {
        self.report_lost_gpu(gpu, reason);
        let models = self.models.lock("tell of a loss");
        let models: Vec<_> = models.values().flat_map(BTreeMap::values).cloned().collect();
        models.iter().for_each(|model| model.retire_lost_gpus());
    }

    /// Loses a GPU without notifying the models yet.
    pub(crate) fn report_lost_gpu(&self, gpu: u32, reason: &str) {
        self.loader.lost_gpus().add(gpu, reason);
    }

    /// Adds the instances that a configuration requests and a version lacks.
    pub(crate) fn begin_change(
        &self,
        model: &LoadedModel,
        text: &str,
        backend: FakeBackend,
        gpus: &[i32],
    ) -> InstanceChange {
        let definition = definition(text, Arc::new(backend), Vec::new(), gpus.to_vec());
        self.loader.change_instances(model, &definition).unwrap_or_else(|status| panic!("{status}"))
    }

    /// Finishes a change.
    pub(crate) fn apply_change(&self, model: &LoadedModel, change: InstanceChange) {
        self.loader.apply_instance_change(model, change);
    }

    /// Loads all versions of a model, or none of them.
    pub(crate) fn load(&self, definition: &ModelDefinition) -> Vec<Failure> {
        let mut failures = Vec::new();
        let mut loaded = BTreeMap::new();
        for files in &definition.versions {
            match self.loader.load(definition, files, None) {
                Ok(model) => drop(loaded.insert(files.version(), model)),
                Err(status) => failures.push(Failure { name: definition.name.clone(), status }),
            }
        }
        if failures.is_empty() {
            self.models.lock("serve").insert(definition.name.clone(), loaded);
        } else {
            self.unload(loaded.into_values().collect());
        }
        failures
    }

    /// The newest version of a model.
    pub(crate) fn model(&self, name: &str) -> Arc<LoadedModel> {
        self.find(name, None).unwrap()
    }

    pub(crate) fn find(
        &self,
        name: &str,
        version: Option<i64>,
    ) -> Result<Arc<LoadedModel>, Status> {
        let models = self.models.lock("serve");
        let found = models.get(name).and_then(|versions| match version {
            Some(version) => versions.get(&version),
            None => versions.values().next_back(),
        });
        found.cloned().ok_or_else(|| {
            Status::not_found(format!("Request for unknown model: '{name}' is not found"))
        })
    }

    pub(crate) fn scheduler_status(
        &self,
        name: &str,
        version: Option<i64>,
    ) -> Result<String, Status> {
        Ok(self.find(name, version)?.report_json("scheduler", None).unwrap())
    }

    /// The counters of one model or of all models.
    pub(crate) fn statistics(
        &self,
        name: Option<&str>,
        version: Option<i64>,
    ) -> Result<Vec<ModelStatistics>, Status> {
        if let Some(name) = name {
            return Ok(vec![self.find(name, version)?.statistics()]);
        }
        let models = self.models.lock("serve");
        Ok(models.values().flat_map(BTreeMap::values).map(|model| model.statistics()).collect())
    }

    /// Lets every queued request run, and destroys the versions. Returns the number of versions
    /// that did not end within `timeout`.
    pub(crate) fn unload_all(&self, timeout: Duration) -> usize {
        let deadline = Instant::now() + timeout.max(IDLE_MODELS_TIME);
        let models = self.take_all();
        self.unload(models);
        let mut unloads = self.unloads.lock("unload");
        while unloads.left > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if unloads.ended.recv_timeout(left).is_err() {
                break;
            }
            unloads.left -= 1;
        }
        unloads.left
    }

    fn take_all(&self) -> Vec<Arc<LoadedModel>> {
        let mut models = self.models.lock("serve");
        std::mem::take(&mut *models).into_values().flat_map(BTreeMap::into_values).collect()
    }

    /// Drains and destroys versions on separate threads, because the current one may be a lane's.
    fn unload(&self, models: Vec<Arc<LoadedModel>>) {
        let mut unloads = self.unloads.lock("serve");
        for model in models {
            unloads.left += 1;
            let done = unloads.done.clone();
            std::thread::spawn(move || {
                let (drained, drain) = mpsc::channel();
                let drained = Lock::new(drained);
                model.drain(move || {
                    let _ = drained.lock("notify").send(());
                });
                if !model.is_drained() {
                    let _ = drain.recv();
                }
                model.join_and_destroy();
                drop(model);
                let _ = done.send(());
            });
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        let models = self.take_all();
        self.unload(models);
    }
}

impl InferenceService for TestServer {
    fn infer(
        &self,
        _: AccessPass<api::Inference>,
        request: Box<InferenceRequest>,
        sender: ResponseSender,
    ) {
        match self.find(&request.model_name, request.model_version) {
            Ok(model) => model.infer(request, sender),
            Err(status) => refuse_and_log(sender, status, &self.log),
        }
    }
}

/// The settings for a server with one model.
pub(crate) struct ServerSetup {
    text: String,
    backend: Arc<dyn Backend>,
    files: Vec<FakeModelFiles>,
    hold_until_queued: u32,
    hold_until_backlogged: u32,
    parallel_creation: Option<bool>,
    log: LogSink,
    cache: Option<Arc<dyn ResponseCache>>,
    has_timer: bool,
    host_policies: HostPolicies,
    rate_limit: RateLimiterMode,
    measurements: ModelMetricOptions,
    ledger: Arc<MemoryLedger>,
    gpus: Vec<i32>,
}

impl ServerSetup {
    pub(crate) fn new(text: impl Into<String>, backend: impl Backend + 'static) -> Self {
        Self {
            text: text.into(),
            backend: Arc::new(backend),
            files: vec![FakeModelFiles { version: 1, ..FakeModelFiles::default() }],
            hold_until_queued: 0,
            hold_until_backlogged: 0,
            parallel_creation: None,
            log: LogSink::new(|_, _, _| {}),
            cache: None,
            has_timer: true,
            host_policies: HostPolicies::default(),
            rate_limit: RateLimiterMode::Off,
            measurements: ModelMetricOptions::default(),
            ledger: Arc::default(),
            gpus: Vec::new(),
        }
    }

    /// A server with these GPUs.
    pub(crate) fn gpus(mut self, gpus: &[i32]) -> Self {
        self.gpus = gpus.to_vec();
        self
    }

    /// A server whose timer never fires.
    pub(crate) fn without_timer(mut self) -> Self {
        self.has_timer = false;
        self
    }

    pub(crate) fn files(mut self, files: Vec<FakeModelFiles>) -> Self {
        self.files = files;
        self
    }

    pub(crate) fn hold(mut self, until_queued: u32, until_backlogged: u32) -> Self {
        self.hold_until_queued = until_queued;
        self.hold_until_backlogged = until_backlogged;
        self
    }

    pub(crate) fn parallel_creation(mut self, parallel_creation: Option<bool>) -> Self {
        self.parallel_creation = parallel_creation;
        self
    }

    pub(crate) fn cache(mut self, cache: Arc<dyn ResponseCache>) -> Self {
        self.cache = Some(cache);
        self
    }

    pub(crate) fn host_policies(mut self, policies: HostPolicies) -> Self {
        self.host_policies = policies;
        self
    }

    pub(crate) fn rate_limit(mut self, limit: RateLimiterMode) -> Self {
        self.rate_limit = limit;
        self
    }

    pub(crate) fn measurements(mut self, measurements: ModelMetricOptions) -> Self {
        self.measurements = measurements;
        self
    }

    pub(crate) fn log(mut self, log: LogSink) -> Self {
        self.log = log;
        self
    }

    /// Starts the server and loads its only model.
    pub(crate) fn load(self) -> (Arc<TestServer>, Vec<Failure>) {
        let timer = if self.has_timer { Timer::start().unwrap() } else { Timer::stopped() };
        let options = LoaderOptions {
            log: self.log.clone(),
            cache: self.cache,
            hold_until_queued: self.hold_until_queued,
            hold_until_backlogged: self.hold_until_backlogged,
            parallel_creation: self.parallel_creation,
            gpu_memory_check: None,
            host_policies: self.host_policies,
            rate_limit: self.rate_limit,
            measurements: self.measurements,
            ledger: self.ledger,
        };
        let server = TestServer::new(VersionLoader::with_timer(options, timer), self.log);
        let files = self.files.into_iter().map(|files| Arc::new(files) as Arc<dyn ModelFiles>);
        let definition = definition(&self.text, self.backend, files.collect(), self.gpus);
        let failures = server.load(&definition);
        (Arc::new(server), failures)
    }

    /// Starts the server with its only model. Loading must succeed.
    pub(crate) fn serve(self) -> Arc<TestServer> {
        let (server, failures) = self.load();
        assert!(failures.is_empty(), "{failures:?}");
        server
    }
}

fn definition(
    text: &str,
    backend: Arc<dyn Backend>,
    versions: Vec<Arc<dyn ModelFiles>>,
    gpus: Vec<i32>,
) -> ModelDefinition {
    let draft = resolved_draft(text);
    let mut support = SupportedFeatures::default();
    support.gpus = gpus;
    ModelDefinition {
        stop: galatea_infer::CancelToken::default(),
        namespace: None,
        name: String::from(draft.name()),
        draft,
        backend,
        versions,
        auto_complete: true,
        support,
        agents: None,
    }
}

/// Starts a server with one version of a model. Loading must succeed.
pub(crate) fn serve(text: &str, backend: FakeBackend, hold_until_queued: u32) -> Arc<TestServer> {
    ServerSetup::new(text, backend).hold(hold_until_queued, 0).serve()
}

/// Sends a request, and returns the inbox that receives its reply.
pub(crate) fn send(server: &TestServer, request: InferenceRequest) -> ReplyReceiver {
    send_request(server, request)
}
