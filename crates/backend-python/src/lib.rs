//! Python models. Each instance has a process that executes a `model.py` file for Triton's Python
//! backend.
//!
//! This crate implements the server's side. The worker is Python code in `workers/python`, which is
//! embedded in the program. Sockets and two shared-memory areas connect the two:
//!
//! | what | carries | who reads |
//! |---|---|---|
//! | sockets of executions, one each way | batches and their results, calls of other models while a batch executes | the instance's thread (`worker/execution.rs`) |
//! | second socket | responses of senders, other calls, log lines, metrics, cancellations | the supervisor's thread (`supervisor.rs`) |
//! | arena of inputs | tensors that are too long for a frame | the worker, in place |
//! | arena of outputs | the same back | the server, which copies them |
//!
//! The server copies data from shared memory before examining it (`arena.rs`), and never trusts a
//! message (`wire/mod.rs`). If a worker sends a malformed message, hangs or dies, the requests that
//! it holds fail with an error, and the worker is restarted.

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod arena;
mod backend;
mod blocks;
mod confinement;
mod folders;
mod gpus;
mod held;
mod instance;
mod interpreter;
mod link;
mod messages;
#[cfg(any(test, feature = "fuzzing"))]
mod nonsense;
mod options;
mod process;
mod server;
mod slot;
mod sources;
mod supervisor;
mod template;
mod tensors;
mod wire;
mod worker;

pub use backend::PythonBackend;
pub use confinement::Confinement;
#[cfg(feature = "fuzzing")]
pub use nonsense::fuzz_worker_messages as serve_nonsense;
pub use options::{BackendScript, PythonBasedBackend, PythonOptions};
pub use server::{CustomMetric, CustomMetricFamily, CustomMetricKind, ServerAccess};
pub use sources::SuppliedScript;
