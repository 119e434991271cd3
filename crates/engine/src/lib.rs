//! The engine: loaded models, their queues and the threads that execute
//! them, behind the traits [`InferenceService`](galatea_infer::InferenceService)
//! and [`ServerControl`](galatea_infer::ServerControl).
//!
//! Every decision about queues and batches is made by the pure scheduler of
//! `galatea-policy`; this crate is its driver. It owns the clock, the locks
//! and the threads, and holds no rule about when a batch is due.
//!
//! It is no front end (it never sees bytes of a protocol), reads no file, and
//! knows no backend by name: models come in as [`ModelDefinition`]s.
//!
//! The way of a request: [`Server`] finds the model in a snapshot of the
//! registry, [`admission`](Admission) checks it against the configuration,
//! and the model's [`Dispatcher`] queues it until the scheduler hands it, in
//! a batch, to a lane.

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod admission;
mod assembly;
mod batch_key;
mod cache;
mod catalog;
mod check;
mod classes;
#[cfg(test)]
mod classes_tests;
mod composing;
mod contents;
mod control;
mod dispatcher;
#[cfg(test)]
mod driving_tests;
#[cfg(test)]
mod errand_tests;
mod forecast;
mod host_policy;
mod initial_state;
mod instances;
#[cfg(test)]
mod instances_tests;
mod lane;
mod loader;
#[cfg(test)]
mod loading_tests;
mod log;
mod manager;
#[cfg(test)]
mod manager_tests;
mod model;
#[cfg(test)]
mod ordering_tests;
mod output_shape;
mod pace;
mod permits;
#[cfg(test)]
mod permits_tests;
mod registry;
mod request_log;
#[cfg(test)]
mod request_log_tests;
mod retire;
mod scheduling;
#[cfg(test)]
mod sequence_tests;
mod server;
#[cfg(test)]
mod server_tests;
mod statistics;
mod status;
mod tenure;
#[cfg(test)]
mod testing;
mod timer;
#[cfg(test)]
mod trace_tests;
mod warmup;

pub use admission::{Admission, Admitted};
pub use cache::LocalCache;
pub use catalog::{Catalog, CatalogModel, LoadOverride};
pub use check::{CheckedLimits, CheckedVersion, VersionProblem};
pub use composing::version_not_loaded;
pub use dispatcher::Dispatcher;
pub use host_policy::HostPolicies;
pub use loader::{LoadFailure, ModelDefinition};
pub use manager::{ControlMode, Namespaces};
pub use model::LoadedModel;
pub use permits::{RateLimit, ResourceLimit};
pub use server::{Server, ServerOptions};

pub use log::LogSink;
