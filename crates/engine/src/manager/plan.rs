//! What the manager's lock guards: the plan, and what its names and revisions
//! stand for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use galatea_dispatch::ModelDefinition;
use galatea_policy::{
    BlockReason, DesiredModel, Lifecycle, LifecycleAction, LifecycleEvent, LifecycleStatus,
    LoadOutcome, LoadReason, ModelName, ModelNames, ModificationTimes, Revision,
};

use crate::LoadFailure;
use crate::catalog::{CatalogModel, LoadOverride};
use crate::retire::Retirer;
use crate::tenure::{Claim, Tenure};

/// A model as it is to be loaded.
pub(crate) struct Target {
    /// The directory of its files.
    place: PathBuf,
    pub(super) modified: ModificationTimes,
    pub(super) overrides: LoadOverride,
    pub(crate) definition: ModelDefinition,
    /// The model's repository agents.
    pub(super) claim: Claim,
}

impl Target {
    pub(super) fn new(
        place: PathBuf,
        modified: ModificationTimes,
        overrides: LoadOverride,
        mut definition: ModelDefinition,
        retirer: &Retirer,
    ) -> Self {
        let claim = Claim::new(definition.agents.take(), retirer);
        Self { place, modified, overrides, definition, claim }
    }

    /// A model that is loaded whenever it is wanted.
    pub(super) fn unstamped(definition: ModelDefinition, retirer: &Retirer) -> Self {
        Self::new(
            PathBuf::new(),
            ModificationTimes::default(),
            LoadOverride::Files,
            definition,
            retirer,
        )
    }

    /// Whether both have their files from the same directory of a repository, where
    /// times tell what changed.
    pub(super) fn shares_files_with(&self, other: &Self) -> bool {
        self.overrides != LoadOverride::Files
            && other.overrides != LoadOverride::Files
            && self.place == other.place
    }
}

/// The order to load a model.
pub(super) struct LoadJob {
    pub(super) id: ModelName,
    /// The ids of the models that it needs, by the names that it has for them.
    pub(super) needs: BTreeMap<String, ModelName>,
    pub(super) target: Arc<Target>,
    /// What was loaded last.
    pub(super) serving: Option<Arc<Target>>,
}

/// What the manager is to do for the plan.
pub(super) enum Deed {
    Load(LoadJob),
    /// A model is to be taken out of service, and why if it is wanted all the same.
    Unload(ModelName, Option<String>),
    /// A model can't be loaded, and why.
    Block(ModelName, String),
}

impl Deed {
    /// The model that it is for.
    pub(super) const fn id(&self) -> &ModelName {
        match self {
            Self::Load(job) => &job.id,
            Self::Unload(id, _) | Self::Block(id, _) => id,
        }
    }
}

/// Models are known here by their ids.
#[derive(Default)]
pub(super) struct Plan {
    lifecycle: Lifecycle,
    /// What is wanted, by name; only with namespaces, without which an id is a name.
    names: Option<ModelNames>,
    records: BTreeMap<ModelName, Record>,
    revisions: u64,
    /// Models that somebody is about to change by order of a client.
    held: BTreeSet<ModelName>,
    /// Models for which deeds are being performed, and how many.
    performing: BTreeMap<ModelName, usize>,
    /// Set once: nothing is loaded any more.
    pub(super) closed: bool,
}

/// What becomes of models that only one needed which goes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Unused {
    Stay,
    Go,
}

#[derive(Default)]
struct Record {
    /// What shall serve. Another revision if it needs other models than before.
    target: Option<(Revision, Arc<Target>)>,
    /// The ids of the models that it needs, by the names that it has for them.
    needs: BTreeMap<String, ModelName>,
    /// What serves.
    serving: Option<Arc<Target>>,
    /// What the last attempt came to.
    failures: Vec<LoadFailure>,
    /// The same in words, as clients are told.
    error: Option<String>,
}

/// How an attempt to load a model ended.
pub(super) struct LoadReport {
    pub(super) outcome: LoadOutcome,
    pub(super) failures: Vec<LoadFailure>,
    /// Empty if it went well.
    pub(super) error: String,
}

/// The ids of the models that one needs, by name.
fn needs(definition: &ModelDefinition, names: Option<&ModelNames>) -> BTreeMap<String, ModelName> {
    let namespace = definition.namespace.as_deref().unwrap_or_default();
    let needed = definition.needed_models().into_iter();
    let meant = |name: &str| match names {
        Some(names) => names.resolve(namespace, name),
        None => name.into(),
    };
    needed.map(|need| (need.name.clone(), meant(&need.name))).collect()
}

impl Plan {
    /// The names of the models that a model needs, if loading it again for that reason
    /// would change nothing.
    pub(super) fn current_needs(
        &self,
        name: &str,
        found: &CatalogModel,
        reason: LoadReason,
    ) -> Option<BTreeSet<String>> {
        let record = self.records.get(name)?;
        let (_, target) = record.target.as_ref()?;
        let is_kept = match target.overrides {
            LoadOverride::None => true,
            // As in the original: only an order for the model itself takes it back.
            LoadOverride::Configuration => reason == LoadReason::Dependency,
            LoadOverride::Files => false,
        };
        let is_same = found.overrides == LoadOverride::None
            && is_kept
            && target.place == found.path
            && !found.modified.is_newer_than(&target.modified)
            && !target.claim.is_spent();
        let is_current = is_same && self.lifecycle.status(name) != LifecycleStatus::Failed;
        is_current.then(|| record.needs.keys().cloned().collect())
    }

    /// A plan for models that may have the same name in different namespaces.
    pub(super) fn with_namespaces() -> Self {
        Self { names: Some(ModelNames::default()), ..Self::default() }
    }

    /// The models that a client means by a name, for an order.
    pub(super) fn named(&self, name: &str) -> Vec<ModelName> {
        match &self.names {
            Some(names) => names.ids_of(name).cloned().collect(),
            None => vec![name.into()],
        }
    }

    /// These models are about to be wanted: those that need models of their names
    /// may mean them.
    pub(super) fn announce(&mut self, ids: impl Iterator<Item = ModelName>) {
        if let Some(names) = &mut self.names {
            ids.for_each(|id| names.insert(id));
        }
    }

    /// The model shall serve as `target` says, or as the plan has it already if that
    /// is `None`.
    pub(super) fn want(
        &mut self,
        id: &ModelName,
        target: Option<Arc<Target>>,
        reason: LoadReason,
        deeds: &mut Vec<Deed>,
    ) {
        self.announce([id.clone()].into_iter());
        let record = self.records.entry(id.clone()).or_default();
        if let Some(target) = target {
            self.revisions += 1;
            record.needs = needs(&target.definition, self.names.as_ref());
            record.target = Some((Revision(self.revisions), target));
        }
        self.want_again(id, reason, deeds);
    }

    fn want_again(&mut self, id: &ModelName, reason: LoadReason, deeds: &mut Vec<Deed>) {
        let Some(record) = self.records.get(id) else { return };
        let Some((revision, _)) = record.target else { return };
        let needs = record.needs.values().cloned().collect();
        let wanted = DesiredModel { revision, dependencies: needs, reason };
        self.step(LifecycleEvent::SetDesired(id.clone(), wanted), deeds);
    }

    /// Has models that need others by their names need what these names mean now.
    pub(super) fn resolve(&mut self, deeds: &mut Vec<Deed>) {
        let Some(names) = &self.names else { return };
        let wanted: BTreeSet<&ModelName> = self.lifecycle.desired().collect();
        let mut changed = Vec::new();
        for (id, record) in &mut self.records {
            let Some((revision, target)) = &mut record.target else { continue };
            let now = needs(&target.definition, Some(names));
            if now != record.needs && wanted.contains(id) {
                self.revisions += 1;
                *revision = Revision(self.revisions);
                record.needs = now;
                changed.push(id.clone());
            }
        }
        // The reason that it is wanted for stays.
        changed.iter().for_each(|id| self.want_again(id, LoadReason::Dependency, deeds));
    }

    /// Takes models out of the plan, perhaps with what only they need; returns what
    /// is not wanted any more. Those that need others of their names need these
    /// first, so that they serve on.
    pub(super) fn unwant(
        &mut self,
        ids: &[ModelName],
        unused: Unused,
        deeds: &mut Vec<Deed>,
    ) -> Vec<ModelName> {
        let namesakes = match unused {
            Unused::Stay => Vec::new(),
            Unused::Go => self.namesakes_of_needed(ids),
        };
        self.forget_names(ids);
        self.resolve(deeds);
        let before: BTreeSet<ModelName> = self.wanted().cloned().collect();
        for id in ids {
            let event = match unused {
                Unused::Stay => LifecycleEvent::RemoveDesired(id.clone()),
                Unused::Go => LifecycleEvent::RemoveDesiredAndUnused(id.clone()),
            };
            self.step(event, deeds);
        }
        let dropped = self.forget_unwanted(&before, deeds);
        for id in namesakes {
            // Another may need it now.
            if self.lifecycle.is_unused(&id) {
                self.step(LifecycleEvent::RemoveDesiredAndUnused(id), deeds);
            }
        }
        if self.names.is_none() { dropped } else { self.forget_unwanted(&before, deeds) }
    }

    /// Names mean these models no more, as far as they are not wanted; returns those.
    fn forget_unwanted(
        &mut self,
        ids: &BTreeSet<ModelName>,
        deeds: &mut Vec<Deed>,
    ) -> Vec<ModelName> {
        let gone: Vec<ModelName> = ids.iter().filter(|id| !self.is_wanted(id)).cloned().collect();
        self.forget_names(&gone);
        self.resolve(deeds);
        gone
    }

    /// All models of the names that these need, directly or not: an order loads them
    /// all, because only then it is known which of them are meant.
    fn namesakes_of_needed(&self, ids: &[ModelName]) -> Vec<ModelName> {
        let Some(names) = &self.names else { return Vec::new() };
        let mut found: Vec<ModelName> = Vec::new();
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut ahead: Vec<&ModelName> = ids.iter().collect();
        while let Some(id) = ahead.pop() {
            let needs = self.records.get(id).into_iter().flat_map(|record| record.needs.keys());
            for name in needs.filter(|name| seen.insert(name.as_str())) {
                found.extend(names.ids_of(name).cloned());
                ahead.extend(names.ids_of(name));
            }
        }
        found
    }

    fn forget_names(&mut self, ids: &[ModelName]) {
        if let Some(names) = &mut self.names {
            ids.iter().for_each(|id| names.remove(id));
        }
    }

    /// One step, with its actions turned into deeds.
    pub(super) fn step(&mut self, event: LifecycleEvent, deeds: &mut Vec<Deed>) {
        let mut actions = Vec::new();
        self.lifecycle.step(event, &mut actions);
        let mut blocked: Option<(ModelName, String)> = None;
        for action in actions {
            match action {
                LifecycleAction::Load(name, revision) => deeds.extend(self.job(name, revision)),
                LifecycleAction::Unload(name) => {
                    // An order that comes before its agents hear of it must not count
                    // on them.
                    let record = self.records.get(&name);
                    let serving = record.and_then(|record| record.serving.as_ref());
                    serving.iter().for_each(|target| target.claim.end());
                    let reason = match blocked.take() {
                        Some((id, text)) if id == name => Some(text),
                        _ => self.failure_text(&name),
                    };
                    deeds.push(Deed::Unload(name, reason));
                }
                LifecycleAction::Block(name, reason) => {
                    let text = self.block_text(&name, &reason);
                    self.records.entry(name.clone()).or_default().error = Some(text.clone());
                    blocked = Some((name.clone(), text.clone()));
                    deeds.push(Deed::Block(name, text));
                }
            }
        }
        self.forget();
    }

    /// What the last attempt to load a model failed at, if somebody still wants it.
    fn failure_text(&self, name: &ModelName) -> Option<String> {
        let record = self.records.get(name).filter(|_| self.is_wanted(name))?;
        let messages = record.failures.iter().map(|failure| failure.status.message());
        Some(messages.collect::<Vec<_>>().join("; ")).filter(|text| !text.is_empty())
    }

    fn job(&mut self, name: ModelName, revision: Revision) -> Option<Deed> {
        let record = self.records.get_mut(&name)?;
        let (known, target) = record.target.as_ref()?;
        assert_eq!(*known, revision, "{name} is loaded as it was wanted last");
        record.error = None;
        record.failures.clear();
        let (target, serving) = (target.clone(), record.serving.clone());
        let needs = record.needs.clone();
        Some(Deed::Load(LoadJob { id: name, needs, target, serving }))
    }

    /// An attempt to load a model is over.
    pub(super) fn loaded(&mut self, job: &LoadJob, report: LoadReport, deeds: &mut Vec<Deed>) {
        let record = self.records.entry(job.id.clone()).or_default();
        match report.outcome {
            LoadOutcome::Serves | LoadOutcome::ServesUnchanged => {
                record.serving = Some(job.target.clone());
            }
            LoadOutcome::Failed | LoadOutcome::Incompatible | LoadOutcome::Cancelled => {}
        }
        record.error = Some(report.error).filter(|error| !error.is_empty());
        record.failures = report.failures;
        self.step(LifecycleEvent::Loaded(job.id.clone(), report.outcome), deeds);
    }

    /// Models of which nothing is left are forgotten, and what is not served
    /// any more: it may keep files.
    fn forget(&mut self) {
        let lifecycle = &self.lifecycle;
        self.records.retain(|name, record| {
            let is_loading = lifecycle.is_loading(name);
            if lifecycle.serving_revision(name).is_none() && !is_loading {
                record.serving = None;
            }
            is_loading || lifecycle.status(name) != LifecycleStatus::Absent
        });
    }

    pub(super) fn status(&self, name: &str) -> LifecycleStatus {
        self.lifecycle.status(name)
    }

    pub(super) fn wanted(&self) -> impl Iterator<Item = &ModelName> {
        self.lifecycle.desired()
    }

    pub(super) fn is_wanted(&self, name: &str) -> bool {
        self.lifecycle.desired().any(|wanted| **wanted == *name)
    }

    /// Whether what was loaded of the model is to be put into service.
    pub(super) fn may_serve(&self, id: &str) -> bool {
        !self.closed && self.is_wanted(id)
    }

    pub(super) fn is_loading(&self, name: &str) -> bool {
        self.lifecycle.is_loading(name)
    }

    /// Whether a model that was given up is out of service, with those that need it;
    /// or at least what served then, if somebody wants it again.
    pub(super) fn is_out_of_service(&self, id: &str) -> bool {
        if self.is_wanted(id) {
            return !self.lifecycle.is_unloading(id);
        }
        self.is_settled_with_related(id)
    }

    /// Repository agents of models that nobody began to load.
    pub(super) fn waiting_agents(&self) -> Vec<Arc<Tenure>> {
        let targets = self.records.values().filter_map(|record| record.target.as_ref());
        targets.filter_map(|(_, target)| target.claim.withdraw()).collect()
    }

    /// Whether everything is done for the model, what it needs and those that
    /// need it.
    pub(super) fn is_settled_with_related(&self, name: &str) -> bool {
        let is_idle = |id: &ModelName| !self.performing.contains_key(id);
        self.lifecycle.is_settled_with_related(name)
            && self.lifecycle.related_to(name).iter().all(is_idle)
    }

    /// A deed for a model is about to be performed.
    pub(super) fn begin(&mut self, id: &ModelName) {
        *self.performing.entry(id.clone()).or_default() += 1;
    }

    /// A deed for a model was performed.
    pub(super) fn end(&mut self, id: &ModelName) {
        if let Some(count) = self.performing.get_mut(id) {
            *count -= 1;
            if *count == 0 {
                self.performing.remove(id);
            }
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        self.performing.is_empty() && self.lifecycle.is_settled()
    }

    /// Why a model does not serve, or not as it should.
    pub(super) fn error(&self, name: &str) -> Option<&str> {
        self.records.get(name)?.error.as_deref()
    }

    /// Everything that the last attempts failed at.
    pub(super) fn failures(&self) -> Vec<LoadFailure> {
        self.records.values().flat_map(|record| record.failures.clone()).collect()
    }

    /// Keeps others from changing the model by order of a client; `false` if
    /// somebody does already.
    pub(super) fn hold(&mut self, name: &ModelName) -> bool {
        self.held.insert(name.clone())
    }

    pub(super) fn is_held(&self, name: &str) -> bool {
        self.held.contains(name)
    }

    pub(super) fn release(&mut self, name: &str) {
        self.held.remove(name);
    }

    /// The original's words.
    fn block_text(&self, name: &ModelName, reason: &BlockReason) -> String {
        let need = match reason {
            BlockReason::DependencyCycle => return self.cycle_text(name),
            BlockReason::MissingDependency(need) => need,
        };
        let depends = format!("ensemble '{name}' depends on '{need}' which");
        let error = self.error(need).unwrap_or_default();
        match self.status(need) {
            LifecycleStatus::Failed => format!(
                "{depends} has no loaded version. Model '{need}' loading failed with error: \
                 {error}"
            ),
            LifecycleStatus::Blocked(_) => {
                format!("{depends} is not valid. Model '{need}' failed with error: {error}")
            }
            LifecycleStatus::Absent | LifecycleStatus::InProgress | LifecycleStatus::Serving => {
                let is_missing = |need: &ModelName| !self.is_wanted(need);
                let missing: Vec<String> = self
                    .lifecycle
                    .dependencies_of(name)
                    .iter()
                    .filter(|need| is_missing(need))
                    .map(ToString::to_string)
                    .collect();
                format!(
                    "ensemble {name} contains models that are not available or ambiguous: {}",
                    missing.join(", ")
                )
            }
        }
    }

    fn cycle_text(&self, name: &ModelName) -> String {
        // The last of the way round: it needs the model, and the model it.
        let mut below: Vec<ModelName> = vec![name.clone()];
        let mut seen: BTreeSet<ModelName> = BTreeSet::new();
        while let Some(one) = below.pop() {
            let needs = self.lifecycle.dependencies_of(&one);
            if needs.contains(name) {
                return format!(
                    "circular dependency between ensembles: {name} -> ... -> {one} -> {name}"
                );
            }
            below.extend(needs.into_iter().filter(|need| seen.insert(need.clone())));
        }
        format!("circular dependency between ensembles: {name} -> ... -> {name}")
    }
}
