//! The catalog: the source of a server's models.
//!
//! The engine reads no files. It asks the catalog for the available models, in the types of the
//! crate `repository`, and has it define those that are about to be loaded.

use std::path::PathBuf;
use std::sync::Arc;

use galatea_control::{LoadParameters, NameMapping};
use galatea_dispatch::ModelDefinition;
use galatea_infer::Status;
use galatea_policy::ModificationTimes;
use galatea_repository::{ListedModel, Lookup, Scan};

/// The loadable models. Every method may block for disk I/O.
pub trait Catalog: Send + Sync {
    /// The sorted names of all models.
    fn names(&self) -> Vec<ListedModel>;

    /// Reads all models.
    fn scan(&self) -> Scan<CatalogModel>;

    /// Looks up the models with a name. The name may be any text.
    fn find(&self, name: &str, parameters: LoadParameters) -> Lookup<CatalogModel>;

    /// Adds a repository. A catalog without repositories refuses this.
    ///
    /// # Errors
    ///
    /// The reason why it can't be added, in Triton's words.
    fn register(&self, path: &str, names: &[NameMapping]) -> Result<(), Status> {
        let _ = names;
        Err(Status::unsupported(format!("there are no repositories to add '{path}' to")))
    }

    /// Removes a repository.
    ///
    /// # Errors
    ///
    /// As [`Catalog::register`].
    fn unregister(&self, path: &str) -> Result<(), Status> {
        Err(Status::unsupported(format!("there are no repositories to take '{path}' from")))
    }

    /// Frees memory that only loads need. Called when the last load in progress has ended.
    fn release_memory(&self) {}
}

/// A model in the catalog.
pub struct CatalogModel {
    /// The model's namespace, if namespaces are on.
    pub namespace: Option<Arc<str>>,
    /// The model's name.
    pub name: String,
    /// The directory of its files, with all links resolved. A model of the same name in another
    /// directory is another model, even if its files are older.
    pub path: PathBuf,
    /// The modification times of the model's files.
    pub modified: ModificationTimes,
    /// The parts of the model that the load's parameters replace.
    pub overrides: LoadOverride,
    /// Reads the model's configuration. The error describes the fault in it.
    pub define: Box<dyn FnOnce() -> Result<ModelDefinition, String> + Send>,
}

/// The parts of the repository's model that a load's parameters replace.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum LoadOverride {
    /// Nothing.
    None,
    /// The configuration.
    Configuration,
    /// The configuration and all files.
    Files,
}
