//! Loads a version from a model's definition and files.
//!
//! A load completes and checks the configuration, reads the files that the configuration names,
//! lets the backend load the model, builds and warms up the instances, and starts the dispatcher.
//! Cheap steps that may fail precede expensive ones.
//!
//! [`ModelDefinition::check_load`] is a load that stops before instances are created.

mod check;
mod definition;
mod ensemble;
mod instance_change;
#[cfg(test)]
mod tests;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use galatea_backend::{
    AutoCompletePermission, Backend, ComposingModels, LoadedVersion, LogLevel, Model, ModelFiles,
    ModelHost, ResponseCache, UnconfiguredModel,
};
use galatea_config::{ConfigErrors, ModelSpec, SchedulingChoice, SupportedFeatures};
use galatea_control::ModelConfigDocument;
use galatea_gate::ledger::{MemoryAccount, MemoryLedger};
use galatea_infer::{RequestObserver, Status};
use galatea_policy::InstanceId;

pub use self::check::{LoadCheckResult, LoadProblem, ResourceLimitCheck};
pub use self::definition::{ModelDefinition, NeededModel};
use self::ensemble::fingerprints_of;
pub use self::instance_change::InstanceChange;
use crate::LogSink;
use crate::admission::Admission;
use crate::batch::SequenceAssembler;
use crate::cache::{
    CacheLayer, FilesFingerprint, FingerprintInputs, VersionFingerprint, VersionFingerprints,
};
use crate::classes::read_classes;
use crate::coalescing::{Coalescing, UseOfDeadlines};
use crate::dispatcher::{CustomBatching, Dispatcher, DispatcherOptions};
use crate::host_policy::{HostPolicies, run_bound};
use crate::instances::{
    BuiltInstances, GpuMemoryCheck, InstanceBuilder, InstanceKey, PassiveInstances,
    planned_instances, undefined_policies,
};
use crate::lane::Lane;
use crate::padding::BatchPadding;
use crate::rate_limiter::{RateLimiterDriver, RateLimiterMode};
use crate::reshape::OutputReshape;
use crate::scheduling::{HoldThresholds, reply_ordering, scheduling_spec};
use crate::statistics::{FirstResponses, GpuCounters, ModelMetricOptions, Statistics};
use crate::timer::Timer;
use crate::version::{
    ComposingVersions, LoadedModel, LostGpus, Placements, ResponseReuse, VersionHost, VersionLabel,
};
use crate::warmup::{InstanceWarmup, Warmup, WarmupCosts};

/// A version's configuration, and the object that its backend created to complete it.
type CompletedSpec = (Arc<ModelSpec>, Option<Box<dyn UnconfiguredModel>>);

/// The options shared by all versions in a server.
pub struct LoaderOptions {
    /// The sink for log lines.
    pub log: LogSink,
    /// The response cache, for models whose configuration enables caching.
    pub cache: Option<Arc<dyn ResponseCache>>,
    /// The number of requests that must be queued before schedulers dispatch any; 0 means off.
    /// Tests use it to make batches predictable.
    pub hold_until_queued: u32,
    /// The additional number of backlogged requests that sequence batchers wait for.
    pub hold_until_backlogged: u32,
    /// Overrides the backend's declaration of whether a model's instances are created in parallel.
    pub parallel_creation: Option<bool>,
    /// Checks a GPU's memory after an instance has been created on it.
    pub gpu_memory_check: Option<GpuMemoryCheck>,
    /// The host policies, which determine where instances run.
    pub host_policies: HostPolicies,
    /// The way instances of all models share resources.
    pub rate_limit: RateLimiterMode,
    /// The measurements to make in addition to the statistics.
    pub measurements: ModelMetricOptions,
    /// Counts the memory used by padded batches.
    pub ledger: Arc<MemoryLedger>,
}

/// Loads model versions, and changes their instances.
pub struct VersionLoader {
    timer: Timer,
    log: LogSink,
    cache: Option<Arc<dyn ResponseCache>>,
    holds: HoldThresholds,
    parallel_creation: Option<bool>,
    gpu_memory_check: Option<GpuMemoryCheck>,
    fingerprints: VersionFingerprints,
    host_policies: HostPolicies,
    /// The rate limiter; `None` if resources are not limited.
    rate_limiter: Option<Arc<RateLimiterDriver>>,
    measurements: ModelMetricOptions,
    padding_account: Arc<MemoryAccount>,
    lost_gpus: Arc<LostGpus>,
}

impl VersionLoader {
    /// The lost GPUs. Any code that detects a loss adds the GPU here; later loads avoid these GPUs.
    pub fn lost_gpus(&self) -> Arc<LostGpus> {
        self.lost_gpus.clone()
    }

    /// The server features that a definition may use.
    fn support(&self, definition: &ModelDefinition) -> SupportedFeatures {
        let mut support = definition.support.clone();
        let lost = self.lost_gpus.reasons();
        let is_lost = |gpu: i32| u32::try_from(gpu).is_ok_and(|gpu| lost.contains_key(&gpu));
        support.gpus.retain(|gpu| !is_lost(*gpu));
        support
    }

    /// Creates a loader whose versions share one timer thread.
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
        let log = options.log;
        Self {
            timer,
            cache: options.cache,
            host_policies: options.host_policies,
            measurements: options.measurements,
            padding_account: Arc::new(MemoryAccount::of_server(options.ledger)),
            rate_limiter: RateLimiterDriver::new(&options.rate_limit, &log).map(Arc::new),
            log,
            parallel_creation: options.parallel_creation,
            gpu_memory_check: options.gpu_memory_check,
            fingerprints: VersionFingerprints::default(),
            lost_gpus: Arc::default(),
            holds: HoldThresholds {
                until_queued: options.hold_until_queued,
                until_backlogged: options.hold_until_backlogged,
            },
        }
    }

    /// Loads one version. `composing` contains the versions that this version executes as its
    /// steps.
    ///
    /// # Errors
    ///
    /// Returns an error if the version can't serve. A panic in the backend is also an error.
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
        files.fetch()?;
        let started = Instant::now();
        let name = format!("'{}' version {}", definition.id(), files.version());
        // This precedes reading the files: a file that changes in the meantime makes a different
        // version.
        let files_fingerprint = self.cache.is_some().then(|| FilesFingerprint::of(files.as_ref()));
        let (spec, unconfigured) =
            self.complete_spec(definition, files.as_ref(), composing.as_deref())?;
        let classes = read_classes(&spec, files.as_ref(), composing.as_deref())?;
        let composing_fingerprints = fingerprints_of(composing.as_deref());
        let version_host = self.version_host(&spec, files.version(), composing)?;
        let assembler = SequenceAssembler::new(&spec, files.as_ref())?;
        let warmup = Warmup::new(&spec, files.as_ref(), &self.log)?;
        self.verbose(1, format_args!("{name}: loading with backend '{}'", spec.backend));
        self.warn_about(&spec);
        let host: Arc<dyn ModelHost> = version_host.clone();
        let backend = definition.backend.as_ref();
        let model = self.load_model(backend, unconfigured, &spec, files.as_ref(), &host)?;
        let loaded = LoadedVersion {
            spec: &spec,
            files: files.as_ref(),
            model: model.as_ref(),
            host: &host,
        };
        let fingerprint = files_fingerprint.map(|files| {
            let (backend, composing) = (backend.fingerprint(&loaded), composing_fingerprints);
            let inputs = FingerprintInputs { spec: &spec, files, backend, composing };
            self.fingerprints.next(&definition.id(), &inputs)
        });
        let custom_batching = self.custom_batching(backend, &loaded)?;
        let observer: Arc<dyn RequestObserver> = version_host.clone();
        let costs = WarmupCosts::default();
        let warmup = InstanceWarmup {
            warmup: &warmup,
            assembler: assembler.as_ref(),
            observer: &observer,
            log: &self.log,
            stop: &definition.stop,
            costs: Some(&costs),
        };
        let builder = self.instance_builder(&spec, model.as_ref(), backend, &version_host, warmup);
        let planned = planned_instances(&spec, &self.host_policies)?;
        let BuiltInstances { lanes, keys, passive } = builder.build(planned)?;
        let dispatcher = self.start_dispatcher(&spec, lanes, assembler, custom_batching)?;
        dispatcher.learn(&costs.into_inner());
        let reuse = self.response_reuse(&spec, &version_host, fingerprint, &dispatcher);
        let memory = model.input_memory();
        let admission = Admission::new(&spec).with_memory(memory, reuse.is_some());
        self.verbose(1, format_args!("{name}: loaded within {:?}", started.elapsed()));
        Ok(Arc::new(LoadedModel {
            version: files.version(),
            id: definition.id(),
            namespace: definition.namespace.clone(),
            name: Arc::from(spec.name.as_str()),
            config: ArcSwap::from_pointee(config_document(&spec)),
            placements: self.placements(definition, &spec, &version_host, &dispatcher, keys),
            dispatcher,
            load_duration: started.elapsed(),
            metric_tags: spec.metric_tags.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
            admission,
            output_reshape: OutputReshape::new(&spec),
            classes,
            reuse,
            fingerprint,
            host: version_host,
            files: files.clone(),
            passive: PassiveInstances::new(passive),
            model,
            spec,
        }))
    }

    /// The version's instances, which the loss of a GPU may take out of service.
    fn placements(
        &self,
        definition: &ModelDefinition,
        spec: &ModelSpec,
        host: &VersionHost,
        dispatcher: &Dispatcher,
        keys: Vec<InstanceKey>,
    ) -> Arc<Placements> {
        let (id, name) = (definition.id(), Arc::from(spec.name.as_str()));
        let subject = VersionLabel { id, name, version: host.version, log: self.log.clone() };
        let instances = (0..).map(InstanceId).zip(keys).collect();
        let placements = Arc::new(Placements::new(instances, self.lost_gpus.clone(), subject));
        let told = placements.clone();
        dispatcher.watch_losses(move |dispatcher| told.remove_lost_instances(dispatcher));
        placements
    }

    fn version_host(
        &self,
        spec: &ModelSpec,
        version: i64,
        composing: Option<Arc<dyn ComposingVersions>>,
    ) -> Result<Arc<VersionHost>, Status> {
        Ok(Arc::new(VersionHost {
            statistics: Arc::new(self.statistics(spec)?),
            gpus: GpuCounters::new(&self.measurements, spec.response_cache),
            version,
            log: self.log.clone(),
            composing: composing.map(|composing| composing as Arc<dyn ComposingModels>),
        }))
    }

    /// Lets the backend load the model, on the processors to which its instances are bound.
    fn load_model(
        &self,
        backend: &dyn Backend,
        unconfigured: Option<Box<dyn UnconfiguredModel>>,
        spec: &Arc<ModelSpec>,
        files: &dyn ModelFiles,
        host: &Arc<dyn ModelHost>,
    ) -> Result<Box<dyn Model>, Status> {
        let binding = self.host_policies.shared_binding(spec)?;
        run_bound(binding.as_ref(), || match unconfigured {
            Some(unconfigured) => unconfigured.finish_load(spec.clone(), host.clone()),
            None => backend.load(spec.clone(), files, host.clone()),
        })?
    }

    fn instance_builder<'a>(
        &'a self,
        spec: &'a ModelSpec,
        model: &'a dyn Model,
        backend: &dyn Backend,
        host: &'a VersionHost,
        warmup: InstanceWarmup<'a>,
    ) -> InstanceBuilder<'a> {
        let policy = backend.execution_policy(spec);
        let is_rate_limited = self.rate_limiter.is_some();
        let needs_threads = false;
        InstanceBuilder {
            spec,
            model,
            policy,
            is_rate_limited,
            needs_threads,
            parallel_creation: self.parallel_creation,
            gpu_memory_check: self.gpu_memory_check.as_ref(),
            gpu_counters: &host.gpus,
            warmup,
            log: &self.log,
        }
    }

    fn start_dispatcher(
        &self,
        spec: &ModelSpec,
        lanes: Vec<Lane>,
        sequence_assembler: Option<SequenceAssembler>,
        custom_batching: Option<CustomBatching>,
    ) -> Result<Arc<Dispatcher>, Status> {
        let is_limited = lanes.iter().any(|lane| !lane.requirements().is_empty());
        Dispatcher::start(DispatcherOptions {
            rate_limiter: self.rate_limiter.clone().filter(|_| is_limited),
            scheduling: scheduling_spec(spec, self.holds),
            lanes,
            sequence_assembler,
            padding: BatchPadding::new(spec, &self.padding_account),
            reply_order: reply_ordering(spec),
            custom_batching,
            model: spec.name.clone(),
            log: self.log.clone(),
            timer: self.timer.clone(),
        })
    }

    /// The complete, checked configuration of a version, and the object that its backend created to
    /// complete it.
    fn complete_spec(
        &self,
        definition: &ModelDefinition,
        files: &dyn ModelFiles,
        composing: Option<&dyn ComposingVersions>,
    ) -> Result<CompletedSpec, Status> {
        let mut draft = definition.draft.clone();
        let name = format!("'{}' version {}", definition.id(), files.version());
        let auto_complete = if definition.auto_complete {
            self.verbose(1, format_args!("{name}: completing the configuration"));
            AutoCompletePermission::Granted
        } else {
            AutoCompletePermission::Denied
        };
        let unconfigured = definition.backend.begin_load(&mut draft, files, auto_complete)?;
        let mut spec = draft
            .into_validated_spec(&self.support(definition))
            .map_err(|e| self.refused(&name, &e))?;
        if let Some(composing) = composing {
            self.complete_ensemble(definition, &name, composing, &mut spec)?;
        }
        self.verbose(2, format_args!("{name}: configuration {}", spec.to_json()));
        Ok((Arc::new(spec), unconfigured))
    }

    /// The error for a faulty configuration. Clients see Triton's message for the first error; the
    /// log contains the positions.
    fn refused(&self, name: &str, errors: &ConfigErrors) -> Status {
        let line = format_args!("{name} has errors in its configuration: {errors}");
        self.log.write(LogLevel::Error, line);
        Status::invalid_argument(errors.first_message().to_owned())
    }

    /// A version's custom batching rule. Only the dynamic batcher uses it; the default scheduler
    /// only checks and drops it.
    fn custom_batching(
        &self,
        backend: &dyn Backend,
        loaded: &LoadedVersion<'_>,
    ) -> Result<Option<CustomBatching>, Status> {
        let name = &loaded.spec.name;
        match &loaded.spec.scheduling {
            SchedulingChoice::Dynamic(_) if loaded.spec.own.padding.is_some() => {
                if backend.batch_rule(loaded)?.is_some() {
                    return Err(Status::invalid_argument(format!(
                        "'{name}' has a batching strategy, which contradicts parameter \
                         'batch_padding': padding chooses requests by their lengths"
                    )));
                }
                Ok(None)
            }
            SchedulingChoice::Dynamic(_) => {
                let custom = |rule| CustomBatching::new(rule, self.log.clone(), name.clone());
                Ok(backend.batch_rule(loaded)?.map(custom))
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

    /// Logs the configuration settings that have no effect.
    fn warn_about(&self, spec: &ModelSpec) {
        for remark in spec.ignored_setting_warnings() {
            self.log.write(LogLevel::Warning, remark);
        }
        for family in spec.histogram_buckets.keys().filter(|name| *name != FirstResponses::FAMILY) {
            let line = format_args!(
                "'{}' sets the buckets of the metric family '{family}', which is not one whose \
                 buckets can be set",
                spec.name
            );
            self.log.write(LogLevel::Warning, line);
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

    fn statistics(&self, spec: &ModelSpec) -> Result<Statistics, Status> {
        let bounds = spec.histogram_buckets.get(FirstResponses::FAMILY).map(Vec::as_slice);
        let bounds = bounds.unwrap_or(&FirstResponses::BOUNDS_MS);
        if self.measurements.first_response && !bounds.is_sorted_by(|low, high| low < high) {
            return Err(Status::invalid_argument(format!(
                "the buckets of '{}' in model_metrics of '{}' must ascend strictly",
                FirstResponses::FAMILY,
                spec.name
            )));
        }
        // As in Triton, this doesn't depend on the server's cache.
        Ok(Statistics::new(&self.measurements, bounds, spec.response_cache))
    }

    /// The cache layer, used if both the server and the model are configured for it.
    fn cache_layer(
        &self,
        spec: &ModelSpec,
        host: &VersionHost,
        fingerprint: Option<VersionFingerprint>,
    ) -> Option<CacheLayer> {
        let cache = self.cache.clone().filter(|_| spec.response_cache)?;
        Some(CacheLayer::new(cache, host.statistics.clone(), fingerprint?))
    }

    /// The ways to answer a request with the response to an equal one, if there are any.
    fn response_reuse(
        &self,
        spec: &ModelSpec,
        host: &VersionHost,
        fingerprint: Option<VersionFingerprint>,
        dispatcher: &Arc<Dispatcher>,
    ) -> Option<Box<ResponseReuse>> {
        let refuses =
            spec.own.latency_objective_microseconds.is_some() || spec.ensemble().is_some();
        let deadlines = if refuses { UseOfDeadlines::Refuses } else { UseOfDeadlines::Ignores };
        let (reshape, statistics) = (OutputReshape::new(spec), host.statistics.clone());
        let coalescing = || Coalescing::new(dispatcher, reshape, statistics, deadlines);
        let cache = self.cache_layer(spec, host, fingerprint);
        ResponseReuse::new(cache, spec.own.coalesce.then(coalescing))
    }

    #[track_caller]
    fn verbose(&self, level: u32, line: fmt::Arguments<'_>) {
        self.log.write(LogLevel::Verbose(level), line);
    }
}

fn config_document(spec: &ModelSpec) -> ModelConfigDocument {
    ModelConfigDocument { json: spec.to_json(), protobuf: spec.to_protobuf() }
}
