//! The catalog: the source of a server's models.
//!
//! The engine reads no files. It asks the catalog for the available models, which it receives as
//! types of the `repository` crate, and has the catalog define the models that are about to be
//! loaded.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use galatea_control::{LoadParameters, ModelNameMapping};
use galatea_dispatch::ModelDefinition;
use galatea_infer::Status;
use galatea_policy::{MemoryByPool, MemoryPoolId, ModificationTimes};
use galatea_repository::{ListedModel, LookupResult, ScanResult};

/// The models that can be loaded. Every method may block on disk I/O.
pub trait LoadableModels: Send + Sync {
    /// The sorted names of all models.
    fn names(&self) -> Vec<ListedModel>;

    /// Reads all models.
    fn scan(&self) -> ScanResult<CatalogModel>;

    /// Looks up the models with this name, which may be any string.
    fn find(&self, name: &str, parameters: LoadParameters) -> LookupResult<CatalogModel>;

    /// Returns a model's cost and the models that it needs, without loading or defining it. `None`
    /// if there is no such model. The model of a catalog without files costs nothing.
    fn outline(&self, name: &str) -> Option<ModelOutline> {
        let is_known = self.names().iter().any(|listed| listed.name == name);
        is_known.then(ModelOutline::default)
    }

    /// Adds a repository. A catalog without repositories returns an error.
    ///
    /// # Errors
    ///
    /// The reason why the repository can't be added, in Triton's words.
    fn register(&self, path: &str, names: &[ModelNameMapping]) -> Result<(), Status> {
        let _ = names;
        Err(Status::unsupported(format!("there are no repositories to add '{path}' to")))
    }

    /// Removes a repository.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`LoadableModels::register`].
    fn unregister(&self, path: &str) -> Result<(), Status> {
        Err(Status::unsupported(format!("there are no repositories to take '{path}' from")))
    }

    /// Frees memory that only loads need. Called when the last load in progress has ended.
    fn release_memory(&self) {}
}

/// A model's cost and the models that it needs, as far as its files reveal them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ModelOutline {
    /// The sizes of the files of all versions to be served, in bytes.
    pub bytes: u64,
    /// The number of instances on each GPU that the configuration names.
    pub gpu_instances: BTreeMap<u16, u32>,
    /// The names of the models that it needs.
    pub dependencies: Vec<String>,
}

impl ModelOutline {
    /// The estimated memory: the files in host memory, and once for each instance on a GPU.
    pub(crate) fn memory(&self) -> MemoryByPool {
        let host = MemoryByPool::host(self.bytes);
        self.gpu_instances.iter().fold(host, |bytes, (gpu, count)| {
            bytes.with(MemoryPoolId::gpu(*gpu), self.bytes.saturating_mul(u64::from(*count)))
        })
    }
}

/// A model in the catalog.
pub struct CatalogModel {
    /// The model's namespace, if namespaces are on.
    pub namespace: Option<Arc<str>>,
    /// The model's name.
    pub name: String,
    /// The directory of the model's files, with all symbolic links resolved. A model with the same
    /// name in another directory is a different model, even if its files are older.
    pub path: PathBuf,
    /// The modification times of the model's files.
    pub modified: ModificationTimes,
    /// The parts of the model that the load parameters override.
    pub overrides: LoadOverride,
    /// Reads the model's configuration. The error describes what is wrong with it.
    pub define: Box<dyn FnOnce() -> Result<ModelDefinition, String> + Send>,
}

/// The parts of a repository's model that the load parameters override.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum LoadOverride {
    /// Nothing is overridden.
    None,
    /// The configuration is overridden.
    Configuration,
    /// The configuration and all files are overridden.
    Files,
}
