//! The backend `onnxruntime`: executes ONNX models with ONNX Runtime's shared library, which
//! is opened at run time and called through its C API.
//!
//! - [`Library`] opens the library at a path. The server finds the path; no library is linked
//!   or shipped.
//! - [`OnnxRuntimeBackend`] loads models, completes configurations from them, and refuses
//!   configurations that contradict their model. Start reading in `backend` and `model`.
//! - An instance (`instance`) joins the requests of a batch into tensors, runs the session, and
//!   splits the outputs. The only request of a batch is not copied if its bytes are aligned for
//!   their type. Outputs of a fixed-size type are slices of the tensors that the library made.
//! - Inputs with `allow_ragged_batch` are joined in one dimension. Batch inputs
//!   (`batch_input`) are computed from the shapes.
//! - Controls of the sequence batcher and states of sequences are inputs of the requests. An output
//!   that is a state returns to its sequence even if the client doesn't want it.
//! - Libraries with operators (`op_libraries`) are registered with each session of the models that
//!   name them. They are never closed.
//! - `threads` decides which sessions share the environment's thread pool.
//! - `graph` decides whether a model may execute inline.
//!
//! # States
//!
//! A state is not copied if the next run can read it where the previous run wrote it. This is the
//! case for a sequence alone in its batch, and for a batch whose rows were rows of one earlier
//! batch in the same order, as with the direct strategy and sequences that continue together. Other
//! batches are gathered like any input. States of strings are always converted, because the library
//! has its own layout for them. The memory of paused sequences is bounded; see
//! `instance::state_memory`.
//!
//! A failed run leaves all states as they were, and so does a run whose outputs can't be split. The
//! purpose of `use_same_buffer_for_input_output` is served: a sequence keeps one buffer per state,
//! because a new state replaces the old one, whose memory is freed with the request. Both exist
//! during the run, as in Triton, because the library never writes to a run's inputs.
//!
//! # What it is not
//!
//! The backend forms no batches, holds no queue and starts no threads; the library starts threads,
//! and the settings determine how many.
//!
//! # GPUs
//!
//! An instance on a GPU has a session and a stream of its own, as in Triton (`api::device`,
//! `instance::executor`). Its inputs are gathered in the GPU's memory by copies on that stream
//! (`instance::staging`), on which the session executes too, so that only the session waits for a
//! copy. Inputs that are already there are used in place. Outputs are bound to the host's memory,
//! and states to the GPU's, where the next request finds them. `failure` recognizes the errors
//! after which a GPU is lost.
//!
//! All `unsafe` code is in the module `api`.

#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod accelerators;
mod api;
mod auto_complete;
mod backend;
mod batch_input;
mod failure;
mod graph;
mod instance;
mod model;
mod model_file;
mod op_libraries;
mod parameters;
mod settings;
mod signature;
mod threads;

pub use api::{Library, LogFunction};
pub use backend::{BackendOptions, OnnxRuntimeBackend};
