//! A loaded model version: its queue, its batches and its instances.
//!
//! A [`VersionLoader`] turns a [`ModelDefinition`] and a version's files into a [`LoadedModel`], which
//! accepts requests until it is drained. The scheduler in `galatea-policy` is a pure state machine
//! that makes all decisions about queues and batches; this crate drives it. It owns the clock, the
//! locks and the threads, and has no rules about when a batch is due.
//!
//! The path of a request, in file order:
//!
//! | step | module |
//! |---|---|
//! | a request and its sender arrive; each layer wraps the sender | `version` |
//! | the request is checked and normalized; its shape class is determined | `admission`, `batch` |
//! | the response cache may have the response | `cache` |
//! | an equal request in flight may share its execution | `coalescing` |
//! | the request enters the queue, and the scheduler is stepped under one lock | `dispatcher` |
//! | a batch needs permits where resources are limited | `rate_limiter` |
//! | the batch goes to a lane's thread, or is executed on this one | `dispatcher/execution.rs`, `lane` |
//! | rows of sequences get controls and states as inputs | `batch` |
//! | the backend executes; replies pass the layers of the sender, in order if promised | `dispatcher/ordered_replies.rs` |
//! | the request is counted, and its sequence gets its states back | `statistics`, `dispatcher/sequences.rs` |
//!
//! The path of a load: `loader`, `instances` with `host_policy`, `warmup`, `dispatcher`.
//!
//! ```
//! use std::sync::Arc;
//!
//! use galatea_dispatch::{
//!     HostPolicies, LoadedModel, VersionLoader, LoaderOptions, LogSink, ModelMetricOptions, ModelDefinition, RateLimiterMode,
//! };
//! use galatea_infer::Status;
//!
//! /// Loads all versions of a model that needs no others.
//! fn load(definition: &ModelDefinition) -> Result<Vec<Arc<LoadedModel>>, Status> {
//!     let loader = VersionLoader::new(LoaderOptions {
//!         log: LogSink::new(|_level, _position, line| println!("{line}")),
//!         cache: None,
//!         hold_until_queued: 0,
//!         hold_until_backlogged: 0,
//!         parallel_creation: None,
//!         gpu_memory_check: None,
//!         host_policies: HostPolicies::default(),
//!         measurements: ModelMetricOptions::default(),
//!         rate_limit: RateLimiterMode::Off,
//!         ledger: Arc::default(),
//!     })?;
//!     definition.check_versions()?;
//!     let load = |files| loader.load(definition, files, None);
//!     definition.versions.iter().map(load).collect()
//! }
//! ```
//!
//! This crate sees no protocol bytes, reads no files by itself, knows no backend by name, and
//! doesn't know the server's other models. A version that executes other versions as its steps
//! receives them as [`ComposingVersions`].

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod admission;
mod batch;
mod cache;
mod classes;
mod coalescing;
mod deadlines;
mod dispatcher;
mod host_policy;
mod instances;
mod lane;
mod loader;
mod log;
mod padding;
mod rate_limiter;
mod reshape;
mod scheduling;
mod statistics;
mod tensor_contents;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
pub mod testing;
mod timer;
mod version;
mod warmup;

pub use cache::LocalCache;
pub use dispatcher::is_model_report;
pub use host_policy::{HostPolicies, HostPolicySetting};
pub use instances::GpuMemoryCheck;
pub use loader::{
    InstanceChange, LoadCheckResult, LoadProblem, LoaderOptions, ModelDefinition, NeededModel,
    ResourceLimitCheck, VersionLoader,
};
pub use log::{LogSink, refuse_and_log};
pub use rate_limiter::{RateLimiterMode, ResourceLimit};
pub use scheduling::scheduling_spec_of;
pub use statistics::ModelMetricOptions;
pub use version::{ComposingVersions, LoadedModel, LostGpus, VersionUse};
