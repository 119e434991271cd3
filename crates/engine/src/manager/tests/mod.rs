//! Models loaded and unloaded under traffic, with a catalog and a backend controlled by the test.

mod agents;
mod changes;
mod ensembles;
mod instances;
mod namespaces;
mod orders;
mod simulation;
mod versions;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use galatea_backend::{
    Backend, ComposingModels, CustomBatchStrategy, ExecutionPolicy, FileReadLimit, Instance,
    LoadedVersion, LogLevel, Model, ModelFiles, ModelHost, Placement, RefusedBatch,
};
use galatea_config::{ConfigDraft, ModelSpec, SupportedFeatures};
use galatea_control::{LoadParameters, ModelState};
use galatea_dispatch::{
    HostPolicies, LogSink, ModelDefinition, ModelMetricOptions, RateLimiterMode,
};
use galatea_infer::{
    AccessPass, Code, ExecutionReadings, ExecutionTimes, InferenceRequest, InferenceResponse,
    PendingRequest, Reply, ResponseSender, Status,
};
use galatea_pbtxt::parse_config_draft;
use galatea_policy::ModificationTimes;
use galatea_repository::{ListedModel, LookupResult, ScanProblem, ScanResult};
use galatea_stdx::testing::eventually;

pub(super) use crate::testing::TrustedControl;
use crate::testing::{ECHO, FakeModelFiles, LONG, echo_request, send};
use crate::{
    CatalogModel, ControlMode, LoadOverride, LoadableModels, NamespaceMode, Server, ServerOptions,
};

/// The configuration of a model that appears in several repositories.
const DUPLICATED: &str = "twice";

/// A gate at which threads wait until the test opens it. It starts open.
#[derive(Default)]
struct Gate {
    closed: Mutex<bool>,
    waiting: AtomicUsize,
    opened: Condvar,
}

impl Gate {
    fn close(&self) {
        *self.closed.lock().unwrap() = true;
    }

    fn open(&self) {
        *self.closed.lock().unwrap() = false;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let mut closed = self.closed.lock().unwrap();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        while *closed {
            closed = self.opened.wait_timeout(closed, LONG).unwrap().0;
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    fn wait_for(&self, count: usize) {
        until(|| self.waiting.load(Ordering::SeqCst) == count);
    }
}

/// Waits until `condition` returns true.
#[track_caller]
fn until(condition: impl Fn() -> bool) {
    assert!(eventually(condition), "the condition never held");
}

/// The file that shows the state of the calling thread.
fn state_of_this_thread() -> PathBuf {
    Path::new("/proc").join(std::fs::read_link("/proc/thread-self").unwrap()).join("stat")
}

/// Waits until a thread waits for something or has ended.
fn wait_until_blocked(state: &Path) {
    until(|| {
        // The state follows the name, which is in parentheses.
        let text = std::fs::read_to_string(state).unwrap_or_default();
        text.rsplit_once(')').is_none_or(|(_, rest)| rest.starts_with(" S"))
    });
}

/// Sets a flag on drop, even if the test fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The test's controls for the catalog, the backend and the repository agents, and its counters.
#[derive(Default)]
struct Controls {
    loading: Gate,
    executing: Gate,
    loads: AtomicUsize,
    instances: AtomicUsize,
    /// The number of batch rules.
    rules: AtomicUsize,
    /// Blocks the creation of an instance, or makes it panic.
    creating: Gate,
    creation_panics: AtomicBool,
    refuses_instances: AtomicBool,
    /// Blocks the check whether a model is ready.
    asking: Gate,
    /// Blocks a model from ending.
    ending: Gate,
    /// True if version files panic on the loading threads.
    files_panic: AtomicBool,
    /// The version that refuses additional instances; 0 means none.
    full_version: AtomicI64,
    /// Blocks lookups of the model `m`, and scans.
    finding: Gate,
    scanning: Gate,
    scans: AtomicUsize,
    /// Blocks agents that are being notified of an unload, or makes them panic.
    unloading: Gate,
    agents_panic: AtomicBool,
    /// The number of definitions with repository agents.
    agent_count: AtomicUsize,
    /// The notices to the agents.
    notices: Mutex<Vec<String>>,
    /// The errors in the log.
    errors: Mutex<Vec<String>>,
}

/// A backend whose models respond with the `tag` parameter of their configuration. A model tagged
/// `corrupt` fails to load, and one tagged `panic` panics.
struct TagBackend(Arc<Controls>);

impl Backend for TagBackend {
    fn execution_policy(&self, _: &ModelSpec) -> ExecutionPolicy {
        ExecutionPolicy::Blocking
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
        host: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn Model>, Status> {
        self.0.loads.fetch_add(1, Ordering::SeqCst);
        self.0.loading.pass();
        let tag = spec.parameters.get("tag").cloned().unwrap_or_default();
        match tag.as_str() {
            "corrupt" => return Err(Status::internal("it is corrupt")),
            "corrupt2" if files.version() == 2 => return Err(Status::internal("it is corrupt")),
            "panic" => panic!("planned"),
            _ => {}
        }
        Ok(Box::new(TagModel { spec, host, controls: self.0.clone(), version: files.version() }))
    }

    fn batch_rule(
        &self,
        _: &LoadedVersion<'_>,
    ) -> Result<Option<Box<dyn CustomBatchStrategy>>, Status> {
        self.0.rules.fetch_add(1, Ordering::SeqCst);
        Ok(Some(Box::new(AcceptingRule(self.0.clone()))))
    }
}

/// A batch rule that accepts every request.
struct AcceptingRule(Arc<Controls>);

impl CustomBatchStrategy for AcceptingRule {
    fn open(&mut self) -> Result<(), Status> {
        Ok(())
    }

    fn include(&mut self, _: &InferenceRequest, _: u32) -> Result<bool, Status> {
        Ok(true)
    }

    fn close(&mut self) -> Result<(), Status> {
        Ok(())
    }
}

impl Drop for AcceptingRule {
    fn drop(&mut self) {
        self.0.rules.fetch_sub(1, Ordering::SeqCst);
    }
}

struct TagModel {
    spec: Arc<ModelSpec>,
    host: Arc<dyn ModelHost>,
    controls: Arc<Controls>,
    version: i64,
}

impl Model for TagModel {
    fn wait_until_unused(&self) {
        self.controls.ending.pass();
    }

    fn check_ready(&self) -> Result<(), Status> {
        self.controls.asking.pass();
        Ok(())
    }

    fn create_instance(&self, _: &Placement) -> Result<Box<dyn Instance>, Status> {
        let is_full = self.controls.full_version.load(Ordering::SeqCst) == self.version;
        if is_full || self.controls.refuses_instances.load(Ordering::SeqCst) {
            return Err(Status::unavailable("no room for another"));
        }
        self.controls.creating.pass();
        assert!(!self.controls.creation_panics.load(Ordering::SeqCst), "planned");
        self.controls.instances.fetch_add(1, Ordering::SeqCst);
        let Self { spec, host, controls, version } = self;
        let (spec, host, controls) = (spec.clone(), host.clone(), controls.clone());
        Ok(Box::new(TagInstance { spec, host, controls, version: *version }))
    }
}

struct TagInstance {
    spec: Arc<ModelSpec>,
    host: Arc<dyn ModelHost>,
    controls: Arc<Controls>,
    version: i64,
}

impl Drop for TagInstance {
    fn drop(&mut self) {
        self.controls.instances.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Instance for TagInstance {
    fn execute(&mut self, requests: Vec<PendingRequest>) -> Result<(), RefusedBatch> {
        if let Some(models) = self.host.composing_models() {
            requests.into_iter().for_each(|pending| forward(models.as_ref(), pending));
            return Ok(());
        }
        self.controls.executing.pass();
        let now = std::time::Instant::now();
        let times = ExecutionTimes::from(ExecutionReadings {
            start: now,
            compute_start: now,
            compute_end: now,
            end: now,
        });
        self.host.record_batch(1, &times);
        for pending in requests {
            let response = InferenceResponse {
                model_name: Arc::from(self.spec.name.as_str()),
                model_version: self.version,
                id: self.spec.parameters.get("tag").cloned().unwrap_or_default(),
                parameters: Default::default(),
                outputs: Vec::new(),
            };
            pending.complete(Ok(response), &times);
        }
        Ok(())
    }
}

/// Lets the model `m` complete a request.
fn forward(models: &dyn ComposingModels, pending: PendingRequest) {
    let inputs = pending.request().inputs.clone();
    let asked = InferenceRequest { model_name: "m".into(), inputs, ..InferenceRequest::default() };
    let pending = Mutex::new(Some(pending));
    let sender = ResponseSender::new(Box::new(move |reply: Reply| {
        let now = std::time::Instant::now();
        let times = ExecutionTimes::from(ExecutionReadings {
            start: now,
            compute_start: now,
            compute_end: now,
            end: now,
        });
        if let (Reply::Response { result, .. }, Some(pending)) =
            (reply, pending.lock().unwrap().take())
        {
            pending.complete(result, &times);
        }
    }));
    models.infer(AccessPass::in_process(), Box::new(asked), sender);
}

/// Files that panic on the test's demand.
struct TestFiles {
    files: FakeModelFiles,
    controls: Arc<Controls>,
}

impl ModelFiles for TestFiles {
    fn model_path(&self) -> &Path {
        self.files.model_path()
    }

    fn version(&self) -> i64 {
        let is_loader = std::thread::current().name() == Some("galatea-loader");
        let panics = is_loader && self.controls.files_panic.load(Ordering::SeqCst);
        assert!(!panics, "planned");
        self.files.version
    }

    fn version_path(&self) -> &Path {
        self.files.version_path()
    }

    fn resolve(&self, name: &str) -> Result<PathBuf, Status> {
        self.files.resolve(name)
    }

    fn read_in_model_directory(&self, name: &str, size: FileReadLimit) -> Result<Vec<u8>, Status> {
        self.files.read_in_model_directory(name, size)
    }

    fn read_initial_state(&self, name: &str, size: FileReadLimit) -> Result<Vec<u8>, Status> {
        self.files.read_initial_state(name, size)
    }

    fn read_warmup(&self, name: &str, size: FileReadLimit) -> Result<Vec<u8>, Status> {
        self.files.read_warmup(name, size)
    }
}

/// A model in the fake catalog.
#[derive(Clone)]
struct CatalogEntry {
    text: String,
    versions: Vec<i64>,
    path: PathBuf,
    modified: ModificationTimes,
}

/// A catalog that stores models by id.
struct FakeCatalog {
    controls: Arc<Controls>,
    models: Mutex<BTreeMap<String, CatalogEntry>>,
}

/// The namespace and name in an id.
fn parts(id: &str) -> (Option<Arc<str>>, String) {
    match id.rsplit_once("::") {
        Some((namespace, name)) => (Some(namespace.into()), name.to_owned()),
        None => (None, id.to_owned()),
    }
}

impl FakeCatalog {
    fn found(&self, id: &str, entry: CatalogEntry, parameters: LoadParameters) -> CatalogModel {
        let overrides = match (&parameters.config, parameters.files.is_empty()) {
            (_, false) => LoadOverride::Files,
            (Some(_), true) => LoadOverride::Configuration,
            (None, true) => LoadOverride::None,
        };
        let text = parameters.config.unwrap_or(entry.text);
        let ((namespace, name), versions) = (parts(id), entry.versions);
        let controls = self.controls.clone();
        CatalogModel {
            namespace: namespace.clone(),
            name: name.clone(),
            path: entry.path,
            modified: entry.modified,
            overrides,
            define: Box::new(move || {
                let mut draft = parse_config_draft("config.pbtxt", &text)
                    .map_err(|errors| errors.to_string())?;
                draft.resolve_name_and_backend(&name, &[]).map_err(|errors| errors.to_string())?;
                let files = versions.into_iter().map(|version| -> Arc<dyn ModelFiles> {
                    let files = FakeModelFiles { version, ..FakeModelFiles::default() };
                    Arc::new(TestFiles { files, controls: controls.clone() })
                });
                Ok(ModelDefinition {
                    stop: galatea_infer::CancelToken::new(),
                    namespace,
                    name,
                    agents: agents::AgentRecorder::of(&draft, &controls),
                    draft,
                    backend: Arc::new(TagBackend(controls.clone())),
                    versions: files.collect(),
                    auto_complete: true,
                    support: SupportedFeatures::default(),
                })
            }),
        }
    }
}

impl LoadableModels for FakeCatalog {
    fn names(&self) -> Vec<ListedModel> {
        let names = self.models.lock().unwrap().keys().cloned().collect::<Vec<String>>();
        let unique = |id: String| {
            let (namespace, name) = parts(&id);
            ListedModel { namespace, name, is_duplicate: false }
        };
        names.into_iter().map(unique).collect()
    }

    fn scan(&self) -> ScanResult<CatalogModel> {
        let models = self.models.lock().unwrap().clone();
        self.controls.scans.fetch_add(1, Ordering::SeqCst);
        self.controls.scanning.pass();
        let (twice, once): (Vec<_>, Vec<_>) =
            models.into_iter().partition(|(_, entry)| entry.text == DUPLICATED);
        let found = once
            .into_iter()
            .map(|(name, entry)| self.found(&name, entry, LoadParameters::default()));
        let problems = twice.into_iter().map(|(name, _)| ScanProblem::Duplicate { name }).collect();
        ScanResult { models: found.collect(), problems }
    }

    fn find(&self, name: &str, parameters: LoadParameters) -> LookupResult<CatalogModel> {
        if name == "m" {
            self.controls.finding.pass();
        }
        let models = self.models.lock().unwrap().clone();
        let found: Vec<CatalogModel> = models
            .into_iter()
            .filter(|(id, _)| parts(id).1 == name)
            .map(|(id, entry)| self.found(&id, entry, parameters.clone()))
            .collect();
        if found.is_empty() { LookupResult::Missing } else { LookupResult::Models(found) }
    }
}

/// A server, with its catalog and controls.
struct World {
    server: Arc<Server>,
    catalog: Arc<FakeCatalog>,
    controls: Arc<Controls>,
    clock: AtomicUsize,
}

impl World {
    fn new() -> Self {
        Self::with(ControlMode::Explicit, 2)
    }

    fn with(control: ControlMode, load_threads: usize) -> Self {
        Self::made(control, load_threads, NamespaceMode::None)
    }

    fn made(control: ControlMode, load_threads: usize, namespaces: NamespaceMode) -> Self {
        let controls = Arc::new(Controls::default());
        let catalog =
            Arc::new(FakeCatalog { controls: controls.clone(), models: Mutex::default() });
        let logging = controls.clone();
        let log = LogSink::new(move |level, _, line| {
            if level == LogLevel::Error {
                logging.errors.lock().unwrap().push(line.to_string());
            }
        });
        let options = ServerOptions {
            name: String::from("triton"),
            version: String::from("0"),
            strict_readiness: true,
            hold_until_queued: 0,
            hold_until_backlogged: 0,
            parallel_creation: None,
            gpu_memory_check: None,
            demand: None,
            catalog: catalog.clone(),
            control,
            namespaces,
            load_threads,
            load_retries: 0,
            cache: None,
            rate_limit: RateLimiterMode::Off,
            ledger: Arc::default(),
            host_policies: HostPolicies::default(),
            measurements: ModelMetricOptions::default(),
            main_cause_text: None,
            log,
        };
        let server = Server::new(options).unwrap();
        Self { server: Arc::new(server), catalog, controls, clock: AtomicUsize::new(1) }
    }

    /// Adds or changes a repository model with this tag.
    fn put(&self, name: &str, tag: &str, versions: &[i64]) {
        self.put_text(name, &config(tag, 1), versions);
    }

    fn put_text(&self, name: &str, text: &str, versions: &[i64]) {
        let now = i64::try_from(self.clock.fetch_add(1, Ordering::SeqCst)).unwrap();
        let modified = ModificationTimes {
            newest: now,
            versions: versions.iter().map(|version| (*version, now)).collect(),
            shared: 0,
        };
        let path = PathBuf::from("repository").join(name);
        let entry =
            CatalogEntry { text: text.to_owned(), versions: versions.to_vec(), path, modified };
        self.catalog.models.lock().unwrap().insert(name.to_owned(), entry);
    }

    /// Changes a model's configuration but not its files.
    fn put_config(&self, name: &str, text: &str, versions: &[i64]) {
        let now = i64::try_from(self.clock.fetch_add(1, Ordering::SeqCst)).unwrap();
        let mut models = self.catalog.models.lock().unwrap();
        let entry = models.get_mut(name).unwrap();
        entry.text = text.to_owned();
        entry.versions = versions.to_vec();
        entry.modified.newest = now;
        for version in versions {
            entry.modified.versions.entry(*version).or_insert(now);
        }
    }

    /// Replaces a model with one in another directory whose files are not newer.
    fn move_model(&self, name: &str, text: &str) {
        let mut models = self.catalog.models.lock().unwrap();
        let entry = models.get_mut(name).unwrap();
        entry.text = text.to_owned();
        entry.path = PathBuf::from("elsewhere").join(name);
    }

    fn load(&self, name: &str) -> Result<(), Status> {
        self.server.load_model(name, LoadParameters::default())
    }

    fn unload(&self, name: &str) {
        self.server.unload_model(name, false).unwrap();
    }

    /// Returns the version and tag in the response.
    fn ask(&self, name: &str, version: Option<i64>) -> Result<(i64, String), Status> {
        let asked = InferenceRequest {
            model_name: name.into(),
            model_version: version,
            ..echo_request(&[1, 1])
        };
        let answer = send(&self.server, asked).recv_timeout(LONG).unwrap();
        answer.map(|response| (response.model_version, response.id))
    }

    fn tag(&self, name: &str) -> String {
        self.ask(name, None).unwrap().1
    }

    /// The lines in the repository index.
    fn index(&self) -> Vec<String> {
        let entries = self.server.repository_index(false).into_iter();
        let line = |entry: galatea_control::RepositoryEntry| {
            let version = entry.version.map(|version| format!(" {version}")).unwrap_or_default();
            let state = entry.state.map(|state| format!(" {}", state.name())).unwrap_or_default();
            let reason = Some(entry.reason).filter(|reason| !reason.is_empty());
            let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
            format!("{}{version}{state}{reason}", entry.name)
        };
        entries.map(line).collect()
    }

    fn check_index(&self, expected: &[&str]) {
        until(|| {
            self.server
                .repository_index(false)
                .iter()
                .all(|entry| entry.state != Some(ModelState::Unloading))
        });
        assert_eq!(self.index(), expected);
    }

    fn loads(&self) -> usize {
        self.controls.loads.load(Ordering::SeqCst)
    }

    fn instances(&self) -> usize {
        self.controls.instances.load(Ordering::SeqCst)
    }
}

fn config(tag: &str, instances: u32) -> String {
    let body = ECHO.replace("name: \"echo\"", "");
    format!(
        "{body} parameters {{ key: \"tag\" value {{ string_value: \"{tag}\" }} }} \
         instance_group {{ kind: KIND_CPU count: {instances} }} version_policy {{ all {{ }} }}"
    )
}

/// The configuration of an ensemble with this model as its only step.
fn ensemble_of(model: &str) -> String {
    format!(
        r#"platform: "ensemble" max_batch_size: 8
        input {{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }}
        output {{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }}
        ensemble_scheduling {{ step {{ model_name: "{model}" model_version: -1
            input_map {{ key: "IN" value: "IN" }} output_map {{ key: "OUT" value: "OUT" }} }} }}"#
    )
}
