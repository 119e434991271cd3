//! The tensors that a configuration exchanges with its model.
//!
//! PyTorch models barely describe their tensors, so the configuration describes them.

pub(crate) use galatea_runtime::configured::{
    ConfiguredTensor, TensorRole as Role, configured_inputs, configured_outputs,
};
