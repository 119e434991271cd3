//! Execution counters for each GPU that a version's instances use, in addition to the version's own
//! counters.
//!
//! As in Triton, metrics have a series for each GPU. Requests that are not executed, such as cache
//! hits, refused requests and waiting ones, are counted only for the version.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use galatea_control::ModelGpuStatistics;
use galatea_infer::{
    AdmissionTimes, ExecutionSummary, FailureReason, PendingRequest, RequestObserver,
};

use super::{FirstResponses, ModelMetricOptions, Statistics};

/// The counters, by GPU number.
#[derive(Debug)]
pub(crate) struct GpuCounters {
    options: ModelMetricOptions,
    is_cached: bool,
    /// The counters of each GPU. Counters are added along with instances.
    by_gpu: ArcSwap<BTreeMap<u32, Arc<Statistics>>>,
}

/// The counters for a lane's GPU.
#[derive(Clone, Debug)]
pub(crate) struct CountedGpu {
    number: u32,
    statistics: Arc<Statistics>,
}

/// An observer in front of the normal one, for a request executed on a GPU.
#[derive(Debug)]
struct GpuObserver {
    gpu: CountedGpu,
    inner: Arc<dyn RequestObserver>,
}

impl GpuCounters {
    pub(crate) fn new(options: &ModelMetricOptions, is_cached: bool) -> Self {
        let options =
            ModelMetricOptions { distributions: false, first_response: false, ..options.clone() };
        Self { options, is_cached, by_gpu: ArcSwap::default() }
    }

    /// The counters for a GPU that has an instance; `None` if GPUs are not counted.
    pub(crate) fn counters_of(&self, gpu: u32) -> Option<CountedGpu> {
        if !self.options.gpus {
            return None;
        }
        if self.get(gpu).is_none() {
            let new = Arc::new(Statistics::new(
                &self.options,
                &FirstResponses::BOUNDS_MS,
                self.is_cached,
            ));
            self.by_gpu.rcu(|all| {
                let mut all = BTreeMap::clone(all);
                all.entry(gpu).or_insert_with(|| new.clone());
                all
            });
        }
        self.get(gpu).map(|statistics| CountedGpu { number: gpu, statistics })
    }

    pub(crate) fn get(&self, gpu: u32) -> Option<Arc<Statistics>> {
        self.by_gpu.load().get(&gpu).cloned()
    }

    pub(crate) fn read(&self) -> Vec<ModelGpuStatistics> {
        let all = self.by_gpu.load();
        let read = all.iter().map(|(gpu, counters)| ModelGpuStatistics {
            gpu: *gpu,
            inference_count: counters.inference_count(),
            execution_count: counters.execution_count(),
            inference: counters.durations(),
            failures: counters.failures(),
            summaries: counters.measurements(&[]).summaries,
        });
        read.collect()
    }
}

impl CountedGpu {
    /// Counts these requests, which are about to be executed, for the GPU.
    pub(crate) fn observe(&self, requests: &mut [PendingRequest]) {
        for request in requests {
            request.wrap_observer(|inner| Arc::new(GpuObserver { gpu: self.clone(), inner }));
        }
    }
}

impl RequestObserver for GpuObserver {
    fn succeeded(&self, batch_size: u32, times: &AdmissionTimes, execution: &ExecutionSummary) {
        // The version counts the success for both, because another observer may turn it into a
        // failure.
        let execution = ExecutionSummary { gpu: Some(self.gpu.number), ..*execution };
        self.inner.succeeded(batch_size, times, &execution);
    }

    fn failed(&self, times: &AdmissionTimes, reason: FailureReason) {
        if reason == FailureReason::Backend {
            self.gpu.statistics.failed(times, reason);
        }
        self.inner.failed(times, reason);
    }

    fn responding(&self, times: &AdmissionTimes) {
        self.inner.responding(times);
    }
}
