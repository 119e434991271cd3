//! TorchScript models (`pytorch_libtorch`), which are executed through a shim that is compiled for
//! the installed PyTorch.

mod compile;
mod interface;
mod predictable;
mod session;
mod signature;
mod source;
mod worker;

pub(crate) use compile::{CompileError, ShimError, ShimFolder, open_shim};
pub(crate) use signature::ScriptSignature;
pub(crate) use source::TorchScriptSource;
pub(crate) use worker::{description_job, worker_job};
