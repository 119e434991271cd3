//! Effects that the plan requests, and the events that report their completion.
//!
//! The plan is stepped under the manager's lock. A step's consequences, a [`StepEffects`], are
//! applied afterwards: registry changes still under the lock, so that the registry and the plan
//! never disagree, and effects outside it. Each effect that takes time ends with one
//! [`ManagerEvent`], which triggers the next step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use galatea_backend::{LogLevel, ModelFiles};
use galatea_dispatch::InstanceChange;
use galatea_infer::Status;
use galatea_policy::{LoadOutcome, ModelId};

use super::defined_model::DefinedModel;
use crate::LoadFailure;
use crate::agent_lease::AgentLease;
use crate::composing::PinnedModels;
use crate::handle::ModelHandle;
use crate::registry::RegistryChange;

/// A version in service, and a change to its instances.
pub(super) type ChangedVersion = (Arc<ModelHandle>, InstanceChange);

/// The model that a load should bring into service.
pub(super) struct LoadOrder {
    pub(super) id: ModelId,
    /// The ids of the models that the model needs, keyed by the names that it uses for them.
    pub(super) dependencies: BTreeMap<String, ModelId>,
    pub(super) model: Arc<DefinedModel>,
    /// The model that the last successful load brought into service.
    pub(super) serving: Option<Arc<DefinedModel>>,
}

/// The resources that all versions in a load share.
#[derive(Clone, Default)]
pub(super) struct LoadResources {
    /// The lease of the model's repository agents, if any.
    pub(super) lease: Option<Arc<AgentLease>>,
    /// The models that the loaded model needs, if any.
    pub(super) composing: Option<Arc<PinnedModels>>,
}

/// The work of a load.
pub(super) struct LoadPreparation {
    pub(super) resources: LoadResources,
    pub(super) versions: Vec<PreparedVersion>,
}

/// The work of a load on one version.
pub(super) enum PreparedVersion {
    Load(Arc<dyn ModelFiles>),
    /// The version stays but lacks instances.
    AddInstances(Arc<ModelHandle>),
    /// The version stays, with this change to its instances, provided that it still serves.
    Keep(i64, Option<ChangedVersion>),
}

/// The reason why a load can't begin. No version has been tried.
pub(super) struct LoadRefusal {
    pub(super) outcome: LoadOutcome,
    pub(super) status: Status,
    pub(super) lease: Option<Arc<AgentLease>>,
}

/// Work on one version, for a pool thread.
pub(super) struct VersionWork {
    pub(super) order: Arc<LoadOrder>,
    pub(super) resources: LoadResources,
    pub(super) kind: VersionWorkKind,
}

pub(super) enum VersionWorkKind {
    Load { files: Arc<dyn ModelFiles>, attempt: u32 },
    AddInstances(Arc<ModelHandle>),
}

/// The notice to repository agents about an abandoned load.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum AbandonNotice {
    LoadFailed,
    /// The agents were already notified that the model is loaded.
    Unloading,
}

/// An effect that the plan requests.
pub(super) enum Effect {
    /// Write a line to the log.
    Log(ModelId, LogLevel, String),
    /// Log that a model can't be loaded because of the models that it needs.
    ReportBlocked(ModelId, String),
    /// Determine a load's work, on a pool thread. Ends with [`ManagerEvent::Prepared`].
    Prepare(Arc<LoadOrder>),
    /// Work on a version, on a pool thread. Ends with [`ManagerEvent::VersionLoaded`] or
    /// [`ManagerEvent::InstancesAdded`].
    WorkOnVersion(VersionWork),
    /// Apply instance changes and notify repository agents that a model is loaded. Ends with
    /// [`ManagerEvent::Committed`].
    Commit { order: Arc<LoadOrder>, lease: Option<Arc<AgentLease>>, changes: Vec<ChangedVersion> },
    /// Undo instance changes and notify repository agents that a load ended. Ends with
    /// [`ManagerEvent::Abandoned`].
    Abandon {
        order: Arc<LoadOrder>,
        lease: Option<Arc<AgentLease>>,
        changes: Vec<ChangedVersion>,
        notice: AbandonNotice,
    },
    /// Notify repository agents that a model is going out of service. Ends with
    /// [`ManagerEvent::UnloadAnnounced`].
    AnnounceUnload(ModelId),
}

/// An event reported to the plan.
pub(super) enum ManagerEvent {
    Prepared(ModelId, Result<LoadPreparation, LoadRefusal>),
    /// An attempt to load a version ended.
    VersionLoaded(ModelId, Arc<dyn ModelFiles>, Result<Arc<ModelHandle>, Status>),
    InstancesAdded(ModelId, i64, Result<ChangedVersion, Status>),
    /// Work on a version was skipped for this reason.
    VersionSkipped(ModelId, i64, Status),
    /// The changes were applied. `ready` lists the versions that were ready before publication.
    Committed {
        id: ModelId,
        ready: Vec<i64>,
    },
    /// The changes were undone. `ready` lists the versions that were ready before the load.
    Abandoned {
        id: ModelId,
        ready: Vec<i64>,
    },
    UnloadAnnounced(ModelId),
}

/// The consequences of stepping the plan.
#[derive(Default)]
pub(super) struct StepEffects {
    pub(super) changes: Vec<RegistryChange>,
    pub(super) effects: Vec<Effect>,
    /// Loads that ended. Their definitions may own files, so they must not be dropped under the
    /// lock.
    pub(super) ended: Vec<Arc<LoadOrder>>,
}

impl LoadOrder {
    /// Returns true if the load is no longer wanted.
    pub(super) fn is_stopped(&self) -> bool {
        self.model.definition.stop.is_cancelled()
    }

    /// The error for a load that is no longer wanted and will not begin.
    pub(super) fn stopped() -> Status {
        Status::unavailable("the model was unloaded, or the server stopped, before its load began")
    }

    /// Returns true if the load failed only because an unload overtook it.
    pub(super) fn is_overtaken<'f>(
        &self,
        failures: impl IntoIterator<Item = &'f LoadFailure>,
    ) -> bool {
        let stopped = Self::stopped();
        let mut failures = failures.into_iter().peekable();
        self.is_stopped()
            && failures.peek().is_some()
            && failures.all(|failure| failure.status == stopped)
    }
}

impl VersionWork {
    /// The version's number.
    pub(super) fn version(&self) -> i64 {
        match &self.kind {
            VersionWorkKind::Load { files, .. } => files.version(),
            VersionWorkKind::AddInstances(model) => model.version(),
        }
    }

    /// Returns true if this is not the first attempt to load the version.
    pub(super) const fn is_retry(&self) -> bool {
        matches!(self.kind, VersionWorkKind::Load { attempt: 2.., .. })
    }
}

impl Effect {
    /// The model to which the effect applies.
    pub(super) fn id(&self) -> &ModelId {
        match self {
            Self::Log(id, ..) | Self::ReportBlocked(id, _) | Self::AnnounceUnload(id) => id,
            Self::Prepare(order) | Self::Commit { order, .. } | Self::Abandon { order, .. } => {
                &order.id
            }
            Self::WorkOnVersion(work) => &work.order.id,
        }
    }
}

impl StepEffects {
    /// Drops the reasons why models are blocked. As in Triton, models that are taken out of service
    /// together with a model that they need have not failed.
    pub(super) fn drop_block_reasons(&mut self) {
        self.effects.retain(|effect| !matches!(effect, Effect::ReportBlocked(..)));
    }

    /// Keeps only the last reason why each model is blocked, because the plan learns more with each
    /// additional desired model.
    pub(super) fn keep_last_block_reasons(&mut self) {
        let mut reported = BTreeSet::new();
        self.effects.reverse();
        self.effects.retain(|effect| match effect {
            Effect::ReportBlocked(id, _) => reported.insert(id.clone()),
            Effect::Log(..)
            | Effect::Prepare(_)
            | Effect::WorkOnVersion(_)
            | Effect::Commit { .. }
            | Effect::Abandon { .. }
            | Effect::AnnounceUnload(_) => true,
        });
        self.effects.reverse();
    }
}
