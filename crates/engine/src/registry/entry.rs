//! Registry entries for models and their versions.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use galatea_control::{ModelState, RepositoryEntry};
use galatea_dispatch::LoadedModel;

use crate::handle::ModelHandle;

/// The reason shown for a version taken out of service, in Triton's words. Such a version doesn't
/// affect the server's readiness.
pub(crate) const UNLOADED: &str = "unloaded";

/// A model that was loaded at some point. If it has no versions, it had none to load and isn't
/// ready, as in Triton.
#[derive(Clone, Debug, Default)]
pub(super) struct ModelEntry {
    /// All versions that were ever tried, by number.
    pub(super) versions: BTreeMap<i64, VersionEntry>,
}

/// One version of a model.
#[derive(Clone, Debug)]
pub(super) struct VersionEntry {
    pub(super) state: ModelState,
    pub(super) reason: String,
    /// The loaded version, while it is ready.
    pub(super) model: Option<Arc<ModelHandle>>,
    /// The version that is out of service but still running its last requests.
    pub(super) draining: Option<Weak<LoadedModel>>,
}

impl ModelEntry {
    /// Begins loading versions. Ready versions stay ready until they are replaced.
    pub(super) fn begin_load(&mut self, versions: &[i64]) {
        for version in versions {
            let entry = self.versions.entry(*version).or_insert_with(VersionEntry::loading);
            if entry.model.is_none() {
                *entry = VersionEntry::loading();
            }
        }
    }

    /// Puts the loaded versions into service, together with the versions in `kept`. All others go
    /// out of service.
    pub(super) fn publish(&mut self, loaded: Vec<Arc<ModelHandle>>, kept: &[i64]) {
        let is_new = |version: &i64| loaded.iter().any(|model| model.version() == *version);
        for (version, entry) in &mut self.versions {
            if !kept.contains(version) && !is_new(version) && entry.model.is_some() {
                entry.withdraw();
            }
        }
        for model in loaded {
            self.versions.insert(model.version(), VersionEntry::ready(model));
        }
    }

    /// Aborts a load: none of the loaded versions serve. `reasons` lists the versions that were
    /// tried, with a reason for each that failed.
    pub(super) fn abort_load(&mut self, reasons: Vec<(i64, Option<String>)>) {
        for (version, reason) in reasons {
            let entry = self.versions.entry(version).or_insert_with(VersionEntry::loading);
            if entry.model.is_none() {
                let reason = reason.unwrap_or_else(|| String::from(UNLOADED));
                *entry = VersionEntry::unavailable(reason);
            }
        }
    }

    /// Takes the model out of service.
    pub(super) fn withdraw(&mut self) {
        self.versions.values_mut().for_each(VersionEntry::withdraw);
    }

    /// Forgets the reason for the model's failure. Versions in service are not affected.
    pub(super) fn forget_failure(&mut self) {
        let idle = self.versions.values_mut().filter(|version| version.model.is_none());
        idle.for_each(VersionEntry::withdraw);
    }

    /// Forgets a version that is out of service and has served its last request.
    pub(super) fn forget_drained(&mut self, version: i64) {
        self.versions.insert(version, VersionEntry::unavailable(String::from(UNLOADED)));
    }

    /// Returns true if this is the draining version. Another version with the same number may
    /// already be serving.
    pub(super) fn is_draining(&self, version: i64, model: &Weak<LoadedModel>) -> bool {
        let draining = self.versions.get(&version).and_then(|entry| entry.draining.as_ref());
        draining.is_some_and(|draining| draining.ptr_eq(model))
    }

    /// The ready versions, in ascending order.
    pub(super) fn ready(&self) -> impl Iterator<Item = &Arc<ModelHandle>> {
        self.versions.values().filter_map(|entry| entry.model.as_ref())
    }

    /// Returns true if the model is considered ready: it has versions, and each version is ready or
    /// was taken out of service.
    pub(super) fn is_ready(&self) -> bool {
        let is_fine = |entry: &VersionEntry| entry.model.is_some() || entry.reason == UNLOADED;
        !self.versions.is_empty() && self.versions.values().all(is_fine)
    }

    /// Adds the model's lines to the repository index.
    pub(super) fn list(&self, name: &str, only_ready: bool, lines: &mut Vec<RepositoryEntry>) {
        for (version, entry) in &self.versions {
            if only_ready && entry.state != ModelState::Ready {
                continue;
            }
            lines.push(RepositoryEntry {
                name: name.to_owned(),
                version: Some(*version),
                state: Some(entry.state),
                reason: entry.reason.clone(),
            });
        }
    }
}

impl VersionEntry {
    const fn loading() -> Self {
        Self::without_model(ModelState::Loading, String::new())
    }

    const fn unavailable(reason: String) -> Self {
        Self::without_model(ModelState::Unavailable, reason)
    }

    const fn without_model(state: ModelState, reason: String) -> Self {
        Self { state, reason, model: None, draining: None }
    }

    const fn ready(model: Arc<ModelHandle>) -> Self {
        let state = ModelState::Ready;
        Self { state, reason: String::new(), model: Some(model), draining: None }
    }

    /// Takes the version out of service, if it is in service.
    fn withdraw(&mut self) {
        if let Some(model) = self.model.take() {
            *self = Self::without_model(ModelState::Unloading, String::new());
            self.draining = Some(model.downgrade());
        } else if self.state != ModelState::Unloading {
            *self = Self::unavailable(String::from(UNLOADED));
        }
    }
}
