//! The dispatch crate: one loaded version of a model, its queue and the threads that
//! execute its batches.
//!
//! Every decision about queues and batches is made by the pure scheduler of
//! `galatea-policy`; this crate is its driver. It owns the clock, the locks
//! and the threads, and holds no rule about when a batch is due.
//!
//! It never sees bytes of a protocol, reads no file by itself, knows no backend by
//! name, and doesn't know which other models there are: [`Loader`] turns a
//! [`ModelDefinition`] and the files of a version into a [`LoadedModel`].

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod admission;
mod assembly;
mod batch_key;
mod cache;
mod check;
mod classes;
#[cfg(test)]
mod classes_tests;
mod composing;
mod contents;
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
mod model;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod ordering_tests;
mod output_shape;
mod pace;
mod permits;
#[cfg(test)]
mod permits_tests;
mod request_log;
#[cfg(test)]
mod request_log_tests;
mod scheduling;
#[cfg(test)]
mod sequence_tests;
mod statistics;
mod status;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
pub mod testing;
mod timer;
#[cfg(test)]
mod trace_tests;
mod warmup;

pub use cache::LocalCache;
pub use check::{CheckedLimits, CheckedVersion, VersionProblem};
pub use composing::ComposingVersions;
pub use host_policy::HostPolicies;
pub use loader::{InstanceChange, Loader, LoaderOptions, ModelDefinition, NeededModel};
pub use log::{LogSink, refuse};
pub use model::LoadedModel;
pub use permits::{RateLimit, ResourceLimit};

pub(crate) use admission::Admission;
pub(crate) use dispatcher::Dispatcher;
