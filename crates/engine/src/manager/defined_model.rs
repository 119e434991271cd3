//! A model whose configuration has been read, so it is ready to be loaded.

use std::path::{Path, PathBuf};

use galatea_dispatch::ModelDefinition;
use galatea_infer::Status;
use galatea_policy::ModificationTimes;

use crate::agent_lease::AgentLeaseSlot;
use crate::catalog::{CatalogModel, LoadOverride};
use crate::reaper::Reaper;

/// Returns a copy of the text, with paths inside a directory made relative to that directory.
pub(super) fn without_directory(text: &str, directory: &Path) -> String {
    if directory.as_os_str().is_empty() {
        return text.to_owned();
    }
    text.replace(&format!("{}/", directory.display()), "")
}

/// A model definition and its origin.
pub(crate) struct DefinedModel {
    pub(crate) definition: ModelDefinition,
    /// The directory of the model's files.
    path: PathBuf,
    pub(super) modified: ModificationTimes,
    pub(super) overrides: LoadOverride,
    /// The model's repository agents.
    pub(super) agents: AgentLeaseSlot,
}

impl DefinedModel {
    /// Defines a model from the catalog. This may read files and ask repository agents.
    ///
    /// # Errors
    ///
    /// The mistakes in its configuration.
    pub(super) fn define(found: CatalogModel, reaper: &Reaper) -> Result<Self, String> {
        let CatalogModel { path, modified, overrides, define, .. } = found;
        let mut definition = define()?;
        let agents = AgentLeaseSlot::new(definition.agents.take(), reaper);
        Ok(Self { definition, path, modified, overrides, agents })
    }

    /// Creates a model that doesn't come from the catalog and is reloaded with each order.
    pub(super) fn without_catalog(mut definition: ModelDefinition, reaper: &Reaper) -> Self {
        let agents = AgentLeaseSlot::new(definition.agents.take(), reaper);
        let (path, modified) = (PathBuf::new(), ModificationTimes::default());
        Self { definition, path, modified, overrides: LoadOverride::Files, agents }
    }

    /// Returns the reason for a load failure, in a form that clients may see. Hides the location of
    /// configurations, and of files that came with a load. Backend messages still name files in a
    /// repository, as in Triton.
    pub(super) fn shown_failure(&self, status: Status) -> Status {
        let text = match self.overrides {
            LoadOverride::None | LoadOverride::Configuration => {
                let configs = format!("{}/config", self.path.display());
                status.message().replace(&configs, "config")
            }
            LoadOverride::Files => without_directory(status.message(), &self.path),
        };
        Status::new(status.code(), text)
    }

    /// The names of the models that this model needs.
    pub(super) fn dependency_names(&self) -> impl Iterator<Item = String> {
        self.definition.needed_models().into_iter().map(|needed| needed.name)
    }

    /// Returns true if defining the catalog's current model would yield the same model.
    pub(super) fn is_current(&self, found: &CatalogModel) -> bool {
        found.overrides == LoadOverride::None
            && self.path == found.path
            && !found.modified.is_newer_than(&self.modified)
            && !self.agents.is_expired()
    }

    /// Returns true if both models take their files from the same repository directory, where
    /// modification times reveal which versions have changed.
    pub(super) fn shares_files_with(&self, other: &Self) -> bool {
        self.overrides != LoadOverride::Files
            && other.overrides != LoadOverride::Files
            && self.path == other.path
    }
}
