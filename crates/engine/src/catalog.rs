//! The catalog: where the models of a server come from.
//!
//! The engine reads no file. It asks the catalog for the models that there are, in the
//! vocabulary of the crate `repository`, and has those defined that it is going to load.

use std::path::PathBuf;
use std::sync::Arc;

use galatea_control::{LoadParameters, NameMapping};
use galatea_dispatch::ModelDefinition;
use galatea_infer::Status;
use galatea_policy::ModificationTimes;
use galatea_repository::{ListedModel, Lookup, Scan};

/// The models that can be loaded. Every method may take as long as disks do.
pub trait Catalog: Send + Sync {
    /// The names of all models, sorted.
    fn names(&self) -> Vec<ListedModel>;

    /// Reads all models.
    fn scan(&self) -> Scan<CatalogModel>;

    /// Looks up the models of one name. The name may be any text.
    fn find(&self, name: &str, parameters: LoadParameters) -> Lookup<CatalogModel>;

    /// Adds a repository. A catalog without repositories refuses.
    ///
    /// # Errors
    ///
    /// Why it can't be added, in Triton's words.
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

    /// Frees memory that only loads need. Called when the last load under way has ended.
    fn release_memory(&self) {}
}

/// A model that the catalog holds.
pub struct CatalogModel {
    /// Its namespace, if there are any.
    pub namespace: Option<Arc<str>>,
    /// Its name.
    pub name: String,
    /// The directory of its files, behind all links. A model of the same name in another directory is
    /// another model, even if its files are older.
    pub path: PathBuf,
    /// When its files changed last.
    pub modified: ModificationTimes,
    /// The parts of the model that the parameters of the load replace.
    pub overrides: LoadOverride,
    /// Reads its configuration. The error says what is wrong with it.
    pub define: Box<dyn FnOnce() -> Result<ModelDefinition, String> + Send>,
}

/// The parts of the model in the repository that the parameters of a load replace.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum LoadOverride {
    /// Nothing.
    None,
    /// The configuration.
    Configuration,
    /// The configuration and all files.
    Files,
}
