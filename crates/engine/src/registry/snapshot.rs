//! A snapshot of the models, as requests see them.

use std::collections::BTreeMap;
use std::sync::Arc;

use galatea_control::{ModelState, RepositoryEntry};
use galatea_dispatch::LoadedModel;
use galatea_infer::Status;
use galatea_policy::{ModelId, model_id, name_of_model_id};
use galatea_repository::ListedModel;

use super::entry::{ModelEntry, VersionEntry};
use super::names::{Models, NameMeaning, NameTable};
use crate::handle::ModelHandle;

/// The reason why a model that is in several repositories isn't ready.
const DUPLICATE: &str = "model appears in two or more repositories";

/// Every model by id.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(super) models: Models,
    /// The name table; `Some` with namespaces.
    pub(super) names: Option<NameTable>,
}

impl Snapshot {
    /// Finds the requested version, or the newest ready one if none is requested.
    ///
    /// # Errors
    ///
    /// `NotFound` if the name or version is unknown or no version is ready; `Unavailable` if the
    /// requested version isn't ready.
    pub(crate) fn find(
        &self,
        name: &str,
        version: Option<i64>,
    ) -> Result<&Arc<ModelHandle>, Status> {
        let unknown = |why: String| Status::not_found(format!("Request for unknown model: {why}"));
        let (name, model) = self.entry(name)?;
        let Some(version) = version else {
            let newest = model.versions.values().rev().find_map(|entry| entry.model.as_ref());
            return newest.ok_or_else(|| unknown(format!("'{name}' has no available versions")));
        };
        let entry = model
            .versions
            .get(&version)
            .ok_or_else(|| unknown(format!("'{name}' version {version} is not found")))?;
        entry.model.as_ref().ok_or_else(|| {
            Status::unavailable(format!(
                "Request for unknown model: '{name}' version {version} is not at ready state"
            ))
        })
    }

    /// Returns the model that a request's name refers to, and the model's name for messages. The
    /// messages and codes are Triton's.
    fn entry<'s: 't, 'n: 't, 't>(
        &'s self,
        name: &'n str,
    ) -> Result<(&'t str, &'s ModelEntry), Status> {
        let not_found = || format!("Request for unknown model: '{name}' is not found");
        let Some(names) = &self.names else {
            let entry = self.models.get(name).ok_or_else(|| Status::not_found(not_found()))?;
            return Ok((name, entry));
        };
        match names.get(name) {
            Some(NameMeaning::One(id, Some(entry))) => Ok((id, entry)),
            Some(NameMeaning::One(id, None)) => {
                Err(Status::not_found(format!("Request for unknown model: '{id}' is not found")))
            }
            Some(NameMeaning::Several(count)) => Err(Status::invalid_argument(format!(
                "There are {count} identifiers of model '{name}' in global map, model namespace \
                 must be provided to resolve ambiguity."
            ))),
            Some(NameMeaning::None) => Err(Status::not_found(format!(
                "Identifier of model '{name}' is not found in global map"
            ))),
            None => Err(Status::invalid_argument(not_found())),
        }
    }

    /// The version `version` of the model with this id, if it is ready.
    pub(crate) fn ready_version(&self, id: &str, version: i64) -> Option<&Arc<ModelHandle>> {
        self.models.get(id)?.versions.get(&version)?.model.as_ref()
    }

    /// The ready versions, in ascending order, of the model that a request's name refers to.
    pub(crate) fn ready_of_named(&self, name: &str) -> impl Iterator<Item = &Arc<ModelHandle>> {
        let entry = match &self.names {
            None => self.models.get(name),
            Some(names) => match names.get(name) {
                Some(NameMeaning::One(_, entry)) => entry.as_ref(),
                Some(NameMeaning::Several(_) | NameMeaning::None) | None => None,
            },
        };
        entry.into_iter().flat_map(|entry| entry.ready())
    }

    /// The ready versions, in ascending order, of the model with this id.
    pub(crate) fn ready_of(&self, id: &str) -> impl Iterator<Item = &Arc<ModelHandle>> {
        self.models.get(id).into_iter().flat_map(|entry| entry.ready())
    }

    /// The ready version numbers of the model with this id.
    pub(crate) fn ready_versions(&self, id: &str) -> Vec<i64> {
        self.ready_of(id).map(|model| model.version()).collect()
    }

    /// The ids of all models.
    pub(crate) fn ids(&self) -> impl Iterator<Item = &Arc<str>> {
        self.models.keys()
    }

    /// The ids of models that have no version that was ever tried.
    pub(crate) fn untried_ids(&self) -> impl Iterator<Item = &Arc<str>> {
        self.models.iter().filter(|(_, model)| model.versions.is_empty()).map(|(id, _)| id)
    }

    /// Returns true if no version of the model with this id is in service or still has requests.
    pub(crate) fn is_gone(&self, id: &str) -> bool {
        let is_gone = |entry: &VersionEntry| {
            let draining = entry.draining.as_ref();
            entry.model.is_none() && draining.is_none_or(|model| model.strong_count() == 0)
        };
        self.models.get(id).is_none_or(|model| model.versions.values().all(is_gone))
    }

    /// The number of models whose load failure prevents the server from being ready.
    pub(crate) fn failed_count(&self) -> usize {
        self.models.values().filter(|model| !model.is_ready()).count()
    }

    /// Returns true if a model with this id was ever ordered.
    pub(crate) fn has_model(&self, id: &str) -> bool {
        self.models.contains_key(id)
    }

    /// All ready versions of all models.
    pub(crate) fn ready(&self) -> impl Iterator<Item = &Arc<ModelHandle>> {
        self.versions().filter_map(|entry| entry.model.as_ref())
    }

    /// All versions that are out of service and still have requests.
    pub(crate) fn draining(&self) -> impl Iterator<Item = Arc<LoadedModel>> {
        self.versions().filter_map(|entry| entry.draining.as_ref()?.upgrade())
    }

    fn versions(&self) -> impl Iterator<Item = &VersionEntry> {
        self.models.values().flat_map(|model| model.versions.values())
    }

    /// Returns true if all models are ready.
    pub(crate) fn all_ready(&self) -> bool {
        self.models.values().all(|model| model.is_ready())
    }

    /// The repository index: the models listed by the repositories, and unlisted models that are
    /// serving or have failed.
    pub(crate) fn index(&self, listed: &[ListedModel], only_ready: bool) -> Vec<RepositoryEntry> {
        let shown = |id| if self.names.is_some() { name_of_model_id(id) } else { id };
        let mut models: BTreeMap<ModelId, (&str, bool)> = BTreeMap::new();
        for (id, model) in &self.models {
            let is_active = |entry: &VersionEntry| entry.state != ModelState::Unavailable;
            if model.versions.values().any(is_active) || !model.is_ready() {
                models.insert(id.clone(), (shown(id), false));
            }
        }
        for model in listed {
            let id = model_id(model.namespace.as_deref(), &model.name);
            models.insert(id, (&model.name, model.is_duplicate));
        }
        let mut lines = Vec::new();
        for (id, (name, is_duplicate)) in &models {
            match (self.models.get(id), is_duplicate) {
                (_, true) => lines.push(RepositoryEntry {
                    name: (*name).to_owned(),
                    version: None,
                    state: Some(ModelState::Unavailable),
                    reason: String::from(DUPLICATE),
                }),
                (None, false) if only_ready => {}
                (None, false) => lines.push(RepositoryEntry {
                    name: (*name).to_owned(),
                    version: None,
                    state: None,
                    reason: String::new(),
                }),
                (Some(model), false) => model.list(name, only_ready, &mut lines),
            }
        }
        lines
    }
}
