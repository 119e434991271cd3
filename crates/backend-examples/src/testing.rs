//! Test doubles for the interfaces that the server provides to a backend.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use galatea_backend::{Device, LogLevel, ModelFiles, ModelHost, Placement};
use galatea_config::{ModelSpec, SupportedFeatures};
use galatea_infer::{
    AdmissionTimes, ExecutionSummary, ExecutionTimes, FailureReason, RequestObserver, Status,
};
use galatea_pbtxt::parse_config_draft;

/// Version 3 of a model without files.
pub(crate) struct NoFiles;

impl ModelFiles for NoFiles {
    fn model_path(&self) -> &Path {
        Path::new("m")
    }

    fn version(&self) -> i64 {
        3
    }

    fn version_path(&self) -> &Path {
        Path::new("m/3")
    }

    fn resolve(&self, _: &str) -> Result<PathBuf, Status> {
        Err(Status::not_found("no files"))
    }
}

/// Records the statistics that a backend reports.
#[derive(Debug, Default)]
pub(crate) struct RecordingHost {
    pub(crate) batch_sizes: Mutex<Vec<u64>>,
    /// `success`, or the reason for the failure, for each request that has ended.
    pub(crate) ends: Mutex<Vec<&'static str>>,
}

impl ModelHost for RecordingHost {
    fn record_batch(&self, batch_size: u64, _: &ExecutionTimes) {
        self.batch_sizes.lock().unwrap().push(batch_size);
    }

    fn model_version(&self) -> i64 {
        3
    }

    fn log(&self, _: LogLevel, _: &str) {}
}

impl RequestObserver for RecordingHost {
    fn succeeded(&self, _: u32, _: &AdmissionTimes, _: &ExecutionSummary) {
        self.ends.lock().unwrap().push("success");
    }

    fn failed(&self, _: &AdmissionTimes, reason: FailureReason) {
        self.ends.lock().unwrap().push(reason.label());
    }
}

pub(crate) fn spec(text: &str) -> ModelSpec {
    let draft = parse_config_draft("config.pbtxt", text).unwrap();
    draft
        .into_validated_spec(&SupportedFeatures::default())
        .unwrap_or_else(|errors| panic!("{errors}"))
}

pub(crate) fn placement(device: Device) -> Placement {
    Placement { name: String::from("m_0_0"), device, host_policy_settings: BTreeMap::new() }
}
