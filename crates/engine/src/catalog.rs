//! Where models come from, as the engine sees it.

use std::path::PathBuf;
use std::sync::Arc;

use galatea_infer::{LoadParameters, NameMapping, Status};
use galatea_policy::ModificationTimes;

use crate::ModelDefinition;

/// The models that can be had. Every method may take as long as disks do.
pub trait Catalog: Send + Sync {
    /// The names of all models, sorted.
    fn names(&self) -> Vec<ListedModel>;
    /// Looks at all models.
    fn survey(&self) -> Survey;
    /// Looks at one model. The name may be any text.
    fn find(&self, name: &str, parameters: LoadParameters) -> Sighting;
    /// Looks into this repository too from now on. A catalog without repositories
    /// refuses.
    ///
    /// # Errors
    ///
    /// Why it can't be had, in the original's words.
    fn register(&self, path: &str, names: &[NameMapping]) -> Result<(), Status> {
        let _ = names;
        Err(Status::unsupported(format!("there are no repositories to add '{path}' to")))
    }
    /// Looks into this repository no more.
    ///
    /// # Errors
    ///
    /// As [`Catalog::register`].
    fn unregister(&self, path: &str) -> Result<(), Status> {
        Err(Status::unsupported(format!("there are no repositories to take '{path}' from")))
    }
    /// The last of the loads that were under way is done: what only loading needs may
    /// be given back.
    fn settle(&self) {}
}

/// A model's name, and whether it tells which model is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedModel {
    /// Its namespace, if there are any.
    pub namespace: Option<Arc<str>>,
    /// The name.
    pub name: String,
    /// How many models have it.
    pub uniqueness: Uniqueness,
}

/// How many models have a name.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Uniqueness {
    /// One.
    Unique,
    /// Several; none of them can be loaded.
    Duplicate,
}

/// What a look at all models found.
#[derive(Default)]
pub struct Survey {
    /// The models.
    pub models: Vec<FoundModel>,
    /// Models that are there but can't be taken, by their ids, and why.
    pub refused: Vec<(String, String)>,
    /// Names that several models have.
    pub duplicates: Vec<String>,
    /// Something could not be looked at: what was not found may be there.
    pub is_partial: bool,
}

/// What a look for one model found.
pub enum Sighting {
    /// There is none.
    Missing,
    /// It is there but can't be taken.
    Refused(String),
    /// It is there; with namespaces, perhaps several times.
    Found(Vec<FoundModel>),
}

/// What of a model is not as the repository has it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Overridden {
    /// All is.
    Nothing,
    /// The configuration.
    Configuration,
    /// The configuration and all files.
    Files,
}

/// A model that can be loaded.
pub struct FoundModel {
    /// Its namespace, if there are any.
    pub namespace: Option<Arc<str>>,
    /// Its name.
    pub name: String,
    /// The directory that it is in: its name may come to mean another, whose files are
    /// older.
    pub place: PathBuf,
    /// When its files changed last.
    pub modified: ModificationTimes,
    /// What parameters of the load replace of it.
    pub overridden: Overridden,
    /// Reads its configuration. The error says what is wrong with it.
    pub define: Box<dyn FnOnce() -> Result<ModelDefinition, String> + Send>,
}
