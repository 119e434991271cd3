//! Which models are loaded and unloaded, when, and in which order.
//!
//! [`Lifecycle`] is told which models shall serve, in which revision, and which
//! others each of them needs (an ensemble needs its composing models). It says
//! what to load and unload, one thing at a time per model and everything else at
//! once; it learns how that went, and goes on until what is wanted and what
//! serves agree. Being told the same again changes nothing.
//!
//! - A model is loaded when everything that it needs serves. What it needs and
//!   can't have blocks it, and takes it down if it serves.
//! - A new revision is loaded beside the one that serves. If that fails, the old
//!   one goes on serving, and the new one is not tried again.
//! - When a model was loaded anew, those that need it are loaded anew too. One
//!   that no longer fits what it needs goes.
//! - A model is wanted for itself or because others need it; those of the second
//!   kind can be dropped together with the last that needs them.
//!
//! # Example
//!
//! ```
//! use galatea_policy::*;
//!
//! let mut lifecycle = Lifecycle::default();
//! let mut actions = Vec::new();
//! let wanted = |revision, needs: &[&str]| DesiredModel {
//!     revision: Revision(revision),
//!     reason: LoadReason::Direct,
//!     dependencies: needs.iter().map(|name| (*name).into()).collect(),
//! };
//! lifecycle.step(LifecycleEvent::SetDesired("pipeline".into(), wanted(1, &["net"])), &mut actions);
//! lifecycle.step(LifecycleEvent::SetDesired("net".into(), wanted(1, &[])), &mut actions);
//! assert_eq!(actions.pop(), Some(LifecycleAction::Load("net".into(), Revision(1))));
//! lifecycle.step(LifecycleEvent::Loaded("net".into(), LoadOutcome::Serves), &mut actions);
//! assert_eq!(actions.pop(), Some(LifecycleAction::Load("pipeline".into(), Revision(1))));
//! ```

mod modification_times;
mod names;

use std::collections::{BTreeMap, BTreeSet};

pub use modification_times::ModificationTimes;
pub use names::{ModelNames, fits_namespaces, model_id, name_in_id};

/// What a model is known by: its name, or its id where there are namespaces.
pub type ModelName = std::sync::Arc<str>;

/// A state of a model's files and configuration. Any change makes another one;
/// the driver numbers them.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Revision(pub u64);

/// What a model shall be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DesiredModel {
    /// What to load.
    pub revision: Revision,
    /// Who wants it. What was wanted for itself once stays so until it is not
    /// wanted any more.
    pub reason: LoadReason,
    /// Models that must serve before it can.
    pub dependencies: BTreeSet<ModelName>,
}

/// Why a model shall serve.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum LoadReason {
    /// Somebody asked for it by name.
    Direct,
    /// Other models need it.
    Dependency,
}

/// What happens to a [`Lifecycle`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LifecycleEvent {
    /// The model shall serve.
    SetDesired(ModelName, DesiredModel),
    /// The model shall not serve.
    RemoveDesired(ModelName),
    /// The model shall not serve, and neither shall what it needs, directly or
    /// not, if nobody asked for that by name and no other model needs it.
    RemoveDesiredAndUnused(ModelName),
    /// A revision that failed shall be tried again, although it is the same.
    Retry(ModelName),
    /// What [`LifecycleAction::Load`] asked for is done.
    Loaded(ModelName, LoadOutcome),
    /// What [`LifecycleAction::Unload`] asked for is done: its requests have run
    /// and it is gone.
    Unloaded(ModelName),
}

/// How a load went.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum LoadOutcome {
    /// The revision serves, in place of an earlier one.
    Serves,
    /// The revision serves, and models that need it see no difference from the
    /// earlier one.
    ServesUnchanged,
    /// It does not. An earlier one serves on.
    Failed,
    /// It does not, because nobody wanted it any more. If somebody does again, it is
    /// to be loaded again.
    Cancelled,
    /// It does not, because it doesn't fit what it needs. An earlier one, which
    /// was made for other models, must not serve on.
    Incompatible,
}

/// Something that the driver shall do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LifecycleAction {
    /// Load this revision, beside what serves, and replace that when it is
    /// ready. Answered by `Loaded`.
    Load(ModelName, Revision),
    /// Take the model out of service and let its requests run. Answered by
    /// `Unloaded`.
    Unload(ModelName),
    /// Say that the model can't be loaded, and why.
    Block(ModelName, BlockReason),
}

/// Why a model that is wanted can't be loaded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BlockReason {
    /// This model, which it needs, is not there or does not serve.
    MissingDependency(ModelName),
    /// It needs itself, perhaps through others.
    DependencyCycle,
}

/// What there is to say about a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LifecycleStatus {
    /// It is not wanted, and nothing is left of it.
    Absent,
    /// Something is being done, or waits for another model that is.
    InProgress,
    /// It serves what is wanted.
    Serving,
    /// What is wanted could not be loaded; an earlier revision may serve.
    Failed,
    /// It can't be loaded.
    Blocked(BlockReason),
}

/// The plan. One serves all models of a server.
#[derive(Clone, Debug, Default)]
pub struct Lifecycle {
    models: BTreeMap<ModelName, Model>,
    /// Models to look at, because something about them or what they need changed.
    dirty: BTreeSet<ModelName>,
}

#[derive(Clone, Debug, Default)]
struct Model {
    wanted: Option<DesiredModel>,
    serves: Option<Revision>,
    /// What it needs was loaded anew since it was loaded itself.
    stale: bool,
    work: Work,
    failed: Option<Revision>,
    /// What serves was made for what it needed before.
    unfit: bool,
    blocked: Option<BlockReason>,
}

/// Idle → Loading or Unloading → Idle.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum Work {
    #[default]
    Idle,
    Loading(Revision),
    Unloading,
}

impl Model {
    /// There is nothing to do for it, as far as it is concerned itself.
    fn is_settled(&self) -> bool {
        let Some(wanted) = &self.wanted else {
            return self.work == Work::Idle && self.serves.is_none();
        };
        let is_current = self.serves == Some(wanted.revision) && !self.stale;
        let is_given_up = self.failed == Some(wanted.revision) || self.blocked.is_some();
        self.work == Work::Idle && !self.unfit && (is_current || is_given_up)
    }

    fn now_serves(&mut self, revision: Revision) {
        self.serves = Some(revision);
        self.failed = None;
        self.unfit = false;
    }
}

impl Lifecycle {
    /// Takes an event in and says what to do.
    ///
    /// # Panics
    ///
    /// If the driver reports the end of something that was not begun.
    pub fn step(&mut self, event: LifecycleEvent, out: &mut Vec<LifecycleAction>) {
        match event {
            LifecycleEvent::SetDesired(name, wanted) => self.want(&name, wanted),
            LifecycleEvent::RemoveDesired(name) => self.unwant(&name),
            LifecycleEvent::RemoveDesiredAndUnused(name) => self.unwant_with_unused(name),
            LifecycleEvent::Retry(name) => {
                if let Some(model) = self.models.get_mut(&name) {
                    model.failed = None;
                    self.touch(&name);
                }
            }
            LifecycleEvent::Loaded(name, outcome) => self.loaded(&name, outcome),
            LifecycleEvent::Unloaded(name) => self.unloaded(&name),
        }
        while let Some(name) = self.dirty.pop_first() {
            self.look_at(&name, out);
        }
    }

    /// What there is to say about a model.
    pub fn status(&self, name: &str) -> LifecycleStatus {
        let Some(model) = self.models.get(name) else { return LifecycleStatus::Absent };
        if !model.is_settled() {
            return LifecycleStatus::InProgress;
        }
        match (&model.wanted, &model.blocked) {
            (None, _) => LifecycleStatus::Absent,
            (Some(_), Some(reason)) => LifecycleStatus::Blocked(reason.clone()),
            (Some(wanted), None) if model.failed == Some(wanted.revision) => {
                LifecycleStatus::Failed
            }
            (Some(_), None) => LifecycleStatus::Serving,
        }
    }

    /// The revision that serves.
    pub fn serving_revision(&self, name: &str) -> Option<Revision> {
        self.models.get(name).and_then(|model| model.serves)
    }

    /// Whether a revision is being loaded at the moment.
    pub fn is_loading(&self, name: &str) -> bool {
        self.models.get(name).is_some_and(|model| matches!(model.work, Work::Loading(_)))
    }

    /// Whether the model is being taken out of service at the moment.
    pub fn is_unloading(&self, name: &str) -> bool {
        self.models.get(name).is_some_and(|model| model.work == Work::Unloading)
    }

    /// Models that shall serve.
    pub fn desired(&self) -> impl Iterator<Item = &ModelName> {
        self.models.iter().filter(|(_, model)| model.wanted.is_some()).map(|(name, _)| name)
    }

    /// Whether nothing is left to do for a model, what it needs and all that need
    /// it, directly or not.
    pub fn is_settled_with_related(&self, name: &str) -> bool {
        let settled = |name: &ModelName| self.models.get(name).is_none_or(Model::is_settled);
        let name = name.into();
        !self.is_pending(&name) && self.with_dependents(&name).iter().all(settled)
    }

    /// A model with what it needs and all that need it, directly or not.
    pub fn related_to(&self, name: &str) -> BTreeSet<ModelName> {
        let name = ModelName::from(name);
        let mut around = self.with_dependents(&name);
        let mut needed = BTreeSet::new();
        let mut trail = vec![name];
        while let Some(name) = trail.pop() {
            let needs = self.dependencies_of(&name);
            trail.extend(needs.into_iter().filter(|need| needed.insert(need.clone())));
        }
        around.extend(needed);
        around
    }

    /// Models that are wanted and need this one.
    pub fn dependents_of(&self, name: &str) -> impl Iterator<Item = &ModelName> {
        let needs = move |model: &&Model| {
            model.wanted.as_ref().is_some_and(|wanted| wanted.dependencies.contains(name))
        };
        self.models.iter().filter(move |(_, model)| needs(model)).map(|(name, _)| name)
    }

    /// What a wanted model needs.
    pub fn dependencies_of(&self, name: &str) -> BTreeSet<ModelName> {
        let wanted = self.models.get(name).and_then(|model| model.wanted.as_ref());
        wanted.map(|wanted| wanted.dependencies.clone()).unwrap_or_default()
    }

    /// Whether nothing is left to do for any model.
    pub fn is_settled(&self) -> bool {
        self.models.values().all(Model::is_settled)
    }

    fn want(&mut self, name: &ModelName, mut wanted: DesiredModel) {
        let model = self.models.entry(name.clone()).or_default();
        if model.wanted.as_ref().is_some_and(|earlier| earlier.reason == LoadReason::Direct) {
            wanted.reason = LoadReason::Direct;
        }
        if model.wanted.as_ref() != Some(&wanted) {
            model.wanted = Some(wanted);
            model.blocked = None;
            self.touch(name);
        }
    }

    fn unwant(&mut self, name: &ModelName) {
        if let Some(model) = self.models.get_mut(name) {
            model.wanted = None;
            model.blocked = None;
            model.failed = None;
            self.touch(name);
        }
    }

    /// Each round drops models, so the loop ends.
    fn unwant_with_unused(&mut self, name: ModelName) {
        let mut dropped = vec![name];
        while let Some(name) = dropped.pop() {
            let needs = self.dependencies_of(&name);
            self.unwant(&name);
            dropped.extend(needs.into_iter().filter(|need| self.is_unused(need)));
        }
    }

    /// Whether the model is wanted because others needed it, and none does any more.
    pub fn is_unused(&self, name: &str) -> bool {
        let wanted = self.models.get(name).and_then(|model| model.wanted.as_ref());
        wanted.is_some_and(|wanted| wanted.reason == LoadReason::Dependency)
            && self.dependents_of(name).next().is_none()
    }

    fn loaded(&mut self, name: &ModelName, outcome: LoadOutcome) {
        let model = self.models.get_mut(name).unwrap_or_else(|| panic!("{name} is unknown"));
        let Work::Loading(revision) = model.work else { panic!("{name} was not being loaded") };
        model.work = Work::Idle;
        match outcome {
            LoadOutcome::Serves => {
                model.now_serves(revision);
                self.outdate_dependents(name);
            }
            LoadOutcome::ServesUnchanged => model.now_serves(revision),
            // What it needs was loaded anew meanwhile: that attempt says nothing.
            LoadOutcome::Failed | LoadOutcome::Incompatible if model.stale => {}
            // What serves may be the same revision, made for what it needed before.
            LoadOutcome::Cancelled => model.stale = true,
            LoadOutcome::Failed => model.failed = Some(revision),
            LoadOutcome::Incompatible => {
                model.failed = Some(revision);
                model.unfit = model.serves.is_some();
            }
        }
        self.touch(name);
    }

    /// Those that need a model which was loaded anew are to be loaded anew, also
    /// if they failed with the one before.
    fn outdate_dependents(&mut self, name: &str) {
        let dependents: Vec<ModelName> = self.dependents_of(name).cloned().collect();
        for dependent in dependents {
            if let Some(dependent) = self.models.get_mut(&dependent) {
                dependent.stale = true;
                dependent.failed = None;
            }
        }
    }

    fn unloaded(&mut self, name: &ModelName) {
        let model = self.models.get_mut(name).unwrap_or_else(|| panic!("{name} is unknown"));
        assert_eq!(model.work, Work::Unloading, "{name} was not being unloaded");
        model.work = Work::Idle;
        self.touch(name);
    }

    /// The model and those that need it, directly or not, must be looked at.
    fn touch(&mut self, name: &ModelName) {
        let touched = self.with_dependents(name);
        self.dirty.extend(touched);
    }

    fn with_dependents(&self, name: &ModelName) -> BTreeSet<ModelName> {
        let mut trail = vec![name.clone()];
        let mut seen = BTreeSet::new();
        while let Some(name) = trail.pop() {
            if seen.insert(name.clone()) {
                trail.extend(self.dependents_of(&name).cloned());
            }
        }
        seen
    }

    fn look_at(&mut self, name: &ModelName, out: &mut Vec<LifecycleAction>) {
        let Some(model) = self.models.get(name) else { return };
        if model.work != Work::Idle {
            return;
        }
        let Some(wanted) = &model.wanted else {
            if model.serves.is_some() {
                self.unload(name, out);
            } else {
                self.models.remove(name);
            }
            return;
        };
        let revision = wanted.revision;
        if model.unfit {
            return self.withdraw_unfit(name, out);
        }
        match self.can_have_needs(name) {
            Needs::Pending => self.set_blocked(name, None, out),
            Needs::Missing(reason) => self.set_blocked(name, Some(reason), out),
            Needs::Served => {
                self.set_blocked(name, None, out);
                let model = self.models.get_mut(name).expect("it was there a moment ago");
                let is_current = model.serves == Some(revision) && !model.stale;
                if !is_current && model.failed != Some(revision) {
                    model.work = Work::Loading(revision);
                    model.stale = false;
                    out.push(LifecycleAction::Load(name.clone(), revision));
                }
            }
        }
    }

    /// A model that is blocked does not serve.
    fn set_blocked(
        &mut self,
        name: &ModelName,
        reason: Option<BlockReason>,
        out: &mut Vec<LifecycleAction>,
    ) {
        let model = self.models.get_mut(name).expect("it was there a moment ago");
        if model.blocked == reason {
            return;
        }
        model.blocked.clone_from(&reason);
        let serves = model.serves.is_some();
        if let Some(reason) = reason {
            out.push(LifecycleAction::Block(name.clone(), reason));
            if serves {
                self.unload(name, out);
            }
        }
        self.touch(name);
        self.dirty.remove(name);
    }

    /// Takes out of service what does not fit any more; trying again would not
    /// change that.
    fn withdraw_unfit(&mut self, name: &ModelName, out: &mut Vec<LifecycleAction>) {
        let failed = self.models.get(name).and_then(|model| model.failed);
        self.unload(name, out);
        if let Some(model) = self.models.get_mut(name) {
            model.failed = failed;
        }
    }

    fn unload(&mut self, name: &ModelName, out: &mut Vec<LifecycleAction>) {
        let model = self.models.get_mut(name).expect("it was there a moment ago");
        model.serves = None;
        model.failed = None;
        model.unfit = false;
        model.work = Work::Unloading;
        out.push(LifecycleAction::Unload(name.clone()));
        self.touch(name);
        self.dirty.remove(name);
    }

    fn can_have_needs(&self, name: &ModelName) -> Needs {
        if self.needs_itself(name) {
            return Needs::Missing(BlockReason::DependencyCycle);
        }
        let mut verdict = Needs::Served;
        for need in self.dependencies_of(name) {
            let missing = || Needs::Missing(BlockReason::MissingDependency(need.clone()));
            let Some(model) = self.models.get(&need) else { return missing() };
            if model.wanted.is_none() || model.blocked.is_some() {
                return missing();
            }
            match (self.is_pending(&need), model.serves) {
                (true, _) => verdict = Needs::Pending,
                (false, Some(_)) => {}
                (false, None) => return missing(),
            }
        }
        verdict
    }

    /// Whether the model, or something that it needs, is still being worked on.
    fn is_pending(&self, name: &ModelName) -> bool {
        let mut trail = vec![name.clone()];
        let mut seen = BTreeSet::new();
        while let Some(name) = trail.pop() {
            let Some(model) = self.models.get(&name) else { continue };
            if !model.is_settled() {
                return true;
            }
            if model.blocked.is_none() && seen.insert(name.clone()) {
                trail.extend(self.dependencies_of(&name));
            }
        }
        false
    }

    fn needs_itself(&self, name: &ModelName) -> bool {
        let mut trail: Vec<ModelName> = self.dependencies_of(name).into_iter().collect();
        let mut seen = BTreeSet::new();
        while let Some(need) = trail.pop() {
            if need == *name {
                return true;
            }
            if seen.insert(need.clone()) {
                trail.extend(self.dependencies_of(&need));
            }
        }
        false
    }
}

/// Whether a model can have what it needs.
enum Needs {
    Served,
    /// Not now; it is being worked on.
    Pending,
    Missing(BlockReason),
}

#[cfg(test)]
mod tests;
