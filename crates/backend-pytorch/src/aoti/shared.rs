//! A compiled model that all of its instances share.

use std::sync::Arc;

use super::shapes::CompiledShapes;
use crate::api::{Container, Library};

/// A loaded model, with the information that its sessions need.
pub(crate) struct SharedModel {
    pub(super) library: Arc<Library>,
    pub(super) container: Arc<Container>,
    /// The names of the outputs in the configuration, in the model's order.
    pub(super) output_names: Vec<String>,
    pub(super) shapes: CompiledShapes,
    /// The number of threads per operation.
    pub(super) threads: i32,
}
