//! The OpenAI endpoint: chats, completions, embeddings and models over OpenAI's API, served in the
//! same way as by Triton's frontend.
//!
//! `galatea-openai` reads the bodies and writes the documents and events. This module connects it
//! to the connection, the gate, the server and the clock.

mod adapters;
mod begin;
mod charged_inputs;
mod combined;
mod endpoint;
mod identifiers;
mod known_models;
mod meters;
mod model_times;
mod models;
mod options;
mod prepare;
mod responses;
mod route;
mod sink;

pub(crate) use combined::CombinedEndpoint;
pub(crate) use endpoint::OpenAi;
pub use meters::OpenAiMeters;
pub use options::{AdapterFiles, AdapterSource, OpenAdapter, OpenAiOptions, ReadAdapter};
pub(crate) use responses::too_large;
