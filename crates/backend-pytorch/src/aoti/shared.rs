//! A compiled model that all of its instances share.

use std::sync::Arc;

use crate::api::{Container, Library};
use crate::package::CompiledInput;

/// A loaded model, with the information that its sessions need.
pub(crate) struct SharedModel {
    pub(super) library: Arc<Library>,
    pub(super) container: Arc<Container>,
    pub(super) name: String,
    /// The input names in the configuration, in the model's order.
    pub(super) input_names: Vec<String>,
    /// The same for the outputs.
    pub(super) output_names: Vec<String>,
    pub(super) compiled: Vec<CompiledInput>,
    /// The number of threads per operation.
    pub(super) threads: i32,
}
