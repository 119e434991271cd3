//! Which models there are, as a snapshot that requests read without a lock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use galatea_infer::{ModelState, RepositoryEntry, Status};

use crate::LoadedModel;

/// The models of a server. Readers take a snapshot; writers replace it, one
/// at a time.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    snapshot: ArcSwap<Snapshot>,
    writer: Mutex<()>,
}

/// Every model by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    models: BTreeMap<String, ModelEntry>,
}

/// Every version of a model by number; empty if none was ever loaded.
type ModelEntry = BTreeMap<i64, VersionEntry>;

/// One version of a model.
#[derive(Clone, Debug)]
pub(crate) struct VersionEntry {
    pub(crate) state: ModelState,
    pub(crate) reason: String,
    /// There while the version is ready.
    pub(crate) model: Option<Arc<LoadedModel>>,
}

impl Registry {
    pub(crate) fn snapshot(&self) -> arc_swap::Guard<Arc<Snapshot>> {
        self.snapshot.load()
    }

    /// Makes a model known, without versions.
    pub(crate) fn declare(&self, name: &str) {
        self.update(|models| {
            models.entry(String::from(name)).or_default();
        });
    }

    /// Sets the state of a version.
    pub(crate) fn set(&self, name: &str, version: i64, entry: VersionEntry) {
        self.update(|models| {
            models.entry(String::from(name)).or_default().insert(version, entry);
        });
    }

    fn update(&self, change: impl FnOnce(&mut BTreeMap<String, ModelEntry>)) {
        let _writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = Snapshot::clone(&self.snapshot.load());
        change(&mut next.models);
        self.snapshot.store(Arc::new(next));
    }
}

impl Snapshot {
    /// The version asked for, or the newest that is ready.
    ///
    /// # Errors
    ///
    /// `NotFound` for a name or version that isn't there, or if no version is
    /// ready; `Unavailable` for a version that isn't.
    pub(crate) fn find(
        &self,
        name: &str,
        version: Option<i64>,
    ) -> Result<&Arc<LoadedModel>, Status> {
        let unknown = |why: String| Status::not_found(format!("Request for unknown model: {why}"));
        let versions =
            self.models.get(name).ok_or_else(|| unknown(format!("'{name}' is not found")))?;
        let Some(version) = version else {
            let newest = versions.values().rev().find_map(|entry| entry.model.as_ref());
            return newest.ok_or_else(|| unknown(format!("'{name}' has no available versions")));
        };
        let entry = versions
            .get(&version)
            .ok_or_else(|| unknown(format!("'{name}' version {version} is not found")))?;
        entry.model.as_ref().ok_or_else(|| {
            Status::unavailable(format!(
                "Request for unknown model: '{name}' version {version} is not at ready state"
            ))
        })
    }

    /// The numbers of a model's ready versions.
    pub(crate) fn ready_versions(&self, name: &str) -> Vec<i64> {
        let versions = self.models.get(name).into_iter().flatten();
        versions.filter(|(_, entry)| entry.model.is_some()).map(|(number, _)| *number).collect()
    }

    /// Every ready version of every model.
    pub(crate) fn ready(&self) -> impl Iterator<Item = &Arc<LoadedModel>> {
        self.models.values().flat_map(BTreeMap::values).filter_map(|entry| entry.model.as_ref())
    }

    /// Whether every model has a version and every version is ready.
    pub(crate) fn all_ready(&self) -> bool {
        self.models.values().all(|versions| {
            !versions.is_empty()
                && versions
                    .values()
                    .all(|entry| entry.model.is_some() || entry.reason == "unloaded")
        })
    }

    /// The repository index.
    pub(crate) fn index(&self, only_ready: bool) -> Vec<RepositoryEntry> {
        let mut entries = Vec::new();
        for (name, versions) in &self.models {
            if versions.is_empty() && !only_ready {
                entries.push(RepositoryEntry {
                    name: name.clone(),
                    version: None,
                    state: None,
                    reason: String::new(),
                });
            }
            for (version, entry) in versions {
                if only_ready && entry.state != ModelState::Ready {
                    continue;
                }
                entries.push(RepositoryEntry {
                    name: name.clone(),
                    version: Some(*version),
                    state: Some(entry.state),
                    reason: entry.reason.clone(),
                });
            }
        }
        entries
    }
}
