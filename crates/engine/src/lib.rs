//! The engine: models that come and go, and the requests that find them, behind the
//! traits [`InferenceService`](galatea_infer::InferenceService) and
//! [`ServerControl`](galatea_infer::ServerControl).
//!
//! Which models shall serve is decided by the pure lifecycle of `galatea-policy`; this
//! crate is its driver. How one version executes its requests is the business of
//! `galatea-dispatch`.
//!
//! It is no front end (it never sees bytes of a protocol), reads no file, and
//! knows no backend by name: models come in as
//! [`ModelDefinition`](galatea_dispatch::ModelDefinition)s.
//!
//! The way of a request: [`Server`] finds the model in a snapshot of the registry and
//! hands the request to its version.

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod agent_lease;
mod catalog;
mod composing;
mod failure;
mod handle;
mod manager;
mod reaper;
mod registry;
mod server;
#[cfg(test)]
mod testing;

pub use catalog::{Catalog, CatalogModel, LoadOverride};
pub use composing::version_not_loaded;
pub use failure::LoadFailure;
pub use manager::{ControlMode, Namespaces};
pub use server::{Server, ServerOptions};
