//! The registry: the models that serve, as snapshots that requests read without a lock.
//!
//! A model is known here by its id, which is its name unless there are namespaces. Readers
//! take a [`Snapshot`]. Writers replace it, one at a time: [`Registry::apply`] makes all
//! changes of a step of the plan visible at once, so no reader sees half of a reload.
//!
//! With namespaces a name means the desired models that have it, and no others, so each
//! step of the plan also tells the registry which models are desired.

mod entry;
mod names;
mod snapshot;

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use galatea_dispatch::LoadedModel;
use galatea_policy::ModelName;
use galatea_stdx::Lock;

use self::names::{Models, NameTable};
pub(crate) use self::snapshot::Snapshot;
use crate::handle::ModelHandle;

/// The models of a server.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    snapshot: ArcSwap<Snapshot>,
    writer: Lock<()>,
}

/// One change of what the registry knows of a model.
#[derive(Debug)]
pub(crate) enum RegistryChange {
    /// These versions are being loaded. Those that are ready stay so until they are
    /// replaced.
    BeginLoad(ModelName, Vec<i64>),
    /// The loaded versions serve now, together with those that were kept. Others go out of
    /// service.
    Publish { id: ModelName, loaded: Vec<Arc<ModelHandle>>, kept: Vec<i64> },
    /// No loaded version serves. The reasons are those of versions that failed; the others
    /// were loaded in vain. What serves goes on.
    AbortLoad(ModelName, Vec<(i64, Option<String>)>),
    /// The model has no version to load. What serves goes on.
    NoVersion(ModelName),
    /// The model goes out of service.
    Withdraw(ModelName),
    /// Forgets why a model failed that is not desired any more. Versions that serve are
    /// left alone: [`RegistryChange::Withdraw`] takes them out of service.
    ForgetFailure(ModelName),
    /// Every model goes out of service.
    WithdrawAll,
}

impl Registry {
    /// A registry whose models may have the same name in different namespaces.
    pub(crate) fn with_namespaces() -> Self {
        let first = Snapshot { names: Some(NameTable::default()), ..Snapshot::default() };
        Self { snapshot: ArcSwap::from_pointee(first), writer: Lock::default() }
    }

    pub(crate) fn snapshot(&self) -> arc_swap::Guard<Arc<Snapshot>> {
        self.snapshot.load()
    }

    /// Makes changes, all at once. `desired` are the ids of the desired models.
    pub(crate) fn apply<'a>(
        &self,
        desired: impl Iterator<Item = &'a ModelName>,
        changes: Vec<RegistryChange>,
    ) {
        let snapshot = self.snapshot();
        let desired: Option<BTreeSet<ModelName>> =
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

    /// These models go out of service.
    pub(crate) fn withdraw(&self, ids: Vec<ModelName>) {
        self.replace(|next| {
            ids.into_iter().for_each(|id| RegistryChange::Withdraw(id).apply(&mut next.models));
        });
    }

    /// Every model goes out of service.
    pub(crate) fn withdraw_all(&self) {
        self.replace(|next| RegistryChange::WithdrawAll.apply(&mut next.models));
    }

    /// The last request of a version that was taken out of service has run.
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
        // It may hold the last handle of a version, which retires then.
        drop(previous);
    }
}

impl RegistryChange {
    /// The versions that it publishes are about to serve.
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

fn entry(models: &mut Models, id: ModelName) -> &mut entry::ModelEntry {
    Arc::make_mut(models.entry(id).or_default())
}

fn forget_failure(models: &mut Models, id: &ModelName) {
    let Some(entry) = models.get_mut(id) else { return };
    // A model that was never tried is as if it had never been ordered.
    if entry.versions.is_empty() {
        models.remove(id);
        return;
    }
    Arc::make_mut(entry).forget_failure();
}
