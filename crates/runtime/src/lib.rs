//! The part of a backend that every in-process runtime shares.
//!
//! A runtime is a framework's shared library that executes models in the server's process, such as
//! ONNX Runtime. A backend for one brings what only it can know:
//!
//! - *library*: the table of functions, opened at run time;
//! - *session*: a loaded model, its tensors' names and types, and a run of it ([`SessionSource`],
//!   [`Session`], [`Outputs`]);
//! - *parameters*: what its configuration may set.
//!
//! Everything else is here, once:
//!
//! - `signature` compares a configuration with its model's [`Interface`] and assigns the tensors to
//!   each other: inputs, controls and states of sequences, batch inputs and outputs, ragged inputs.
//! - `instance` joins the requests of a batch into tensors, runs the session, and splits the
//!   outputs. The only request of a batch is not copied if its bytes are aligned for their type.
//!   Outputs of a fixed-size type are slices of the tensors that the library made.
//! - [`RuntimeModel`] loads a model once for all its instances on the CPU, and once for each
//!   instance on a GPU.
//! - [`LibraryName`] finds the library by flag, environment variable and Python package;
//!   [`auto_complete`] completes a configuration, [`ModelPaths`] finds a model's files,
//!   [`parameters`] reads settings as Triton does, [`threads`] divides the processors among
//!   sessions.
//!
//! A session is a type parameter, so a batch passes through no virtual call, and the compiler sees
//! a library's backend as if this crate were a part of it.
//!
//! # States
//!
//! A state is not copied if the next run can read it where the previous run wrote it. This is the
//! case for a sequence alone in its batch, and for a batch whose rows were rows of one earlier
//! batch in the same order, as with the direct strategy and sequences that continue together. Other
//! batches are gathered like any input. States of strings are always converted, because libraries
//! have their own layouts for them. The memory of paused sequences is bounded; see
//! `instance::state_memory`.
//!
//! A failed run leaves all states as they were, and so does a run whose outputs can't be split. The
//! purpose of `use_same_buffer_for_input_output` is served: a sequence keeps one buffer per state,
//! because a new state replaces the old one, whose memory is freed with the request. Both exist
//! during the run, as in Triton, because a library never writes to a run's inputs.
//!
//! # GPUs
//!
//! A session on a GPU has a stream ([`Session::stream`]). Its inputs are gathered in the GPU's
//! memory by copies on that stream (`instance::staging`), on which the session executes too, so
//! that only the session waits for a copy. Inputs that are already there are used in place. Outputs
//! are bound to the host's memory, and states to the GPU's, where the next request finds them. A
//! library's own descriptions of such memory stay in its backend.
//!
//! # What it is not
//!
//! The crate knows no framework, calls no library, forms no batches, holds no queue and starts no
//! threads.

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod arena;
pub mod auto_complete;
mod batch_input;
mod instance;
mod interface;
mod library_search;
mod machine;
mod model;
mod model_file;
pub mod parameters;
mod region;
mod session;
mod signature;
mod source;
mod switch;
pub mod threads;

pub use instance::copy_failed;
pub use interface::{Batching, ElementKind, Interface, TensorInfo};
pub use library_search::{LibraryName, NamedPaths, SearchPlaces};
pub use machine::Machine;
pub use model::RuntimeModel;
pub use model_file::{ModelPaths, model_path};
pub use region::{ByteRegion, DeviceBytes, is_of_input};
pub use session::{
    DeviceTensor, OutputData, OutputPlace, Outputs, RunOutput, STRING_BYTES, Session, Strings,
};
pub use source::{Opened, Processor, SessionSource};
pub use switch::Switch;
