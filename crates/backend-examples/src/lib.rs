//! Two backends without a model framework. They are examples of how to implement the traits in
//! `galatea-backend`, and provide models for tests and measurements.
//!
//! | backend | shows | first file |
//! |---|---|---|
//! | `identity` | the smallest backend: outputs share the buffers of the inputs | `identity/mod.rs` |
//! | `token_counter` | implicit state, decoupled responses, rescheduling | `token_counter/mod.rs` |
//!
//! The backends don't read files or link libraries, and have no queues or threads. As for every
//! backend, the scheduler delivers complete batches.
//!
//! ```
//! use galatea_backend::{Backend, ExecutionPolicy};
//! use galatea_backend_examples::{IdentityBackend, TokenCounterBackend};
//! use galatea_config::SupportedFeatures;
//! use galatea_pbtxt::parse_config_draft;
//!
//! let text = "name: 'm' backend: 'identity'
//!             input { name: 'INPUT0' data_type: TYPE_FP32 dims: [ -1 ] }
//!             output { name: 'OUTPUT0' data_type: TYPE_FP32 dims: [ -1 ] }";
//! let draft = parse_config_draft("config.pbtxt", text).unwrap();
//! let spec = draft.into_validated_spec(&SupportedFeatures::default()).unwrap();
//! assert_eq!(IdentityBackend::default().execution_policy(&spec), ExecutionPolicy::Inline);
//! assert_eq!(TokenCounterBackend.execution_policy(&spec), ExecutionPolicy::Blocking);
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod checks;
mod identity;
#[cfg(test)]
mod testing;
mod token_counter;

pub use crate::identity::{IdentityBackend, InputByteCounter, InputByteCounterFactory};
pub use crate::token_counter::TokenCounterBackend;
