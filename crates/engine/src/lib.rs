//! The engine. It brings models into and out of service and finds the model for each request. Its
//! interfaces are the traits [`InferenceService`](galatea_infer::InferenceService) and
//! [`ServerControl`](galatea_control::ServerControl).
//!
//! The pure lifecycle in `galatea-policy` chooses the models to serve, and this crate drives it.
//! `galatea-dispatch` executes each version's requests.
//!
//! The engine is not a front end and never sees the bytes of a protocol. It reads no files: models
//! come from a [`LoadableModels`]. It knows no backend by name: a catalog defines models as
//! [`ModelDefinition`](galatea_dispatch::ModelDefinition)s.
//!
//! Start with `server/mod.rs` for requests, and with `manager/mod.rs` for models.
//!
//! # A request
//!
//! [`Server`] finds the version in a `Snapshot` of the `Registry` without taking a lock, and passes
//! the request to its `LoadedModel` (`server/mod.rs`, `registry/snapshot.rs`).
//!
//! # A load
//!
//! `manager/mod.rs` describes the steps of a load and its races.
//!
//! # Example
//!
//! A server without models:
//!
//! ```
//! use std::sync::Arc;
//!
//! use galatea_dispatch::{HostPolicies, LogSink, ModelMetricOptions, RateLimiterMode};
//! use galatea_engine::{
//!     LoadableModels, CatalogModel, ControlMode, NamespaceMode, Server, ServerOptions,
//! };
//! use galatea_control::{LoadParameters, ServerControl};
//! use galatea_infer::AccessPass;
//! use galatea_repository::{ListedModel, LookupResult, ScanResult};
//!
//! struct EmptyCatalog;
//!
//! impl LoadableModels for EmptyCatalog {
//!     fn names(&self) -> Vec<ListedModel> {
//!         Vec::new()
//!     }
//!
//!     fn scan(&self) -> ScanResult<CatalogModel> {
//!         ScanResult::default()
//!     }
//!
//!     fn find(&self, _: &str, _: LoadParameters) -> LookupResult<CatalogModel> {
//!         LookupResult::Missing
//!     }
//! }
//!
//! let server = Server::new(ServerOptions {
//!     name: String::from("triton"),
//!     version: String::from("0"),
//!     strict_readiness: true,
//!     hold_until_queued: 0,
//!     hold_until_backlogged: 0,
//!     parallel_creation: None,
//!     gpu_memory_check: None,
//!     catalog: Arc::new(EmptyCatalog),
//!     control: ControlMode::Explicit,
//!     demand: None,
//!     namespaces: NamespaceMode::None,
//!     load_threads: 4,
//!     load_retries: 0,
//!     cache: None,
//!     host_policies: HostPolicies::default(),
//!     measurements: ModelMetricOptions::default(),
//!     rate_limit: RateLimiterMode::Off,
//!     main_cause_text: None,
//!     ledger: Arc::default(),
//!     log: LogSink::new(|_, _, line| println!("{line}")),
//! })
//! .unwrap();
//! assert!(server.poll_repositories());
//! assert_eq!(server.ready(AccessPass::in_process()), Ok(true));
//! assert!(server.load_model(AccessPass::in_process(), "net", LoadParameters::default()).is_err());
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod agent_lease;
mod catalog;
mod composing;
mod demand;
mod failure;
mod gpu_losses;
mod handle;
mod manager;
mod reaper;
mod registry;
mod server;
#[cfg(test)]
mod testing;

pub use catalog::{CatalogModel, LoadOverride, LoadableModels, ModelOutline};
pub use composing::ensemble_version_error;
pub use demand::{DemandOptions, GpuMemory, GpuMemoryReading, ModelMemoryReading, ProcessMemory};
pub use failure::LoadFailure;
pub use manager::{ControlMode, NamespaceMode};
pub use server::{RemainingUnloads, Server, ServerOptions};
