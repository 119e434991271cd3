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
//! - When a model was loaded anew, those that need it are loaded anew too.
//!
//! # Example
//!
//! ```
//! use galatea_policy::*;
//!
//! let mut lifecycle = Lifecycle::default();
//! let mut actions = Vec::new();
//! let wanted = |revision, needs: &[&str]| Wanted {
//!     revision: Revision(revision),
//!     needs: needs.iter().map(|name| (*name).into()).collect(),
//! };
//! lifecycle.step(LifecycleEvent::Want("pipeline".into(), wanted(1, &["net"])), &mut actions);
//! lifecycle.step(LifecycleEvent::Want("net".into(), wanted(1, &[])), &mut actions);
//! assert_eq!(actions.pop(), Some(LifecycleAction::Load("net".into(), Revision(1))));
//! lifecycle.step(LifecycleEvent::Loaded("net".into(), LoadOutcome::Serves), &mut actions);
//! assert_eq!(actions.pop(), Some(LifecycleAction::Load("pipeline".into(), Revision(1))));
//! ```

use std::collections::{BTreeMap, BTreeSet};

/// A model's name.
pub type ModelName = std::sync::Arc<str>;

/// A state of a model's files and configuration. Any change makes another one;
/// the driver numbers them.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Revision(pub u64);

/// What a model shall be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// What to load.
    pub revision: Revision,
    /// Models that must serve before it can.
    pub needs: BTreeSet<ModelName>,
}

/// What happens to a [`Lifecycle`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LifecycleEvent {
    /// The model shall serve.
    Want(ModelName, Wanted),
    /// The model shall not serve.
    Unwant(ModelName),
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
    /// It does not. An earlier one serves on.
    Failed,
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
    Missing(ModelName),
    /// It needs itself, perhaps through others.
    Cycle,
}

/// What there is to say about a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ModelSituation {
    /// It is not wanted, and nothing is left of it.
    Absent,
    /// Something is being done, or waits for another model that is.
    Working,
    /// It serves what is wanted.
    Serves,
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
    wanted: Option<Wanted>,
    serves: Option<Revision>,
    /// What it needs was loaded anew since it was loaded itself.
    stale: bool,
    work: Work,
    failed: Option<Revision>,
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
        self.work == Work::Idle && (is_current || is_given_up)
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
            LifecycleEvent::Want(name, wanted) => self.want(&name, wanted),
            LifecycleEvent::Unwant(name) => self.unwant(&name),
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
    pub fn situation(&self, name: &str) -> ModelSituation {
        let Some(model) = self.models.get(name) else { return ModelSituation::Absent };
        if !model.is_settled() {
            return ModelSituation::Working;
        }
        match (&model.wanted, &model.blocked) {
            (None, _) => ModelSituation::Absent,
            (Some(_), Some(reason)) => ModelSituation::Blocked(reason.clone()),
            (Some(wanted), None) if model.failed == Some(wanted.revision) => ModelSituation::Failed,
            (Some(_), None) => ModelSituation::Serves,
        }
    }

    /// The revision that serves.
    pub fn serves(&self, name: &str) -> Option<Revision> {
        self.models.get(name).and_then(|model| model.serves)
    }

    /// Models that are wanted and need this one.
    pub fn needed_by(&self, name: &str) -> impl Iterator<Item = &ModelName> {
        let needs = move |model: &&Model| {
            model.wanted.as_ref().is_some_and(|wanted| wanted.needs.contains(name))
        };
        self.models.iter().filter(move |(_, model)| needs(model)).map(|(name, _)| name)
    }

    /// What a wanted model needs.
    pub fn needs_of(&self, name: &str) -> BTreeSet<ModelName> {
        let wanted = self.models.get(name).and_then(|model| model.wanted.as_ref());
        wanted.map(|wanted| wanted.needs.clone()).unwrap_or_default()
    }

    /// Whether nothing is left to do for any model.
    pub fn is_settled(&self) -> bool {
        self.models.values().all(Model::is_settled)
    }

    fn want(&mut self, name: &ModelName, wanted: Wanted) {
        let model = self.models.entry(name.clone()).or_default();
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

    fn loaded(&mut self, name: &ModelName, outcome: LoadOutcome) {
        let model = self.models.get_mut(name).unwrap_or_else(|| panic!("{name} is unknown"));
        let Work::Loading(revision) = model.work else { panic!("{name} was not being loaded") };
        model.work = Work::Idle;
        match outcome {
            LoadOutcome::Serves => {
                model.serves = Some(revision);
                model.failed = None;
                let dependents: Vec<ModelName> = self.needed_by(name).cloned().collect();
                for dependent in dependents {
                    if let Some(dependent) = self.models.get_mut(&dependent) {
                        dependent.stale = true;
                    }
                }
            }
            LoadOutcome::Failed => {
                model.failed = Some(revision);
                model.stale = false;
            }
        }
        self.touch(name);
    }

    fn unloaded(&mut self, name: &ModelName) {
        let model = self.models.get_mut(name).unwrap_or_else(|| panic!("{name} is unknown"));
        assert_eq!(model.work, Work::Unloading, "{name} was not being unloaded");
        model.work = Work::Idle;
        self.touch(name);
    }

    /// The model and those that need it, directly or not, must be looked at.
    fn touch(&mut self, name: &ModelName) {
        let mut trail = vec![name.clone()];
        let mut seen = BTreeSet::new();
        while let Some(name) = trail.pop() {
            if seen.insert(name.clone()) {
                trail.extend(self.needed_by(&name).cloned());
            }
        }
        self.dirty.extend(seen);
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

    fn unload(&mut self, name: &ModelName, out: &mut Vec<LifecycleAction>) {
        let model = self.models.get_mut(name).expect("it was there a moment ago");
        model.serves = None;
        model.failed = None;
        model.work = Work::Unloading;
        out.push(LifecycleAction::Unload(name.clone()));
        self.touch(name);
        self.dirty.remove(name);
    }

    fn can_have_needs(&self, name: &ModelName) -> Needs {
        if self.needs_itself(name) {
            return Needs::Missing(BlockReason::Cycle);
        }
        let mut verdict = Needs::Served;
        for need in self.needs_of(name) {
            let missing = || Needs::Missing(BlockReason::Missing(need.clone()));
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
                trail.extend(self.needs_of(&name));
            }
        }
        false
    }

    fn needs_itself(&self, name: &ModelName) -> bool {
        let mut trail: Vec<ModelName> = self.needs_of(name).into_iter().collect();
        let mut seen = BTreeSet::new();
        while let Some(need) = trail.pop() {
            if need == *name {
                return true;
            }
            if seen.insert(need.clone()) {
                trail.extend(self.needs_of(&need));
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
