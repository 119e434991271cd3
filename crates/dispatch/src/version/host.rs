//! The host that a model version's requests and backend report to.

use std::sync::Arc;

use galatea_backend::{ComposingModels, LogLevel, ModelHost, ResponseRecord};
use galatea_infer::{
    AdmissionTimes, ExecutionSummary, ExecutionTimes, FailureReason, RequestObserver,
};

use crate::LogSink;
use crate::statistics::{GpuCounters, Statistics};

/// The [`ModelHost`] for one model version, and the [`RequestObserver`] for its requests.
pub(crate) struct VersionHost {
    pub(crate) statistics: Arc<Statistics>,
    pub(crate) gpus: GpuCounters,
    pub(crate) version: i64,
    pub(crate) log: LogSink,
    /// The models that this one was loaded with, if it needs any.
    pub(crate) composing: Option<Arc<dyn ComposingModels>>,
}

impl std::fmt::Debug for VersionHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("VersionHost")
    }
}

impl RequestObserver for VersionHost {
    fn succeeded(&self, batch_size: u32, times: &AdmissionTimes, execution: &ExecutionSummary) {
        self.statistics.succeeded(batch_size, times, execution);
        if let Some(gpu) = execution.gpu.and_then(|gpu| self.gpus.get(gpu)) {
            gpu.succeeded(batch_size, times, &ExecutionSummary { gpu: None, ..*execution });
        }
    }

    fn failed(&self, times: &AdmissionTimes, reason: FailureReason) {
        self.statistics.failed(times, reason);
    }

    fn responding(&self, times: &AdmissionTimes) {
        self.statistics.responding(times.arrival);
    }
}

impl ModelHost for VersionHost {
    fn record_batch(&self, batch_size: u64, times: &ExecutionTimes) {
        self.statistics.executed(batch_size, times);
    }

    fn record_gpu_batch(&self, gpu: u32, batch_size: u64, times: &ExecutionTimes) {
        self.statistics.executed(batch_size, times);
        if let Some(gpu) = self.gpus.get(gpu) {
            gpu.executed(batch_size, times);
        }
    }

    fn record_response(&self, response: &ResponseRecord) {
        self.statistics.record_response(response);
    }

    fn model_version(&self) -> i64 {
        self.version
    }

    fn composing_models(&self) -> Option<Arc<dyn ComposingModels>> {
        self.composing.clone()
    }

    fn log(&self, level: LogLevel, message: &str) {
        self.log.write(level, message);
    }
}
