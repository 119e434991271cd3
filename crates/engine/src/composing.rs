//! The composing models that an ensemble was loaded with.

use std::collections::BTreeMap;
use std::sync::Arc;

use galatea_backend::ComposingModels;
use galatea_config::ModelSpec;
use galatea_dispatch::{ComposingVersions, LoadedModel, NeededModel};
use galatea_infer::{AccessPass, InferenceRequest, InferenceService, ResponseSender, Status, api};
use galatea_policy::ModelId;

use crate::handle::ModelHandle;
use crate::registry::Snapshot;

/// The versions that execute an ensemble's steps. They stay the same for the ensemble's whole life.
/// A version that is replaced or taken out of service keeps serving the ensemble, so no request
/// changes models halfway.
#[derive(Debug)]
pub(crate) struct PinnedModels {
    models: BTreeMap<String, BTreeMap<i64, Arc<ModelHandle>>>,
}

impl PinnedModels {
    /// Pins the ready versions of the models that the ensemble `id` needs. `dependencies` maps the
    /// names of these models to their ids.
    ///
    /// # Errors
    ///
    /// The required models that are missing, in Triton's words.
    pub(crate) fn new(
        id: &str,
        needed: &[NeededModel],
        dependencies: &BTreeMap<String, ModelId>,
        snapshot: &Snapshot,
    ) -> Result<Self, Status> {
        let mut models: BTreeMap<String, BTreeMap<i64, Arc<ModelHandle>>> = BTreeMap::new();
        for need in needed {
            let need_id = dependencies.get(&need.name).map_or(need.name.as_str(), |id| id);
            let ready = || snapshot.ready_of(need_id).map(|model| (model.version(), model.clone()));
            let versions = models.entry(need.name.clone()).or_insert_with(|| ready().collect());
            let depends = format!("ensemble '{id}' depends on '{need_id}'");
            if versions.is_empty() {
                let text = format!("{depends} which has no loaded version.");
                return Err(Status::invalid_argument(text));
            }
            if let Some(version) = need.version.filter(|version| !versions.contains_key(version)) {
                return Err(ensemble_version_error(id, need_id, version));
            }
        }
        Ok(Self { models })
    }

    fn find(&self, name: &str, version: Option<i64>) -> Option<&Arc<ModelHandle>> {
        let versions = self.models.get(name)?;
        match version {
            Some(version) => versions.get(&version),
            None => versions.last_key_value().map(|(_, model)| model),
        }
    }
}

/// The error for an ensemble that needs a missing version of a model. The message is Triton's.
#[must_use]
pub fn ensemble_version_error(ensemble: &str, model: &str, version: i64) -> Status {
    Status::invalid_argument(format!(
        "ensemble '{ensemble}' depends on '{model}' whose required version {version} is not loaded."
    ))
}

impl InferenceService for PinnedModels {
    fn infer(
        &self,
        _: AccessPass<api::Inference>,
        request: Box<InferenceRequest>,
        sender: ResponseSender,
    ) {
        match self.find(&request.model_name, request.model_version) {
            Some(model) => model.infer(request, sender),
            None => {
                let name = &request.model_name;
                let text = format!("Request for unknown model: '{name}' is not found");
                sender.fail(Status::not_found(text));
            }
        }
    }
}

impl ComposingModels for PinnedModels {
    fn spec(&self, name: &str, version: Option<i64>) -> Option<Arc<ModelSpec>> {
        self.find(name, version).map(|model| model.spec().clone())
    }
}

impl ComposingVersions for PinnedModels {
    fn version(&self, name: &str, number: Option<i64>) -> Option<&LoadedModel> {
        self.find(name, number).map(|model| &***model)
    }

    fn versions(&self) -> Vec<&LoadedModel> {
        let handles = self.models.values().flat_map(BTreeMap::values);
        handles.map(|model| &***model).collect()
    }
}
