//! One loaded version of a model.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use galatea_backend::{ComposingModels, Host, LogLevel, Model, ModelFiles, ResponseRecord};
use galatea_config::ModelSpec;
use galatea_infer::{
    ExecutionSummary, ExecutionTimes, FailureReason, InferenceRequest, ModelClasses,
    ModelConfigDocument, ModelMetadata, ModelStatistics, PendingRequest, RequestObserver,
    RequestTimes, ResponseSender, Status, TensorMetadata, Trace, TraceSubject,
};
use galatea_policy::InstanceId;

use crate::cache::{CacheLayer, Lookup, Missed, Origin};
use crate::dispatcher::Arrival;
use crate::instances::InstanceKey;
use crate::log::refuse;
use crate::output_shape::OutputReshape;
use crate::statistics::Statistics;
use crate::{Admission, ComposingVersions, Dispatcher, LogSink, request_log, status};

/// A version of a model that is loaded; every request on its way keeps it so.
pub struct LoadedModel {
    pub(crate) spec: Arc<ModelSpec>,
    pub(crate) version: i64,
    /// What the server knows it by: the name, with the namespace if there are any.
    pub(crate) id: Arc<str>,
    pub(crate) namespace: Option<Arc<str>>,
    pub(crate) name: Arc<str>,
    /// Changes with the instances.
    pub(crate) config: ArcSwap<ModelConfigDocument>,
    /// What the dispatcher's lanes are. Only whoever loads the model changes it.
    pub(crate) instances: Mutex<Vec<(InstanceId, InstanceKey)>>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) load_duration: Duration,
    pub(crate) metric_tags: Arc<[(String, String)]>,
    pub(crate) admission: Admission,
    pub(crate) output_reshape: Option<Arc<OutputReshape>>,
    /// How its outputs become classes.
    pub(crate) classes: Arc<ModelClasses>,
    pub(crate) books: Arc<Books>,
    /// There if the server has a cache.
    pub(crate) origin: Option<Origin>,
    /// There if the server has a cache and the configuration asks for it.
    pub(crate) cache: Option<CacheLayer>,
    /// The instances in the lanes live by it.
    pub(crate) model: Box<dyn Model>,
    /// Kept, because they may be there only as long as somebody does.
    pub(crate) files: Arc<dyn ModelFiles>,
}

impl LoadedModel {
    /// Checks a request and queues it.
    pub fn infer(&self, mut request: InferenceRequest, sender: ResponseSender) {
        let arrival = Instant::now();
        if let Some(slot) = request.classes.take() {
            slot.set(&self.classes);
        }
        let trace = request.trace.take().inspect(|trace| self.begin(trace, &request.id, arrival));
        let admitted = match self.admission.admit(request) {
            Ok(admitted) => admitted,
            Err(status) => return refuse(sender, status, &self.books.log),
        };
        let mut request = admitted.request;
        if let Some(trace) = &trace {
            trace.record_queued(&request.inputs, Instant::now());
        }
        let sender = request_log::follow(&self.books.log, &request, self.version, arrival, sender);
        let (sender, number) = self.dispatcher.order_replies(sender);
        let sender = match self.look_up(&request, arrival) {
            Lookup::Hit(response) => {
                self.dispatcher.start_reply(number);
                if let Some(trace) = &trace {
                    trace.record_response(&response);
                }
                return sender.send_final(Ok(response));
            }
            Lookup::Miss(missed) => self.keep(missed, sender),
        };
        let sender = match &trace {
            Some(trace) => trace.wrap_sender(sender),
            None => sender,
        };
        let sender = match &self.output_reshape {
            Some(reshape) => reshape.wrap(sender),
            None => sender,
        };
        request.trace = trace;
        let times = RequestTimes { arrival, queued: Instant::now() };
        let observer = self.books.clone();
        let request = PendingRequest::new(request, sender, admitted.batch_size, times, observer);
        self.dispatcher.enqueue(Arrival { request, shape_class: admitted.shape_class, number });
    }

    /// Says what a trace is about.
    fn begin(&self, trace: &Trace, request_id: &str, arrival: Instant) {
        let (model_name, model_version) = (&*self.name, self.version);
        trace.begin(&TraceSubject { model_name, model_version, request_id }, arrival);
    }

    fn look_up(&self, request: &InferenceRequest, arrival: Instant) -> Lookup {
        let output_count = self.spec.outputs.len();
        let layer = self.cache.as_ref();
        layer.map_or(Lookup::Miss(None), |cache| cache.look_up(request, output_count, arrival))
    }

    fn keep(&self, missed: Option<Missed>, sender: ResponseSender) -> ResponseSender {
        match (&self.cache, missed) {
            (Some(cache), Some(missed)) => cache.keep(missed, sender),
            _ => sender,
        }
    }

    /// Its configuration.
    #[must_use]
    pub const fn spec(&self) -> &Arc<ModelSpec> {
        &self.spec
    }

    /// Its number.
    #[must_use]
    pub const fn version(&self) -> i64 {
        self.version
    }

    /// What the server knows its model by: the name, with the namespace if there are any.
    #[must_use]
    pub const fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// Its model's namespace, if there are any.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// The configuration that clients see. It changes with the instances.
    #[must_use]
    pub fn config(&self) -> Arc<ModelConfigDocument> {
        self.config.load_full()
    }

    /// Whether the model itself can serve.
    ///
    /// # Errors
    ///
    /// Why it can't, in the model's words.
    pub fn check_ready(&self) -> Result<(), Status> {
        self.model.check_ready()
    }

    /// Whether [`LoadedModel::check_ready`] may take a while.
    #[must_use]
    pub fn readiness_may_block(&self) -> bool {
        self.model.readiness_may_block()
    }

    /// Refuses new requests and lets the queued ones run. Returns at once; calls
    /// `on_drained` when that is done, on any thread.
    pub fn drain(&self, on_drained: impl Fn() + Send + Sync + 'static) {
        self.dispatcher.drain_and_tell(on_drained);
    }

    /// Whether every request has run since [`LoadedModel::drain`].
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.dispatcher.is_drained()
    }

    /// Waits for the ends of the threads of a drained version, and ends its own rule for
    /// batches on this thread.
    pub fn stop(&self) {
        self.dispatcher.join_lanes();
        self.dispatcher.end_batch_rule();
    }

    /// The interface that clients see; `versions` are those that are ready.
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

    /// What its instances are.
    pub(crate) fn instances(&self) -> Vec<(InstanceId, InstanceKey)> {
        self.instances.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// It has other instances now, and a configuration that says so.
    pub(crate) fn set_instances(
        &self,
        instances: Vec<(InstanceId, InstanceKey)>,
        config: ModelConfigDocument,
    ) {
        *self.instances.lock().unwrap_or_else(PoisonError::into_inner) = instances;
        self.config.store(Arc::new(config));
    }

    /// What every queue and instance waits for, as JSON.
    #[must_use]
    pub fn scheduler_status(&self) -> String {
        status::to_json(&self.name, self.version, &self.dispatcher.report())
    }

    /// A copy of the counters.
    #[must_use]
    pub fn statistics(&self) -> ModelStatistics {
        let counters = &self.books.statistics;
        ModelStatistics {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            version: self.version,
            last_inference_ms: counters.last_inference_ms(),
            inference_count: counters.inference_count(),
            execution_count: counters.execution_count(),
            inference: counters.stages(),
            batches: counters.batches(),
            responses: counters.responses(),
            memory: self.model.memory_usage(),
            failures: counters.failures(),
            is_cached: self.cache.is_some(),
            pending: u64::try_from(self.dispatcher.queued()).unwrap_or(u64::MAX),
            load_duration: self.load_duration,
            metric_tags: self.metric_tags.clone(),
        }
    }
}

impl std::fmt::Debug for LoadedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LoadedModel({} version {})", self.name, self.version)
    }
}

/// The books of one model version, which requests and the backend write.
pub(crate) struct Books {
    pub(crate) statistics: Statistics,
    pub(crate) version: i64,
    pub(crate) log: LogSink,
    /// The models that this one was loaded with, if it needs any.
    pub(crate) composing: Option<Arc<dyn ComposingVersions>>,
}

impl std::fmt::Debug for Books {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Books")
    }
}

impl RequestObserver for Books {
    fn succeeded(&self, batch_size: u32, times: &RequestTimes, execution: &ExecutionSummary) {
        self.statistics.succeeded(batch_size, times, execution);
    }

    fn failed(&self, times: &RequestTimes, reason: FailureReason) {
        self.statistics.failed(times, reason);
    }
}

impl Host for Books {
    fn record_batch(&self, batch_size: u64, times: &ExecutionTimes) {
        self.statistics.executed(batch_size, times);
    }

    fn record_response(&self, response: &ResponseRecord) {
        self.statistics.record_response(response);
    }

    fn model_version(&self) -> i64 {
        self.version
    }

    fn composing_models(&self) -> Option<Arc<dyn ComposingModels>> {
        let models = self.composing.clone()?;
        Some(models)
    }

    fn log(&self, level: LogLevel, message: &str) {
        self.log.write(level, message);
    }
}
