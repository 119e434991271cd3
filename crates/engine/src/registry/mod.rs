//! The registry: the models in service, as snapshots that requests read without a lock.
//!
//! The registry identifies a model by its id, which equals its name unless namespaces are on.
//! Readers take a [`Snapshot`]. Writers replace the snapshot, one at a time: [`Registry::apply`]
//! makes all changes of a plan step visible at once, so no reader sees a half-finished reload.
//!
//! With namespaces, a name refers only to the desired models with that name, so each plan step also
//! tells the registry the desired models.

mod entry;
mod names;
mod snapshot;

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use galatea_dispatch::LoadedModel;
use galatea_policy::ModelId;
use galatea_stdx::Lock;

pub(crate) use self::entry::UNLOADED;
use self::names::{Models, NameTable};
pub(crate) use self::snapshot::Snapshot;
use crate::handle::ModelHandle;

/// A server's models.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    snapshot: ArcSwap<Snapshot>,
    writer: Lock<()>,
}

/// A change to the registry's state for a model.
#[derive(Debug)]
pub(crate) enum RegistryChange {
    /// These versions are being loaded. Ready versions stay ready until they are replaced.
    BeginLoad(ModelId, Vec<i64>),
    /// The loaded versions serve from now on, together with the kept ones. All others go out of
    /// service.
    Publish { id: ModelId, loaded: Vec<Arc<ModelHandle>>, kept: Vec<i64> },
    /// None of the loaded versions serve. The versions that were tried are listed, with a reason
    /// for each that failed. Versions in service keep serving.
    AbortLoad(ModelId, Vec<(i64, Option<String>)>),
    /// The model has no version to load. Versions in service keep serving.
    NoVersion(ModelId),
    /// The model goes out of service.
    Withdraw(ModelId),
    /// The failure of a model that is no longer desired is forgotten. Versions in service are not
    /// affected: [`RegistryChange::Withdraw`] takes them out of service.
    ForgetFailure(ModelId),
    /// Every model goes out of service.
    WithdrawAll,
}

impl Registry {
    /// Creates a registry in which models in different namespaces may have the same name.
    pub(crate) fn with_namespaces() -> Self {
        let first = Snapshot { names: Some(NameTable::default()), ..Snapshot::default() };
        Self { snapshot: ArcSwap::from_pointee(first), writer: Lock::default() }
    }

    pub(crate) fn snapshot(&self) -> arc_swap::Guard<Arc<Snapshot>> {
        self.snapshot.load()
    }

    /// Applies changes, all at once. `desired` contains the ids of the desired models.
    pub(crate) fn apply<'a>(
        &self,
        desired: impl Iterator<Item = &'a ModelId>,
        changes: Vec<RegistryChange>,
    ) {
        let snapshot = self.snapshot();
        let desired: Option<BTreeSet<ModelId>> =
            snapshot.names.as_ref().map(|_| desired.cloned().collect());
        let known = snapshot.names.as_ref().map(NameTable::desired);
        if changes.is_empty() && known == desired.as_ref() {
            return;
        }
        changes.iter().for_each(RegistryChange::begin_service);
        self.replace(|next| {
            changes.into_iter().for_each(|change| change.apply(&mut next.models));
            if let (Some(names), Some(desired)) = (&mut next.names, desired) {
                names.set_desired(desired);
            }
        });
    }

    /// Takes these models out of service.
    pub(crate) fn withdraw(&self, ids: Vec<ModelId>) {
        self.replace(|next| {
            ids.into_iter().for_each(|id| RegistryChange::Withdraw(id).apply(&mut next.models));
        });
    }

    /// Takes every model out of service.
    pub(crate) fn withdraw_all(&self) {
        self.replace(|next| RegistryChange::WithdrawAll.apply(&mut next.models));
    }

    /// Records that a version out of service has served its last request.
    pub(crate) fn version_destroyed(&self, id: &str, version: i64, model: &Weak<LoadedModel>) {
        self.replace(|next| {
            if let Some(entry) = next.models.get_mut(id)
                && entry.is_draining(version, model)
            {
                Arc::make_mut(entry).forget_drained(version);
            }
        });
    }

    fn replace(&self, change: impl FnOnce(&mut Snapshot)) {
        let writer = self.writer.lock("replace the snapshot");
        let mut next = Snapshot::clone(&self.snapshot.load());
        change(&mut next);
        let Snapshot { models, names } = &mut next;
        names.iter_mut().for_each(|names| names.update(models));
        let previous = self.snapshot.swap(Arc::new(next));
        drop(writer);
        // The previous snapshot may hold the last handle of a version, which is retired here.
        drop(previous);
    }
}

impl RegistryChange {
    /// Marks the versions that the change publishes as about to serve.
    fn begin_service(&self) {
        if let Self::Publish { loaded, .. } = self {
            loaded.iter().for_each(|model| model.begin_service());
        }
    }

    fn apply(self, models: &mut Models) {
        match self {
            Self::ForgetFailure(id) => forget_failure(models, &id),
            Self::Withdraw(id) => {
                if let Some(entry) = models.get_mut(&id) {
                    Arc::make_mut(entry).withdraw();
                }
            }
            Self::BeginLoad(id, versions) => entry(models, id).begin_load(&versions),
            Self::Publish { id, loaded, kept } => entry(models, id).publish(loaded, &kept),
            Self::AbortLoad(id, reasons) => entry(models, id).abort_load(reasons),
            Self::NoVersion(id) => {
                entry(models, id);
            }
            Self::WithdrawAll => {
                models.values_mut().for_each(|entry| Arc::make_mut(entry).withdraw());
            }
        }
    }
}

fn entry(models: &mut Models, id: ModelId) -> &mut entry::ModelEntry {
    Arc::make_mut(models.entry(id).or_default())
}

fn forget_failure(models: &mut Models, id: &ModelId) {
    let Some(entry) = models.get_mut(id) else { return };
    // A model that was never tried is treated as if it had never been ordered.
    if entry.versions.is_empty() {
        models.remove(id);
        return;
    }
    Arc::make_mut(entry).forget_failure();
}
