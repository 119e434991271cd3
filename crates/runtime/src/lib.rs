//! The part of a backend that every in-process runtime shares.
//!
//! A runtime is a framework's shared library that executes models in the server's process, such as
//! ONNX Runtime. The backend for a runtime provides only the library-specific parts:
//!
//! - *library*: the function table, which is loaded at run time;
//! - *session*: a loaded model, its tensors' names and types, and the means to run it
//!   ([`SessionSource`], [`Session`], [`SessionOutputs`]);
//! - *parameters*: the settings that its configuration supports.
//!
//! This crate implements everything else:
//!
//! - `signature` compares a configuration with its model's [`SessionInterface`] and assigns the
//!   tensors to each other: inputs, controls and states of sequences, batch inputs and outputs,
//!   ragged inputs.
//! - `instance` joins the requests of a batch into tensors, runs the session, and splits the
//!   outputs. If a batch has only one request, its inputs are not copied if they are aligned for
//!   their type. Outputs with a fixed-size type are slices of the tensors that the library created.
//! - [`RuntimeModel`] loads a model once for all of its CPU instances, and once for each GPU
//!   instance.
//! - [`ModelImporter`] is implemented by a runtime that executes models of other frameworks.
//! - [`LibrarySearchSpec`] finds the library by flag, environment variable and Python package,
//!   [`RuntimeOnDemand`] opens it when a model needs it, and [`LibraryFile`] is the file that was
//!   opened. [`auto_complete`] completes a configuration, [`configured`] describes a
//!   configuration's tensors as the model sees them, [`ModelFilesByProcessor`] finds a model's
//!   files, [`parameters`] reads settings as Triton does, and [`threads`] divides the processors
//!   among sessions.
//!
//! The session is a type parameter, so executing a batch involves no virtual calls, and the
//! compiler optimizes a backend as if this crate were part of it.
//!
//! # States
//!
//! A state is not copied if the next run can read it where the previous run wrote it. This is the
//! case for a sequence that is alone in its batch. It is also the case for a batch whose rows were
//! rows of a single earlier batch in the same order, as with the direct strategy and sequences that
//! continue together. The states of other batches are gathered like any input. String states are
//! always converted, because libraries have their own layouts for strings. The memory of paused
//! sequences is bounded; see `instance::state_memory`.
//!
//! A failed run, or a run whose outputs can't be split, leaves all states unchanged. The purpose of
//! `use_same_buffer_for_input_output` is met: a sequence keeps one buffer per state, because a new
//! state replaces the old one, whose memory is freed with the request. As in Triton, both exist
//! during the run, because a library never writes to a run's inputs.
//!
//! # Iteration
//!
//! A request of an iterative sequence is executed again if the output that the parameter
//! `continue_output` names says so. The request then returns to the scheduler with its new states,
//! and a decoupled model's client gets a response in each execution.
//!
//! With the parameter `state_padding`, sequences whose states differ in length share a run: shorter
//! states get zeros at their start, and the new states lose as many elements. Padding at the start
//! lets a model append to its state. Only the first dimension may vary, so the padding of a row and
//! the new state of a row are contiguous, and the latter is a slice of the run's output. States are
//! padded only in host memory, because the arenas for GPUs only join contiguous parts.
//!
//! # GPUs
//!
//! A session on a GPU has a stream ([`Session::stream`]). Its inputs are gathered in GPU memory by
//! copies on that stream (`instance::staging`). The session executes on the same stream, so only
//! the session waits for a copy. Inputs that are already in GPU memory are used in place. Outputs
//! are bound to host memory, and states to GPU memory, where the next request finds them. The
//! library-specific descriptions of such memory stay in the backend.
//!
//! # What it is not
//!
//! The crate doesn't depend on a framework, call a library, form batches, keep a queue or start
//! threads.

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod arena;
pub mod auto_complete;
mod batch_input;
mod c_string;
pub mod configured;
mod import;
mod instance;
mod interface;
mod library_file;
mod library_search;
mod machine;
mod model;
mod model_file;
mod on_demand;
pub mod parameters;
mod region;
mod session;
mod signature;
mod source;
mod switch;
pub mod threads;

pub use c_string::{c_string, path_string};
pub use import::{ImportedModel, ImportedTensor, ImportingLibrary, ModelImporter};
pub use instance::copy_failed_error;
pub use interface::{BatchingSupport, ElementKind, SessionInterface, TensorInfo};
pub use library_file::{LibraryFile, with_causes};
pub use library_search::{LibraryPathOverrides, LibrarySearchPaths, LibrarySearchSpec};
pub use machine::MachineResources;
pub use model::RuntimeModel;
pub use model_file::{ModelFilesByProcessor, model_entry, model_path};
pub use on_demand::RuntimeOnDemand;
pub use region::{ByteRegion, DeviceBytes, overlaps_input};
pub use session::{
    DeviceTensor, OutputData, OutputPlace, OwnedRunOutput, PackedStrings, STRING_BYTES, Session,
    SessionOutputs,
};
pub use signature::check_interface;
pub use source::{CpuOrGpu, OpenedModel, SessionSource};
pub use switch::OnOff;
