//! The backend `onnxruntime`: executes ONNX models with ONNX Runtime's shared
//! library, which is opened at run time and called through its C API.
//!
//! - [`Library`] opens the library that it is given a path of. Where that path
//!   comes from is the server's business; no library is linked or shipped.
//! - [`OnnxRuntimeBackend`] loads models, completes configurations from them
//!   and refuses configurations that they contradict.
//! - An instance joins the requests of a batch. A request that is a batch of
//!   its own is not copied if its bytes lie where their type may be read, and
//!   outputs of a fixed-size type are handed on as slices of the tensors that
//!   the library made.
//! - Inputs with `allow_ragged_batch` are joined in one dimension, and what
//!   `batch_input` asks for is made of their shapes.
//! - Controls of the sequence batcher come as inputs of the requests, and so
//!   do the states of sequences. An output that is a state goes back to its
//!   sequence, whether or not a client wants it.
//! - Libraries with operators, which `model_operations` names, are registered
//!   with each session of the model. They are never closed.
//!
//! # States
//!
//! A state is not copied: the next run reads it where the last one wrote it.
//! That is so for a sequence alone in its batch, and for a batch whose rows
//! were rows of one earlier batch in the same order, which is what the direct
//! strategy makes of sequences that go on together. Other batches are gathered
//! like any input. States of strings are always converted, as the library has
//! a layout of its own for them. How much memory paused sequences may hold is
//! bounded; see `instance::state_memory`.
//!
//! A failed run, or one whose outputs can't be split, leaves all states as
//! they were. `use_same_buffer_for_input_output` is honoured in what it is
//! for, that a sequence does not keep two buffers for a state: a new state
//! takes the place of the old one, whose memory is given back with the
//! request. The library never writes into a run's inputs, so during the run
//! both are there, as they are in Triton.
//!
//! What this is not: it makes no batches, keeps no queue and has no thread of
//! its own (the library has; the settings say how many). Tensors in GPU memory
//! are not its business yet and are refused.
//!
//! All `unsafe` code is in the module `api`.

#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod accelerators;
mod api;
mod backend;
mod batch_input;
mod complete;
mod instance;
mod model;
mod op_libraries;
mod operators;
mod parameters;
mod settings;
mod signature;
mod threads;

pub use api::Library;
pub use backend::{BackendOptions, LogFunction, OnnxRuntimeBackend};
