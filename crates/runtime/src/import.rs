//! Models that are executed by a runtime other than their framework's.

use std::path::PathBuf;
use std::sync::Arc;

use galatea_backend::{FileFingerprint, Model, ModelHost};
use galatea_config::ModelSpec;
use galatea_infer::Status;
use galatea_tensor::DataType;

/// A model of another framework. Its own backend has compared it with its configuration.
#[derive(Clone, Debug)]
pub struct ImportedModel {
    /// The file or directory.
    pub path: PathBuf,
    /// The inputs, all of which are required.
    pub inputs: Vec<ImportedTensor>,
    /// The outputs that requests and states need.
    pub outputs: Vec<ImportedTensor>,
    /// The number of threads that execute an operator; if it is 0, the runtime decides.
    pub thread_count: u32,
}

/// An input or output of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedTensor {
    /// The name that clients see.
    pub name: String,
    /// The name in the framework's graph.
    pub graph_name: String,
    /// The element type.
    pub datatype: DataType,
    /// The sizes, including the batch size; -1 means variable. If the file doesn't specify the
    /// sizes, they are the configuration's.
    pub dims: Vec<i64>,
}

/// A runtime that can read other frameworks' models.
pub trait ModelImporter: Send + Sync {
    /// The runtime's name and version, for log messages.
    fn description(&self) -> String;

    /// Loads a model, using the precision of its framework.
    ///
    /// [`Model::underlying`] of the result is an [`ImportingLibrary`].
    ///
    /// # Errors
    ///
    /// The reason why the runtime can't execute the model, such as a missing operator.
    fn load_imported(
        &self,
        model: ImportedModel,
        spec: Arc<ModelSpec>,
        host: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn Model>, Status>;
}

/// The library that executes an imported model.
#[derive(Clone, Debug)]
pub struct ImportingLibrary {
    /// The library's version.
    pub version: String,
    /// The file that was opened; `None` if its fingerprint is unknown.
    pub file: Option<FileFingerprint>,
}
