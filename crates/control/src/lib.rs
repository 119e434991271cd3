//! The server's client interface other than inference: its models with their states and statistics,
//! its settings, shared memory, and its current activity.
//!
//! - `server_control.rs`: the trait for health, metadata, statistics and model control
//! - `served_model.rs`: a model version looked up for a request
//! - `model_wait.rs`, `find_or_wait.rs`: the wait for a model that is loaded on demand
//! - `models.rs`, `statistics.rs`, `measurements.rs`: the facts that the server reports about
//!   models
//! - `log_control.rs`, `trace_control.rs`: settings that clients change, and the traces of doors
//! - `regions.rs`: the memory that clients register
//! - `watch.rs`, `traffic.rs`: current queues and executions, and request recordings
//! - `archives.rs`: model archives that a cloud platform puts on the disk
//!
//! These are traits and values that doors, drivers and the program share. Among the backends, only
//! `backend-python` uses any of them, because its models load other models. The crate does nothing
//! by itself: it counts, renders and decides nothing. Requests are in `infer`.

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod archives;
mod find_or_wait;
mod log_control;
mod measurements;
mod model_wait;
mod models;
mod regions;
mod served_model;
mod server_control;
mod statistics;
mod trace_control;
mod traffic;
mod watch;

pub use archives::{ModelArchiveClassifier, ModelArchiveKind};
pub use find_or_wait::find_or_wait;
pub use log_control::{LogControl, LogFormat, LogSettingChange, LogSettings, LogSettingsUpdate};
pub use measurements::{
    CounterFamily, CounterReadings, CountsByReason, GenerationReading, HistogramReading,
    LatencySummaries, ModelHistograms, ModelMeasurements, SummaryReading,
};
pub use model_wait::{ModelFoundHook, ModelWait};
pub use models::{
    LoadParameters, ModelConfigDocument, ModelMetadata, ModelState, PriorityLevels,
    RepositoryEntry, ServerMetadata, TensorMetadata,
};
pub use regions::{
    CudaShmRegion, RequestShmRegions, ShmControl, ShmDisabled, ShmKind, SystemShmRegion,
};
pub use served_model::ServedModel;
pub use server_control::{ModelNameMapping, ServerControl};
pub use statistics::{
    BatchStatistics, DurationStatistic, InferenceStatistics, ModelGpuStatistics, ModelStatistics,
    ResponseStatistics,
};
pub use trace_control::{
    DoorTracePoint, DoorTraceSink, FieldChange, RequestTraceParts, TraceControl, TraceHeaders,
    TraceLevels, TraceMode, TraceSettings, TraceSettingsChange,
};
pub use traffic::{TrafficRecording, TrafficRecordingControl};
pub use watch::{
    ActivityMonitor, ActivityReading, ActivityRecording, BatchCloseReasons, ExecutionInterval,
    InstanceActivity, QueueActivity, ResidencyChange, ResidencyChangeKind, ResidencyReading,
    SequenceActivity, VersionActivity, WATCHED_VERSIONS_MAX,
};
