//! The tensors that a configuration exchanges with its model.
//!
//! Models of PyTorch hardly describe their tensors, so the configuration does.

pub(crate) use galatea_runtime::configured::{
    ConfiguredTensor, TensorRole as Role, configured_inputs, configured_outputs,
};
