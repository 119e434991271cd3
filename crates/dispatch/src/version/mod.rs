//! A loaded model version, which is where its requests enter this crate.
//!
//! [`LoadedModel::infer`] is a request's path up to the queue. It checks the request, consults the
//! response cache, wraps the sender once for each layer that needs to see the replies, and passes
//! the request to the dispatcher, or to an execution that equal requests share.
//!
//! **Traces.** A request may carry a trace. The version records the request's arrival, queueing and
//! responses in it; the pending request records its execution and its end. Without a trace, this
//! costs one null-pointer check.
//!
//! **Lifetime.** Requests do not keep a version alive. Its dispatcher is kept alive by the threads
//! of its lanes, and outlives the version's last handle until it is drained. When the engine has no
//! more handles to a version, it drains the version, waits for its threads
//! ([`LoadedModel::join_and_destroy`]), and destroys it.

mod composing;
mod counters;
mod current_use;
mod gpu_loss;
mod host;
mod reuse;
#[cfg(test)]
mod tests;
mod traffic;
mod watching;

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use galatea_backend::{Model, ModelFiles};
use galatea_config::ModelSpec;
use galatea_control::{
    ModelConfigDocument, ModelMeasurements, ModelMetadata, ModelStatistics, TensorMetadata,
};
use galatea_explain::{
    ExplainingObserver, LatencyCauseFinder, LatencyExplanation, Milestone, RequestFacts,
};
use galatea_infer::{
    AdmissionTimes, ClassificationInfo, InferenceRequest, PendingRequest, RequestObserver,
    ResponseSender, Status, Trace, TraceSubject,
};
use galatea_policy::InstanceId;
use galatea_stdx::len64;

pub use self::composing::ComposingVersions;
pub use self::current_use::VersionUse;
pub use self::gpu_loss::LostGpus;
pub(crate) use self::gpu_loss::{Placements, VersionLabel};
pub(crate) use self::host::VersionHost;
pub(crate) use self::reuse::ResponseReuse;
use self::reuse::{ArrivedRequest, Reuse};
use crate::admission::Admission;
use crate::cache::VersionFingerprint;
use crate::dispatcher::{AdmittedRequest, Dispatcher, ReportSubject};
use crate::instances::{InstanceKey, PassiveInstances};
use crate::log::{refuse_and_log, request_log};
use crate::reshape::OutputReshape;

/// A loaded version of a model.
pub struct LoadedModel {
    pub(crate) spec: Arc<ModelSpec>,
    pub(crate) version: i64,
    /// The model's name, with its namespace if any.
    pub(crate) id: Arc<str>,
    pub(crate) namespace: Option<Arc<str>>,
    pub(crate) name: Arc<str>,
    /// The configuration shown to clients, which changes with the instances.
    pub(crate) config: ArcSwap<ModelConfigDocument>,
    /// The instances in the dispatcher's lanes. They are changed by a load of the model and by the
    /// loss of a GPU.
    pub(crate) placements: Arc<Placements>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) load_duration: Duration,
    pub(crate) metric_tags: Arc<[(String, String)]>,
    pub(crate) admission: Admission,
    pub(crate) output_reshape: Option<Arc<OutputReshape>>,
    pub(crate) classes: Arc<ClassificationInfo>,
    pub(crate) host: Arc<VersionHost>,
    /// The fingerprint; `None` if the server has no cache.
    pub(crate) fingerprint: Option<VersionFingerprint>,
    /// The ways to answer a request with the response to an equal one, if there are any.
    pub(crate) reuse: Option<Box<ResponseReuse>>,
    /// The passive instances, dropped before the model.
    pub(crate) passive: PassiveInstances,
    /// The model, which outlives the instances in the lanes.
    pub(crate) model: Box<dyn Model>,
    /// The files, which may be temporary. They exist for as long as this value does.
    pub(crate) files: Arc<dyn ModelFiles>,
}

impl LoadedModel {
    /// Checks a request and queues it.
    pub fn infer(&self, request: impl Into<Box<InferenceRequest>>, sender: ResponseSender) {
        self.queue(request.into(), sender);
    }

    fn queue(&self, mut request: Box<InferenceRequest>, sender: ResponseSender) {
        let arrival = Instant::now();
        if let Some(classes) = request.classes.take() {
            classes.set_once(&self.classes);
        }
        let trace = request.trace.take();
        request.deadline = self.admission.deadlines.earliest_deadline(&request, arrival);
        if let Some(trace) = &trace {
            self.begin_trace(trace, &request, arrival);
        }
        if let Err(status) = self.admission.deadlines.check(&request) {
            self.host.statistics.refused_as_invalid();
            return refuse_and_log(sender, status, &self.host.log);
        }
        let admitted = match self.admission.admit(request) {
            Ok(admitted) => admitted,
            Err(status) => {
                self.host.statistics.refused_as_invalid();
                return refuse_and_log(sender, status, &self.host.log);
            }
        };
        let request = admitted.request;
        if let Some(trace) = &trace {
            trace.record_queued(&request.inputs, Instant::now());
            self.explain_admission(trace, &request);
        }
        let log = &self.host.log;
        let sender = request_log::log_request(log, &request, self.version, arrival, sender);
        let (sender, reply_number) = self.dispatcher.order_replies(sender);
        let sender = match &self.reuse {
            None => sender,
            Some(reuse) => {
                let arrived = ArrivedRequest { request: &request, arrival, reply_number };
                match self.find_response(reuse, &arrived, trace.as_ref(), sender) {
                    Reuse::Replied => return,
                    Reuse::Executes(sender) => sender,
                    Reuse::Shares(share, sender) => {
                        let sender = trace_replies(trace.as_ref(), sender);
                        let (shape_class, length) = (admitted.shape_class, admitted.length);
                        let request = self.pending_request(
                            request,
                            sender,
                            admitted.batch_size,
                            trace,
                            arrival,
                        );
                        let member = AdmittedRequest { request, shape_class, length, reply_number };
                        return share.submit(reuse, member);
                    }
                }
            }
        };
        let sender = trace_replies(trace.as_ref(), sender);
        let sender = match &self.output_reshape {
            Some(reshape) => reshape.wrap(sender),
            None => sender,
        };
        let (shape_class, length) = (admitted.shape_class, admitted.length);
        let request = self.pending_request(request, sender, admitted.batch_size, trace, arrival);
        self.dispatcher.enqueue(AdmittedRequest { request, shape_class, length, reply_number });
    }

    /// Combines a request with its sender and the times of its admission.
    #[inline]
    fn pending_request(
        &self,
        mut request: Box<InferenceRequest>,
        sender: ResponseSender,
        batch_size: u32,
        trace: Option<Arc<Trace>>,
        arrival: Instant,
    ) -> PendingRequest {
        request.trace = trace;
        request.held = self.host.statistics.model_bytes.add_request(&request.inputs);
        let times = AdmissionTimes { arrival, queued: Instant::now() };
        let observer = self.observer(&request, times);
        PendingRequest::new(request, sender, batch_size, times, observer)
    }

    /// Creates the statistics observer, behind the observer of the request's explanation, if it has
    /// one.
    fn observer(
        &self,
        request: &InferenceRequest,
        times: AdmissionTimes,
    ) -> Arc<dyn RequestObserver> {
        let explanation =
            request.trace.as_ref().and_then(|trace| LatencyExplanation::from_trace(trace));
        let Some(explanation) = explanation else { return self.host.clone() };
        explanation.set_milestone(Milestone::Queued, times.queued);
        ExplainingObserver::wrap(explanation, self.host.clone())
    }

    fn explain_admission(&self, trace: &Trace, request: &InferenceRequest) {
        explain(trace, |facts| {
            let bytes = request.inputs.iter().map(|input| len64(input.data.len()));
            facts.input_bytes = bytes.fold(0, u64::saturating_add);
            facts.is_warm = !self.spec.warmup.is_empty();
        });
    }

    fn begin_trace(&self, trace: &Trace, request: &InferenceRequest, arrival: Instant) {
        let subject = TraceSubject {
            model_name: &self.name,
            model_version: self.version,
            request_id: &request.id,
            deadline: self
                .admission
                .deadlines
                .reported_deadline(request)
                .map(|at| at.saturating_duration_since(arrival)),
        };
        trace.begin(&subject, arrival);
    }

    /// The version's configuration.
    #[must_use]
    pub const fn spec(&self) -> &Arc<ModelSpec> {
        &self.spec
    }

    /// The version number.
    #[must_use]
    pub const fn version(&self) -> i64 {
        self.version
    }

    /// The model's id: its name, with its namespace if any.
    #[must_use]
    pub const fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// The model's namespace, if any.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// The output classes.
    #[must_use]
    pub const fn class_labels(&self) -> &Arc<ClassificationInfo> {
        &self.classes
    }

    /// The configuration as clients see it. It changes with the instances.
    #[must_use]
    pub fn config(&self) -> Arc<ModelConfigDocument> {
        self.config.load_full()
    }

    /// Checks that the model can serve.
    ///
    /// # Errors
    ///
    /// The reason why it can't, in the model's words, or the lost GPU.
    pub fn check_ready(&self) -> Result<(), Status> {
        self.check_gpus()?;
        self.model.check_ready()
    }

    /// Returns true if [`LoadedModel::check_ready`] may block.
    #[must_use]
    pub fn readiness_may_block(&self) -> bool {
        self.model.readiness_may_block()
    }

    /// Refuses new requests and executes the queued ones. Returns immediately; calls `on_drained`
    /// at the end, on any thread.
    pub fn drain(&self, on_drained: impl Fn() + Send + Sync + 'static) {
        self.dispatcher.drain_and_notify(on_drained);
    }

    /// Returns true if every request has been executed since [`LoadedModel::drain`].
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.dispatcher.is_drained()
    }

    /// Waits until a drained version's threads have ended. Then destroys its passive instances,
    /// which also use the model, and its custom batching rule on this thread.
    pub fn join_and_destroy(&self) {
        self.dispatcher.join_lanes();
        self.passive.destroy();
        self.dispatcher.destroy_custom_batching();
        self.model.wait_until_unused();
    }

    /// The interface that clients see. `versions` contains the model's ready versions.
    #[must_use]
    pub fn metadata(&self, versions: Vec<i64>) -> ModelMetadata {
        let spec = &self.spec;
        let shape = |dims: &[i64]| {
            let batch = (spec.max_batch_size > 0).then_some(-1);
            batch.into_iter().chain(dims.iter().copied()).collect()
        };
        let platform = if spec.platform.is_empty() { &spec.backend } else { &spec.platform };
        ModelMetadata {
            name: spec.name.clone(),
            versions,
            platform: platform.clone(),
            inputs: spec
                .inputs
                .iter()
                .map(|input| TensorMetadata {
                    name: input.name.clone(),
                    datatype: input.datatype,
                    shape: shape(&input.dims),
                })
                .collect(),
            outputs: spec
                .outputs
                .iter()
                .map(|output| TensorMetadata {
                    name: output.name.clone(),
                    datatype: output.datatype,
                    shape: shape(&output.dims),
                })
                .collect(),
        }
    }

    /// The version's instances.
    pub(crate) fn instances(&self) -> Vec<(InstanceId, InstanceKey)> {
        self.placements.instances()
    }

    /// Sets the instances and the configuration that describes them. Returns an instance that stays
    /// as well because GPUs were lost, if any.
    pub(crate) fn set_instances(
        &self,
        instances: Vec<(InstanceId, InstanceKey)>,
        config: ModelConfigDocument,
    ) -> Option<InstanceId> {
        let staying = self.placements.set(instances);
        self.config.store(Arc::new(config));
        staying
    }

    /// The report with this name, as JSON, if it exists. `main_cause_text` determines the main
    /// cause of request latency.
    #[must_use]
    pub fn report_json(
        &self,
        name: &str,
        main_cause_text: Option<LatencyCauseFinder>,
    ) -> Option<String> {
        let executed = self.host.statistics.durations();
        let (model, version) = (&self.name, self.version);
        let subject = ReportSubject { name: model, version, executed, main_cause_text };
        self.dispatcher.report(name, &subject)
    }

    /// A copy of the counters.
    #[must_use]
    pub fn statistics(&self) -> ModelStatistics {
        let counters = &self.host.statistics;
        let batches = counters.batches();
        let scheduling = self.dispatcher.scheduling_counts();
        let families = counters::families(counters, &scheduling, self.spec.own.coalesce);
        let measurements =
            ModelMeasurements { counters: families, ..counters.measurements(&batches) };
        ModelStatistics {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            version: self.version,
            last_inference_ms: counters.last_inference_ms(),
            inference_count: counters.inference_count(),
            execution_count: counters.execution_count(),
            inference: counters.durations(),
            batches,
            responses: counters.responses(),
            memory: self.model.memory_usage(),
            failures: counters.failures(),
            is_cached: self.spec.response_cache,
            pending: len64(self.dispatcher.queued()),
            held_bytes: counters.model_bytes.held(),
            load_duration: self.load_duration,
            metric_tags: self.metric_tags.clone(),
            measurements,
            gpus: self.host.gpus.read(),
        }
    }
}

/// Wraps a sender so that the responses passing through it are traced, if the request has a trace.
#[inline]
fn trace_replies(trace: Option<&Arc<Trace>>, sender: ResponseSender) -> ResponseSender {
    match trace {
        Some(trace) => trace.wrap_sender(sender),
        None => sender,
    }
}

/// Adds to a request's explanation, if it has one.
fn explain(trace: &Trace, change: impl FnOnce(&mut RequestFacts)) {
    if let Some(explanation) = LatencyExplanation::from_trace(trace) {
        explanation.update(change);
    }
}

impl std::fmt::Debug for LoadedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LoadedModel({} version {})", self.name, self.version)
    }
}
