//! The work that loads do outside the manager's lock.
//!
//! Each function performs one effect and returns the event that ends the effect. None of them
//! accesses the plan.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use galatea_backend::LogLevel;
use galatea_dispatch::{ComposingVersions, LogSink, VersionLoader};
use galatea_infer::Status;
use galatea_policy::{LoadOutcome, ModelId};

use super::effect::{
    AbandonNotice, ChangedVersion, LoadOrder, LoadPreparation, LoadRefusal, LoadResources,
    ManagerEvent, PreparedVersion, VersionWork, VersionWorkKind,
};
use crate::agent_lease::{AgentLease, ClaimedLease};
use crate::composing::PinnedModels;
use crate::handle::ModelHandle;
use crate::reaper::Reaper;
use crate::registry::{Registry, Snapshot};

/// The models that a load pins, and the work on each version.
type PreparedVersions = (Option<Arc<PinnedModels>>, Vec<PreparedVersion>);

/// The resources that all of a server's loads use.
pub(super) struct LoadWorker {
    pub(super) registry: Arc<Registry>,
    pub(super) loader: VersionLoader,
    pub(super) reaper: Reaper,
    pub(super) log: LogSink,
}

impl LoadWorker {
    /// Determines a load's work. A version with unchanged files and configuration stays, possibly
    /// with a change to its instances.
    ///
    /// A panic is treated as a refusal, because an order is waiting for this load.
    pub(super) fn prepare(&self, order: &LoadOrder) -> Result<LoadPreparation, LoadRefusal> {
        let lease = claim_agents(order)?;
        let prepared = catch_unwind(AssertUnwindSafe(|| self.prepare_versions(order)));
        let prepared = prepared.unwrap_or_else(|_| {
            let status = Status::internal("the server failed while it prepared the load");
            Err(refusal(LoadOutcome::Failed, status))
        });
        match prepared {
            Ok((composing, versions)) => {
                Ok(LoadPreparation { resources: LoadResources { lease, composing }, versions })
            }
            Err(refusal) => Err(LoadRefusal { lease, ..refusal }),
        }
    }

    fn prepare_versions(&self, order: &LoadOrder) -> Result<PreparedVersions, LoadRefusal> {
        let snapshot = self.registry.snapshot();
        check_wanted(order)?;
        let composing = self.pin(order, &snapshot)?;
        check_versions(order)?;
        let versions = order.model.definition.versions.clone();
        let (kept, fresh): (Vec<_>, Vec<_>) = versions
            .into_iter()
            .partition(|files| self.may_stay(order, files.version(), &snapshot));
        let mut versions: Vec<PreparedVersion> =
            fresh.into_iter().map(PreparedVersion::Load).collect();
        for files in kept {
            let model = snapshot.ready_version(&order.id, files.version());
            versions.push(match model {
                Some(model) => self.prepare_kept(order, model),
                None => PreparedVersion::Keep(files.version(), None),
            });
        }
        Ok((composing, versions))
    }

    /// Pins the models that this model needs, if any, provided that they fit together.
    fn pin(
        &self,
        order: &LoadOrder,
        snapshot: &Snapshot,
    ) -> Result<Option<Arc<PinnedModels>>, LoadRefusal> {
        let definition = &order.model.definition;
        let needed = definition.needed_models();
        if needed.is_empty() {
            return Ok(None);
        }
        PinnedModels::new(&order.id, &needed, &order.dependencies, snapshot)
            .and_then(|models| {
                self.loader.check_ensemble(definition, &models)?;
                Ok(Some(Arc::new(models)))
            })
            .map_err(|status| refusal(LoadOutcome::Incompatible, status))
    }

    /// Returns true if a ready version can stay, possibly with a change to its instances. A version
    /// can't stay if repository agents may have changed its files.
    fn may_stay(&self, order: &LoadOrder, version: i64, snapshot: &Snapshot) -> bool {
        let Some(serving) = &order.serving else { return false };
        let (old, new) = (&serving.definition, &order.model.definition);
        let has_same_files = new.needed_models().is_empty()
            && serving.agents.is_empty()
            && order.model.agents.is_empty()
            && serving.shares_files_with(&order.model)
            && !order.model.modified.version_is_newer_than(version, &serving.modified);
        let Some(model) = snapshot.ready_version(&order.id, version).filter(|_| has_same_files)
        else {
            return false;
        };
        let has_same_configuration = new.draft.differs_in_instances_only(&old.draft, &new.support)
            || self.loader.differs_in_instances_only(model, new);
        has_same_configuration && self.loader.can_change_instances(model, new)
    }

    fn prepare_kept(&self, order: &LoadOrder, model: &Arc<ModelHandle>) -> PreparedVersion {
        let definition = &order.model.definition;
        if !self.loader.lacks_instances(model, definition)
            && let Ok(change) = self.loader.change_instances(model, definition)
        {
            return PreparedVersion::Keep(model.version(), Some((model.clone(), change)));
        }
        // Adding instances may take time or fail.
        PreparedVersion::AddInstances(model.clone())
    }

    /// Loads a version, or adds instances to one.
    pub(super) fn work_on_version(&self, work: VersionWork) -> ManagerEvent {
        let VersionWork { order, resources, kind } = work;
        match kind {
            VersionWorkKind::Load { files, attempt } => {
                if attempt == 1 {
                    let line = format_args!("loading: {}:{}", order.id, files.version());
                    self.log.write(LogLevel::Info, line);
                }
                let LoadResources { lease, composing } = resources;
                let composing = composing.map(|models| models as Arc<dyn ComposingVersions>);
                let result = self.loader.load(&order.model.definition, &files, composing);
                let result = result
                    .map(|model| ModelHandle::new(model, lease, &self.reaper))
                    .map_err(|status| order.model.shown_failure(status));
                ManagerEvent::VersionLoaded(order.id.clone(), files, result)
            }
            VersionWorkKind::AddInstances(model) => {
                let version = model.version();
                let result = self.loader.change_instances(&model, &order.model.definition);
                let result = result.map(|change| (model, change)).inspect_err(|status| {
                    let line = format_args!(
                        "failed to change the instances of '{}' version {version}: {status}",
                        order.id
                    );
                    self.log.write(LogLevel::Error, line);
                });
                ManagerEvent::InstancesAdded(order.id.clone(), version, result)
            }
        }
    }

    /// Applies instance changes. Notifies the current model's agents that it is going out of
    /// service, and the new model's agents that it is entering service.
    pub(super) fn commit(
        &self,
        order: &LoadOrder,
        lease: Option<Arc<AgentLease>>,
        changes: Vec<ChangedVersion>,
    ) -> ManagerEvent {
        changes
            .into_iter()
            .for_each(|(model, change)| self.loader.apply_instance_change(&model, change));
        self.announce_unload(&order.id, lease.as_ref());
        notify(|| lease.iter().for_each(|lease| lease.report_loaded()));
        ManagerEvent::Committed { id: order.id.clone(), ready: self.ready_versions(&order.id) }
    }

    /// Undoes instance changes, and notifies the load's agents.
    pub(super) fn abandon(
        &self,
        order: &LoadOrder,
        lease: Option<Arc<AgentLease>>,
        changes: Vec<ChangedVersion>,
        notice: AbandonNotice,
    ) -> ManagerEvent {
        changes.into_iter().for_each(|(model, change)| change.undo(&model));
        notify(|| {
            lease.iter().for_each(|lease| match notice {
                AbandonNotice::LoadFailed => lease.report_load_failed(),
                AbandonNotice::Unloading => lease.report_unloading(),
            });
        });
        ManagerEvent::Abandoned { id: order.id.clone(), ready: self.ready_versions(&order.id) }
    }

    /// Notifies the repository agents of a model's ready versions that these are going out of
    /// service, unless the agents stay with the model.
    pub(super) fn announce_unload(&self, id: &str, staying: Option<&Arc<AgentLease>>) {
        let snapshot = self.registry.snapshot();
        let leases = snapshot.ready_of(id).filter_map(|model| model.lease());
        leases
            .filter(|lease| !staying.is_some_and(|staying| Arc::ptr_eq(staying, lease)))
            .for_each(|lease| notify(|| lease.report_unloading()));
    }

    /// Takes the models without repository agents out of service.
    pub(super) fn withdraw_without_agents(&self) {
        let snapshot = self.registry.snapshot();
        let has_agents = |id: &str| snapshot.ready_of(id).any(|model| model.lease().is_some());
        let ids = snapshot.ids().filter(|id| !has_agents(id)).cloned().collect();
        drop(snapshot);
        self.registry.withdraw(ids);
    }

    /// Returns true if no model is serving.
    pub(super) fn has_withdrawn_all(&self) -> bool {
        let snapshot = self.registry.snapshot();
        snapshot.ids().all(|id| snapshot.ready_of(id).next().is_none())
    }

    /// Takes every model out of service, each after its repository agents have been notified.
    pub(super) fn withdraw_all(&self) {
        let ids: Vec<ModelId> = self.registry.snapshot().ids().cloned().collect();
        for id in ids {
            self.announce_unload(&id, None);
            self.registry.withdraw(vec![id]);
        }
        self.registry.withdraw_all();
    }

    fn ready_versions(&self, id: &str) -> Vec<i64> {
        self.registry.snapshot().ready_versions(id)
    }
}

/// Calls repository agents. They are foreign code, so a panic does not affect the model.
fn notify(call: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(call));
}

fn refusal(outcome: LoadOutcome, status: Status) -> LoadRefusal {
    LoadRefusal { outcome, status, lease: None }
}

fn claim_agents(order: &LoadOrder) -> Result<Option<Arc<AgentLease>>, LoadRefusal> {
    match order.model.agents.claim() {
        ClaimedLease::None => Ok(None),
        ClaimedLease::Lease(lease) => Ok(Some(lease)),
        ClaimedLease::Expired => {
            let text = "its repository agents agreed to a load that is over, and have to be \
                        asked again: load it again";
            Err(refusal(LoadOutcome::Incompatible, Status::unavailable(text)))
        }
    }
}

fn check_wanted(order: &LoadOrder) -> Result<(), LoadRefusal> {
    if order.is_stopped() {
        return Err(refusal(LoadOutcome::Failed, LoadOrder::stopped()));
    }
    Ok(())
}

/// Refuses a model without versions, which must not replace a model in service.
fn check_versions(order: &LoadOrder) -> Result<(), LoadRefusal> {
    let checked = order.model.definition.check_versions();
    checked.map_err(|status| refusal(LoadOutcome::Failed, status))
}
