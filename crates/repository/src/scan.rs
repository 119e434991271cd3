//! Repository contents, as reported by a scan or a lookup.
//!
//! The types are generic over the model, because a reader of the same repositories may know more
//! about a model than its directory reveals: a server's catalog adds the model's definition.

use std::sync::Arc;

use thiserror::Error;

use crate::source::ScannedModel;

/// The result of a scan of all repositories.
#[derive(Debug)]
pub struct ScanResult<M = ScannedModel> {
    /// The models, sorted by name.
    pub models: Vec<M>,
    /// The parts that could not be read.
    pub problems: Vec<ScanProblem>,
}

/// The result of a lookup of one name.
#[derive(Debug)]
pub enum LookupResult<M = ScannedModel> {
    /// No repository has a model with that name.
    Missing,
    /// The models with that name. Only namespaces allow more than one.
    Models(Vec<M>),
    /// A model with that name exists, but can't be loaded.
    Problem(ScanProblem),
}

/// A reason why a model can't be loaded or a repository can't be listed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ScanProblem {
    /// A repository can't be listed.
    #[error("failed to poll model repository '{path}': {reason}")]
    Repository {
        /// The path of the repository.
        path: String,
        /// The reason why it can't be listed.
        reason: String,
    },
    /// Several repositories have a model with that name. None of them is loaded.
    #[error("failed to poll model '{name}': not unique across all model repositories")]
    Duplicate {
        /// The name of the models.
        name: String,
    },
    /// A model's directory can't be read.
    #[error("failed to poll model '{name}': {reason}")]
    Model {
        /// The model's name or, with namespaces, its id. An invalid name is escaped.
        name: String,
        /// The reason why it can't be read.
        reason: String,
    },
}

/// An entry in the list of all models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedModel {
    /// The model's namespace, if namespaces are on.
    pub namespace: Option<Arc<str>>,
    /// The model's name.
    pub name: String,
    /// True if several repositories have a model with this name, so none of them can be loaded.
    pub is_duplicate: bool,
}

impl<M> Default for ScanResult<M> {
    fn default() -> Self {
        Self { models: Vec::new(), problems: Vec::new() }
    }
}

impl<M> ScanResult<M> {
    /// Replaces each model of the scan.
    pub fn map<N>(self, replace: impl FnMut(M) -> N) -> ScanResult<N> {
        ScanResult {
            models: self.models.into_iter().map(replace).collect(),
            problems: self.problems,
        }
    }
}

impl<M> LookupResult<M> {
    /// Replaces each model of the lookup.
    pub fn map<N>(self, replace: impl FnMut(M) -> N) -> LookupResult<N> {
        match self {
            Self::Missing => LookupResult::Missing,
            Self::Models(models) => LookupResult::Models(models.into_iter().map(replace).collect()),
            Self::Problem(problem) => LookupResult::Problem(problem),
        }
    }
}
