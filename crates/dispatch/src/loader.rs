//! From a model's draft configuration and files to a loaded version.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use arc_swap::ArcSwap;
use galatea_backend::{
    AutoComplete, Backend, Host, LoadedVersion, LogLevel, Model, ModelAgents, ModelFiles,
    ResponseCache, UnconfiguredModel,
};
use galatea_config::{
    ConfigDraft, ConfigErrors, ModelSpec, SchedulingChoice, Support, validate_ensemble,
};
use galatea_infer::{ModelConfigDocument, RequestObserver, Status};
use galatea_policy::{InstanceId, ModelName, model_id};

use crate::assembly::Assembly;
use crate::cache::{CacheLayer, Ingredients, Marks, Origin, Origins};
use crate::classes::model_classes;
use crate::dispatcher::{AskedRule, Parts};
use crate::host_policy::{HostPolicies, bound};
use crate::instances::{
    InstanceKey, Made, Making, Wanted, undefined_policies, wanted, with_passive,
};
use crate::lane::Lane;
use crate::model::Books;
use crate::output_shape::OutputReshape;
use crate::permits::Permits;
use crate::scheduling::{Holds, reply_ordering, scheduling_spec};
use crate::statistics::Statistics;
use crate::timer::Timer;
use crate::warmup::{Warming, Warmup};
use crate::{Admission, ComposingVersions, Dispatcher, LoadedModel, LogSink, RateLimit};

/// Everything that loading a model needs.
pub struct ModelDefinition {
    /// The model's namespace, if there are any.
    pub namespace: Option<Arc<str>>,
    /// The model's name.
    pub name: String,
    /// Its configuration, with name, backend and file name resolved.
    pub draft: ConfigDraft,
    /// The backend that the configuration names.
    pub backend: Arc<dyn Backend>,
    /// The versions to serve. A load of none fails.
    pub versions: Vec<Arc<dyn ModelFiles>>,
    /// Whether the backend may fill in what the configuration leaves out.
    pub auto_complete: bool,
    /// What this server can serve.
    pub support: Support,
    /// The repository agents that have agreed to the load, if the model has any.
    pub agents: Option<Box<dyn ModelAgents>>,
}

impl ModelDefinition {
    /// Whether there is something to serve.
    ///
    /// # Errors
    ///
    /// `InvalidArgument`, in the original's words, if there is no version.
    pub fn check_versions(&self) -> Result<(), Status> {
        if !self.versions.is_empty() {
            return Ok(());
        }
        Err(Status::invalid_argument(format!(
            "at least one version must be available under the version policy of model '{}'",
            self.id()
        )))
    }

    /// What the model is known by.
    #[must_use]
    pub fn id(&self) -> ModelName {
        model_id(self.namespace.as_deref(), &self.name)
    }

    /// The models that must serve before this one can.
    #[must_use]
    pub fn needed_models(&self) -> Vec<NeededModel> {
        let models = self.draft.composing_models().into_iter();
        models.map(|(name, version)| NeededModel { name, version }).collect()
    }
}

/// A model that another one needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeededModel {
    /// What its steps call it.
    pub name: String,
    /// `None` is whichever is newest.
    pub version: Option<i64>,
}

/// A version's configuration, and what its backend made to complete it.
type Specified = (Arc<ModelSpec>, Option<Box<dyn UnconfiguredModel>>);

/// An instance of a loaded version.
type OneOf = (InstanceId, InstanceKey);

/// What compares a version's instances with those that are wanted.
type Compared<'a> = (Vec<OneOf>, Vec<Wanted<'a>>, Vec<OneOf>);

/// What all versions of a server have in common.
pub struct LoaderOptions {
    /// Where lines of the log go.
    pub log: LogSink,
    /// Where models that ask for it in their configuration keep responses.
    pub cache: Option<Arc<dyn ResponseCache>>,
    /// Schedulers hold back until this many requests wait; 0 is off.
    pub hold_until_queued: u32,
    /// The same for the backlog of sequence batchers, in addition.
    pub hold_until_backlogged: u32,
    /// On which processors instances run.
    pub host_policies: HostPolicies,
    /// How instances of all models share resources.
    pub rate_limit: RateLimit,
}

/// What all loads of a server share.
pub struct Loader {
    timer: Timer,
    log: LogSink,
    cache: Option<Arc<dyn ResponseCache>>,
    holds: Holds,
    /// Tells the answers of one model from those of another.
    origins: Origins,
    host_policies: HostPolicies,
    /// There if resources are limited.
    permits: Option<Arc<Permits>>,
}

impl Loader {
    /// A loader whose versions share one timer thread.
    ///
    /// # Errors
    ///
    /// `Internal` if the thread can't be started.
    pub fn new(options: LoaderOptions) -> Result<Self, Status> {
        let timer = Timer::start()
            .map_err(|error| Status::internal(format!("can't start the timer thread: {error}")))?;
        Ok(Self::with_timer(options, timer))
    }

    pub(crate) fn with_timer(options: LoaderOptions, timer: Timer) -> Self {
        Self {
            timer,
            log: options.log,
            cache: options.cache,
            host_policies: options.host_policies,
            permits: Permits::new(&options.rate_limit).map(Arc::new),
            origins: Origins::default(),
            holds: Holds {
                until_queued: options.hold_until_queued,
                until_backlogged: options.hold_until_backlogged,
            },
        }
    }

    /// Loads one version: configuration, model, instances, lanes.
    ///
    /// # Errors
    ///
    /// Why the version can't serve. A backend that panics is an error too.
    pub fn load(
        &self,
        definition: &ModelDefinition,
        files: &Arc<dyn ModelFiles>,
        composing: Option<Arc<dyn ComposingVersions>>,
    ) -> Result<Arc<LoadedModel>, Status> {
        let load = || self.load_version(definition, files, composing);
        catch_unwind(AssertUnwindSafe(load)).unwrap_or_else(|_| {
            Err(Status::internal("the backend failed while it loaded the model"))
        })
    }

    fn load_version(
        &self,
        definition: &ModelDefinition,
        files: &Arc<dyn ModelFiles>,
        composing: Option<Arc<dyn ComposingVersions>>,
    ) -> Result<Arc<LoadedModel>, Status> {
        let started = Instant::now();
        let about = format!("'{}' version {}", definition.id(), files.version());
        // Before the files are read: one that changes meanwhile makes another model.
        let marks = self.cache.is_some().then(|| Marks::of(files.as_ref()));
        let (spec, unconfigured) =
            self.specify(definition, files.as_ref(), composing.as_deref())?;
        let classes = model_classes(&spec, files.as_ref(), composing.as_deref())?;
        let books = Arc::new(Books {
            statistics: Statistics::default(),
            version: files.version(),
            log: self.log.clone(),
            composing,
        });
        // First, because it may fail and costs less than the model.
        let assembly = Assembly::new(&spec, files.as_ref())?;
        let warmup = Warmup::new(&spec, files.as_ref(), &self.log)?;
        self.detail(1, format_args!("{about}: loading with backend '{}'", spec.backend));
        self.remark(&spec);
        let host: Arc<dyn Host> = books.clone();
        let backend = definition.backend.as_ref();
        let model = self.load_model(backend, unconfigured, &spec, files.as_ref(), &host)?;
        let loaded = LoadedVersion {
            spec: &spec,
            files: files.as_ref(),
            model: model.as_ref(),
            host: &host,
        };
        let origin = marks.map(|marks| {
            let (backend, composing) = (backend.fingerprint(&loaded), books.composing.as_deref());
            let made_of = Ingredients { spec: &spec, marks, backend, composing };
            self.origins.next(&definition.id(), &made_of)
        });
        let batch_rule = self.batch_rule(backend, &loaded)?;
        let observer: Arc<dyn RequestObserver> = books.clone();
        let warming = Warming {
            warmup: &warmup,
            assembly: assembly.as_ref(),
            observer: &observer,
            log: &self.log,
        };
        let making = self.making(&spec, model.as_ref(), backend, warming);
        let Made { lanes, keys, passive } = making.make(wanted(&spec, &self.host_policies)?)?;
        let dispatcher = self.start_dispatcher(&spec, lanes, assembly, batch_rule)?;
        self.detail(1, format_args!("{about}: loaded within {:?}", started.elapsed()));
        Ok(Arc::new(LoadedModel {
            version: files.version(),
            id: definition.id(),
            namespace: definition.namespace.clone(),
            name: Arc::from(spec.name.as_str()),
            config: ArcSwap::from_pointee(document(&spec)),
            instances: Mutex::new((0..).map(InstanceId).zip(keys).collect()),
            dispatcher,
            load_duration: started.elapsed(),
            metric_tags: spec.metric_tags.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
            admission: Admission::new(&spec),
            output_reshape: OutputReshape::new(&spec),
            classes,
            cache: self.cache_layer(&spec, &books, origin),
            origin,
            books,
            files: files.clone(),
            model: with_passive(model, passive),
            spec,
        }))
    }

    /// Loads a version's model, on the processors that all of its instances are
    /// bound to.
    fn load_model(
        &self,
        backend: &dyn Backend,
        unconfigured: Option<Box<dyn UnconfiguredModel>>,
        spec: &Arc<ModelSpec>,
        files: &dyn ModelFiles,
        host: &Arc<dyn Host>,
    ) -> Result<Box<dyn Model>, Status> {
        bound(self.host_policies.shared_binding(spec).as_ref(), || match unconfigured {
            Some(unconfigured) => unconfigured.finish_load(spec.clone(), host.clone()),
            None => backend.load(spec.clone(), files, host.clone()),
        })?
    }

    /// What makes a version's instances.
    fn making<'a>(
        &'a self,
        spec: &'a ModelSpec,
        model: &'a dyn Model,
        backend: &dyn Backend,
        warming: Warming<'a>,
    ) -> Making<'a> {
        let policy = backend.execution_policy(spec);
        let rate_limiting = self.permits.is_some();
        Making { spec, model, policy, rate_limiting, warming, log: &self.log }
    }

    fn start_dispatcher(
        &self,
        spec: &ModelSpec,
        lanes: Vec<Lane>,
        assembly: Option<Assembly>,
        batch_rule: Option<AskedRule>,
    ) -> Result<Arc<Dispatcher>, Status> {
        let is_limited = lanes.iter().any(|lane| !lane.needs().is_empty());
        Dispatcher::start(Parts {
            permits: self.permits.clone().filter(|_| is_limited),
            scheduling: scheduling_spec(spec, self.holds),
            lanes,
            assembly,
            reply_order: reply_ordering(spec),
            batch_rule,
            model: spec.name.clone(),
            log: self.log.clone(),
            timer: self.timer.clone(),
        })
    }

    /// The complete, checked configuration of a version, and what its backend
    /// made on the way.
    fn specify(
        &self,
        definition: &ModelDefinition,
        files: &dyn ModelFiles,
        composing: Option<&dyn ComposingVersions>,
    ) -> Result<Specified, Status> {
        let mut draft = definition.draft.clone();
        let about = format!("'{}' version {}", definition.id(), files.version());
        let auto_complete = if definition.auto_complete {
            self.detail(1, format_args!("{about}: completing the configuration"));
            AutoComplete::Enabled
        } else {
            AutoComplete::Disabled
        };
        let unconfigured = definition.backend.begin_load(&mut draft, files, auto_complete)?;
        let refused = |errors: ConfigErrors| Status::invalid_argument(errors.to_string());
        let mut spec = draft.finish(&definition.support).map_err(refused)?;
        if let Some(composing) = composing {
            validate_ensemble(&mut spec, |name| composing.spec(name, None))
                .map_err(|errors| refused(definition.draft.locate(errors)))?;
            spec.set_composing_namespaces(|name| {
                composing.version(name, None)?.namespace().map(str::to_owned)
            });
        }
        self.detail(2, format_args!("{about}: configuration {}", spec.to_json()));
        Ok((Arc::new(spec), unconfigured))
    }

    /// The rule for batches that a version brings. Only the dynamic batcher asks it;
    /// without one it is checked and given up.
    fn batch_rule(
        &self,
        backend: &dyn Backend,
        loaded: &LoadedVersion<'_>,
    ) -> Result<Option<AskedRule>, Status> {
        let name = &loaded.spec.name;
        match &loaded.spec.scheduling {
            SchedulingChoice::Dynamic(_) => {
                let asked = |rule| AskedRule::new(rule, self.log.clone(), name.clone());
                Ok(backend.batch_rule(loaded)?.map(asked))
            }
            SchedulingChoice::Default => {
                if backend.batch_rule(loaded)?.is_some() {
                    let line = format_args!(
                        "'{name}' has a batching strategy, which changes nothing without \
                         dynamic_batching"
                    );
                    self.log.write(LogLevel::Warning, line);
                }
                Ok(None)
            }
            SchedulingChoice::Sequence(_) | SchedulingChoice::Ensemble(_) => Ok(None),
        }
    }

    /// Whether a loaded version lacks instances that a definition wants; also if that
    /// can't be said.
    #[must_use]
    pub fn lacks_instances(&self, model: &LoadedModel, definition: &ModelDefinition) -> bool {
        let spec = self.changed_spec(model, definition);
        spec.and_then(|spec| self.compare(model, &spec).map(|(_, missing, _)| !missing.is_empty()))
            .unwrap_or(true)
    }

    fn changed_spec(
        &self,
        model: &LoadedModel,
        definition: &ModelDefinition,
    ) -> Result<ModelSpec, Status> {
        let spec = definition.draft.based_on(&model.spec).finish(&definition.support);
        spec.map_err(|errors| Status::invalid_argument(errors.to_string()))
    }

    /// The instances that stay, those that are missing, and those that are too many.
    fn compare(&self, model: &LoadedModel, spec: &ModelSpec) -> Result<Compared<'_>, Status> {
        let mut spare = model.instances();
        let mut stay = Vec::new();
        let mut missing = Vec::new();
        for one in wanted(spec, &self.host_policies)? {
            match spare.iter().position(|(_, key)| *key == one.key) {
                Some(place) => stay.push(spare.remove(place)),
                None => missing.push(one),
            }
        }
        Ok((stay, missing, spare))
    }

    /// Adds the instances that a definition wants of a loaded version and that it
    /// lacks. Those that it has and are not wanted any more stay until the change is
    /// applied.
    ///
    /// # Errors
    ///
    /// Why an instance can't be made: the version is as it was then. A backend that
    /// panics is an error too.
    pub fn change_instances(
        &self,
        model: &LoadedModel,
        definition: &ModelDefinition,
    ) -> Result<InstanceChange, Status> {
        let change = || self.add_missing_instances(model, definition);
        catch_unwind(AssertUnwindSafe(change)).unwrap_or_else(|_| {
            Err(Status::internal("the backend failed while it made an instance"))
        })
    }

    fn add_missing_instances(
        &self,
        model: &LoadedModel,
        definition: &ModelDefinition,
    ) -> Result<InstanceChange, Status> {
        let spec = self.changed_spec(model, definition)?;
        let (stay, missing, spare) = self.compare(model, &spec)?;
        let added = self.add_instances(model, &spec, definition, missing)?;
        let config = document(&spec);
        Ok(InstanceChange { stay, added, spare, config })
    }

    /// Makes a change of this version's instances true.
    pub fn apply(&self, model: &LoadedModel, change: InstanceChange) {
        let InstanceChange { mut stay, added, spare, config } = change;
        let counts = (added.len(), spare.len());
        stay.extend(added);
        model.dispatcher.remove_lanes(&ids(spare));
        model.set_instances(stay, config);
        if counts != (0, 0) {
            let about = format_args!("'{}' version {}", model.id, model.version);
            let (added, removed) = counts;
            let line = format_args!("{about}: {added} instances were added and {removed} removed");
            self.log.write(LogLevel::Info, line);
        }
    }

    fn add_instances(
        &self,
        model: &LoadedModel,
        spec: &ModelSpec,
        definition: &ModelDefinition,
        missing: Vec<Wanted<'_>>,
    ) -> Result<Vec<OneOf>, Status> {
        if missing.is_empty() {
            return Ok(Vec::new());
        }
        let warmup = Warmup::new(spec, model.files.as_ref(), &self.log)?;
        let observer: Arc<dyn RequestObserver> = model.books.clone();
        let warming = Warming {
            warmup: &warmup,
            assembly: model.dispatcher.assembly(),
            observer: &observer,
            log: &self.log,
        };
        let backend = definition.backend.as_ref();
        let making = self.making(spec, model.model.as_ref(), backend, warming);
        let Made { lanes, keys, passive: _ } = making.make(missing)?;
        let instances = model.dispatcher.add_lanes(lanes)?;
        Ok(instances.into_iter().zip(keys).collect())
    }

    /// Says what a configuration asks for in vain.
    fn remark(&self, spec: &ModelSpec) {
        for remark in spec.remarks() {
            self.log.write(LogLevel::Warning, remark);
        }
        for name in undefined_policies(spec, &self.host_policies) {
            let line = format_args!(
                "'{}' has an instance group with the host policy '{name}', which --host-policy \
                 doesn't define: it binds nothing",
                spec.name
            );
            self.log.write(LogLevel::Warning, line);
        }
    }

    /// Both the server and the model must want the cache.
    fn cache_layer(
        &self,
        spec: &ModelSpec,
        books: &Arc<Books>,
        origin: Option<Origin>,
    ) -> Option<CacheLayer> {
        let cache = self.cache.clone().filter(|_| spec.response_cache)?;
        Some(CacheLayer::new(cache, books.clone(), origin?))
    }

    #[track_caller]
    fn detail(&self, level: u32, line: fmt::Arguments<'_>) {
        self.log.write(LogLevel::Verbose(level), line);
    }
}

/// The instances that were added to a version, and what is to become of the others.
pub struct InstanceChange {
    stay: Vec<OneOf>,
    added: Vec<OneOf>,
    spare: Vec<OneOf>,
    config: ModelConfigDocument,
}

impl InstanceChange {
    /// The version has the instances again that it had before.
    pub fn undo(self, model: &LoadedModel) {
        model.dispatcher.remove_lanes(&ids(self.added));
    }
}

fn ids(instances: Vec<OneOf>) -> Vec<InstanceId> {
    instances.into_iter().map(|(instance, _)| instance).collect()
}

fn document(spec: &ModelSpec) -> ModelConfigDocument {
    ModelConfigDocument { json: spec.to_json(), protobuf: spec.to_protobuf() }
}
