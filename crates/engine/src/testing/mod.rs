//! Servers whose backends are controlled by the test.

mod trusted_control;

use std::sync::Arc;

use galatea_backend::{Backend, ModelFiles};
use galatea_config::SupportedFeatures;
use galatea_control::LoadParameters;
use galatea_dispatch::testing::send_request;
pub(crate) use galatea_dispatch::testing::{
    CapturedLog, ECHO, FakeBackend, FakeModelFiles, LONG, ReplyReceiver, echo_request,
    resolved_draft,
};
use galatea_dispatch::{
    HostPolicies, LoadedModel, LoaderOptions, LogSink, ModelDefinition, ModelMetricOptions,
    RateLimiterMode, VersionLoader,
};
use galatea_infer::InferenceRequest;
use galatea_repository::{ListedModel, LookupResult, ScanProblem, ScanResult};
pub(crate) use trusted_control::TrustedControl;

use crate::{
    CatalogModel, ControlMode, LoadFailure, LoadableModels, NamespaceMode, Server, ServerOptions,
};

/// A repository that lists one model.
struct SingleModelCatalog {
    name: String,
}

impl LoadableModels for SingleModelCatalog {
    fn names(&self) -> Vec<ListedModel> {
        vec![ListedModel { namespace: None, name: self.name.clone(), is_duplicate: false }]
    }

    fn scan(&self) -> ScanResult<CatalogModel> {
        let (path, reason) = (String::new(), String::new());
        ScanResult {
            problems: vec![ScanProblem::Repository { path, reason }],
            ..ScanResult::default()
        }
    }

    fn find(&self, _: &str, _: LoadParameters) -> LookupResult<CatalogModel> {
        LookupResult::Missing
    }
}

/// The options for a server with one model.
pub(crate) struct ServerSetup {
    config_text: String,
    backend: Arc<dyn Backend>,
    versions: Vec<i64>,
    hold_until_queued: u32,
    load_retries: u32,
    log: LogSink,
    gpus: Vec<i32>,
}

impl ServerSetup {
    pub(crate) fn new(config_text: impl Into<String>, backend: impl Backend + 'static) -> Self {
        Self {
            config_text: config_text.into(),
            backend: Arc::new(backend),
            versions: vec![1],
            hold_until_queued: 0,
            load_retries: 0,
            log: LogSink::new(|_, _, _| {}),
            gpus: Vec::new(),
        }
    }

    /// Gives the server these GPUs.
    pub(crate) fn gpus(mut self, gpus: &[i32]) -> Self {
        self.gpus = gpus.to_vec();
        self
    }

    pub(crate) fn load_retries(mut self, retries: u32) -> Self {
        self.load_retries = retries;
        self
    }

    pub(crate) fn log(mut self, log: LogSink) -> Self {
        self.log = log;
        self
    }

    /// Starts the server and loads its only model.
    pub(crate) fn load(self) -> (Arc<Server>, Vec<LoadFailure>) {
        let draft = resolved_draft(&self.config_text);
        let options = ServerOptions {
            name: String::from("triton"),
            version: String::from("0"),
            strict_readiness: true,
            hold_until_queued: self.hold_until_queued,
            hold_until_backlogged: 0,
            parallel_creation: None,
            gpu_memory_check: None,
            catalog: Arc::new(SingleModelCatalog { name: String::from(draft.name()) }),
            control: ControlMode::None,
            demand: None,
            namespaces: NamespaceMode::None,
            load_threads: 4,
            load_retries: self.load_retries,
            cache: None,
            host_policies: HostPolicies::default(),
            measurements: ModelMetricOptions::default(),
            rate_limit: RateLimiterMode::Off,
            main_cause_text: None,
            ledger: Arc::default(),
            log: self.log,
        };
        let server = Server::new(options).unwrap();
        let mut support = SupportedFeatures::default();
        support.gpus = self.gpus;
        let files = |version| Arc::new(FakeModelFiles { version, ..FakeModelFiles::default() });
        let versions = self.versions.into_iter().map(|version| files(version) as _);
        let failures = server.load_definitions(vec![ModelDefinition {
            stop: galatea_infer::CancelToken::default(),
            namespace: None,
            name: String::from(draft.name()),
            draft,
            backend: self.backend,
            versions: versions.collect(),
            auto_complete: true,
            support,
            agents: None,
        }]);
        (Arc::new(server), failures)
    }

    /// Starts the server with its only model. Loading must succeed.
    pub(crate) fn serve(self) -> Arc<Server> {
        let (server, failures) = self.load();
        assert!(failures.is_empty(), "{failures:?}");
        server
    }
}

/// Loads version 1 of the model `echo`, without a server.
pub(crate) fn load_version(backend: FakeBackend) -> Arc<LoadedModel> {
    let loader = VersionLoader::new(LoaderOptions {
        log: LogSink::new(|_, _, _| {}),
        cache: None,
        hold_until_queued: 0,
        hold_until_backlogged: 0,
        parallel_creation: None,
        gpu_memory_check: None,
        host_policies: HostPolicies::default(),
        measurements: ModelMetricOptions::default(),
        rate_limit: RateLimiterMode::Off,
        ledger: Arc::default(),
    });
    let draft = resolved_draft(ECHO);
    let files: Arc<dyn ModelFiles> =
        Arc::new(FakeModelFiles { version: 1, ..FakeModelFiles::default() });
    let definition = ModelDefinition {
        stop: galatea_infer::CancelToken::default(),
        namespace: None,
        name: String::from(draft.name()),
        draft,
        backend: Arc::new(backend),
        versions: vec![files.clone()],
        auto_complete: true,
        support: SupportedFeatures::default(),
        agents: None,
    };
    loader.unwrap().load(&definition, &files, None).unwrap()
}

/// Starts a server with these versions of one model.
pub(crate) fn serve(
    config_text: &str,
    backend: FakeBackend,
    versions: &[i64],
    hold_until_queued: u32,
) -> (Arc<Server>, Vec<LoadFailure>) {
    let setup = ServerSetup::new(config_text, backend);
    ServerSetup { versions: versions.to_vec(), hold_until_queued, ..setup }.load()
}

/// Sends a request, and returns the inbox that receives its reply.
pub(crate) fn send(server: &Server, request: InferenceRequest) -> ReplyReceiver {
    send_request(server, request)
}
