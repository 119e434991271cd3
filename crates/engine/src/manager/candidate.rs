//! A catalog model that an order or a scan wants to put into service.

use std::collections::BTreeSet;
use std::sync::Arc;

use galatea_policy::{LoadReason, ModelId};

use super::defined_model::DefinedModel;
use crate::catalog::CatalogModel;

/// A model that may become desired.
pub(super) struct CandidateModel {
    pub(super) id: ModelId,
    /// The name that other models use for the candidate.
    pub(super) name: String,
    pub(super) reason: LoadReason,
    /// The names of the models that the candidate needs.
    pub(super) dependencies: BTreeSet<String>,
    pub(super) content: CandidateContent,
}

/// The model that will serve if the candidate becomes desired.
pub(super) enum CandidateContent {
    /// The plan already has this model. The catalog's model has not changed, so it is not defined
    /// again.
    Unchanged(Box<CatalogModel>),
    /// A new definition.
    Defined(Arc<DefinedModel>),
}

impl CandidateModel {
    pub(super) fn defined(
        id: ModelId,
        name: String,
        reason: LoadReason,
        model: DefinedModel,
    ) -> Self {
        let dependencies = model.dependency_names().collect();
        Self { id, name, reason, dependencies, content: CandidateContent::Defined(Arc::new(model)) }
    }

    /// Returns the catalog's model if it has not been defined.
    pub(super) fn into_undefined(self) -> Result<Box<CatalogModel>, Self> {
        match self.content {
            CandidateContent::Unchanged(found) => Ok(found),
            CandidateContent::Defined(_) => Err(self),
        }
    }
}
