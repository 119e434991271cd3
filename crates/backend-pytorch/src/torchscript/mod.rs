//! TorchScript models (`pytorch_libtorch`), which are executed through a shim that is compiled for
//! the installed PyTorch.

mod compile;
mod interface;
mod session;
mod signature;
mod source;

pub(crate) use compile::{ShimFolder, open_shim};
pub(crate) use signature::ScriptSignature;
pub(crate) use source::TorchScriptSource;
