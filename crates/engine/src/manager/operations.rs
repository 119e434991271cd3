//! What clients and the program may order.

use std::collections::BTreeSet;
use std::sync::Arc;

use galatea_backend::LogLevel;
use galatea_infer::{GivenName, LoadParameters, Status};
use galatea_policy::{LifecycleEvent, ModelName, ModelSituation, WantReason};

use super::plan::{Deed, Plan};
use super::{ControlMode, Manager, Shared, Target};
use crate::catalog::{FoundModel, ListedModel, Sighting, Survey};
use crate::log::OneLine;
use crate::registry::DUPLICATE;
use crate::{LoadFailure, ModelDefinition};

/// A model that was looked at, for the plan.
struct Wish {
    name: ModelName,
    /// `None` if what is known already is what was found.
    target: Option<Target>,
    reason: WantReason,
}

impl Manager {
    /// The names of all models.
    pub(crate) fn names(&self) -> Vec<ListedModel> {
        self.shared.parts.catalog.names()
    }

    /// Loads a model by order of a client.
    pub(crate) fn load(&self, name: &str, parameters: LoadParameters) -> Result<(), Status> {
        self.check_mode()?;
        check_name(name)?;
        let name: ModelName = name.into();
        let _hold = Hold::take(&self.shared, &name)?;
        self.shared.load_by_name(&name, parameters).map_err(|refusal| {
            let reason = refusal.map(|reason| format!(": {reason}")).unwrap_or_default();
            Status::internal(format!(
                "failed to load '{name}', failed to poll from model repository{reason}"
            ))
        })?;
        let plan = self.shared.wait(|plan| plan.is_settled_around(&name))?;
        match plan.situation(&name) {
            ModelSituation::Serves | ModelSituation::Working => Ok(()),
            ModelSituation::Failed | ModelSituation::Blocked(_) | ModelSituation::Absent => {
                let error = plan.error(&name).unwrap_or("it was unloaded meanwhile");
                let text = format!("load failed for model '{name}': {error}\n");
                Err(Status::invalid_argument(text))
            }
        }
    }

    /// Unloads a model by order of a client: returns when it is out of service.
    pub(crate) fn unload(&self, name: &str, unload_dependents: bool) -> Result<(), Status> {
        self.check_mode()?;
        let name: ModelName = name.into();
        let _hold = Hold::take(&self.shared, &name)?;
        drop(self.shared.wait(|plan| !plan.is_loading(&name))?);
        let event = if unload_dependents {
            LifecycleEvent::UnwantWithUnused(name)
        } else {
            LifecycleEvent::Unwant(name)
        };
        self.shared.unwant(event);
        Ok(())
    }

    fn check_mode(&self) -> Result<(), Status> {
        let mode = self.shared.parts.mode;
        if mode == ControlMode::Explicit {
            return Ok(());
        }
        Err(Status::unavailable(format!(
            "explicit model load / unload is not allowed if polling is enabled; this server was \
             started with --model-control-mode={}",
            mode.name()
        )))
    }

    /// Adds a repository.
    pub(crate) fn register(&self, path: &str, names: &[GivenName]) -> Result<(), Status> {
        self.check_registration("registration")?;
        self.shared.parts.catalog.register(path, names)?;
        let line = format_args!("model repository registered: {}", OneLine(path));
        self.shared.parts.log.write(LogLevel::Info, line);
        Ok(())
    }

    /// Takes a repository away, and nothing that was loaded from it.
    pub(crate) fn unregister(&self, path: &str) -> Result<(), Status> {
        self.check_registration("unregistration")?;
        self.shared.parts.catalog.unregister(path)?;
        let line = format_args!("model repository unregistered: {}", OneLine(path));
        self.shared.parts.log.write(LogLevel::Info, line);
        Ok(())
    }

    fn check_registration(&self, what: &str) -> Result<(), Status> {
        if self.shared.parts.mode == ControlMode::Explicit {
            return Ok(());
        }
        Err(Status::unsupported(format!(
            "repository {what} is not allowed if model control mode is not EXPLICIT"
        )))
    }

    /// Makes what serves what the repositories hold; returns whether that could
    /// be done for all of it.
    pub(crate) fn poll(&self) -> bool {
        let survey = self.shared.parts.catalog.survey();
        let all_taken = self.shared.follow(survey);
        self.shared.wait_for_all() && all_taken
    }

    /// Loads models by their names; returns whether all of them serve.
    pub(crate) fn load_named(&self, names: &[String]) -> bool {
        let mut all_found = true;
        for name in names {
            let name: ModelName = name.as_str().into();
            if let Err(refusal) = self.shared.load_by_name(&name, LoadParameters::default()) {
                all_found = false;
                let reason =
                    refusal.unwrap_or_else(|| String::from("it is in no model repository"));
                self.shared.refuse(&name, &reason);
            }
        }
        self.shared.wait_for_all() && all_found
    }

    /// Loads models that no catalog has; returns what failed.
    pub(crate) fn load_definitions(&self, definitions: Vec<ModelDefinition>) -> Vec<LoadFailure> {
        let wishes = definitions.into_iter().map(|definition| Wish {
            name: definition.name.as_str().into(),
            target: Some(Target::unstamped(definition, &self.shared.parts.retirer)),
            reason: WantReason::Itself,
        });
        self.shared.wish(wishes.collect());
        self.shared.wait_for_all();
        let mut failures = self.shared.lock().failures();
        failures.sort_by(|a, b| (&a.name, a.version).cmp(&(&b.name, b.version)));
        failures
    }
}

impl Shared {
    /// Looks for a model and whatever it needs, and wants them. The error says
    /// what could not be taken, unless it isn't there at all.
    fn load_by_name(
        self: &Arc<Self>,
        asked: &ModelName,
        parameters: LoadParameters,
    ) -> Result<(), Option<String>> {
        let mut parameters = parameters;
        let mut wishes = Vec::new();
        let mut looked_at = BTreeSet::from([asked.clone()]);
        let mut ahead = vec![asked.clone()];
        while let Some(name) = ahead.pop() {
            let by_name = name == *asked;
            let given =
                if by_name { std::mem::take(&mut parameters) } else { LoadParameters::default() };
            let found = match self.parts.catalog.find(&name, given) {
                Sighting::Found(found) => found,
                // The plan says so of whoever needs it.
                Sighting::Missing if !by_name => continue,
                Sighting::Missing => return Err(None),
                Sighting::Refused(reason) => return Err(Some(self.note(&name, reason))),
            };
            let reason = if by_name { WantReason::Itself } else { WantReason::Others };
            let wish =
                self.consider(found, reason).map_err(|reason| Some(self.note(&name, reason)))?;
            let needs = self.needs_of(&wish);
            ahead.extend(needs.into_iter().filter(|need| looked_at.insert(need.clone())));
            wishes.push(wish);
        }
        self.wish(wishes);
        Ok(())
    }

    /// Writes to the log why a model can't be taken.
    fn note(&self, name: &str, reason: String) -> String {
        let line = format_args!("failed to poll model '{name}': {reason}");
        self.parts.log.write(LogLevel::Error, line);
        reason
    }

    /// Reads the configuration of a model that changed.
    fn consider(&self, found: FoundModel, reason: WantReason) -> Result<Wish, String> {
        let FoundModel { name, stamp, overridden, define } = found;
        let is_current = self.lock().is_current(&name, &stamp, overridden);
        let target = if is_current {
            None
        } else {
            Some(Target::new(stamp, overridden, define()?, &self.parts.retirer))
        };
        Ok(Wish { name: name.into(), target, reason })
    }

    fn needs_of(&self, wish: &Wish) -> Vec<ModelName> {
        match &wish.target {
            Some(target) => {
                let needs = target.definition.needed_models();
                needs.into_iter().map(|need| need.name.into()).collect()
            }
            None => self.lock().needs_of(&wish.name).into_iter().collect(),
        }
    }

    fn wish(self: &Arc<Self>, wishes: Vec<Wish>) {
        self.change(|plan, deeds| {
            if !plan.closed {
                want_all(plan, wishes, deeds);
            }
        });
    }

    /// Takes models out of the plan, and forgets why they failed.
    fn unwant(self: &Arc<Self>, event: LifecycleEvent) {
        let dropped: Vec<ModelName> = self.change(|plan, deeds| {
            let before: BTreeSet<ModelName> = plan.wanted().cloned().collect();
            plan.step(event, deeds);
            before.into_iter().filter(|name| !plan.is_wanted(name)).collect()
        });
        dropped.iter().for_each(|name| self.parts.registry.withdraw(name));
    }

    /// Changes the plan to what the repositories hold; whether all of it could
    /// be taken.
    fn follow(self: &Arc<Self>, survey: Survey) -> bool {
        let mut present: BTreeSet<ModelName> = BTreeSet::new();
        let mut wishes = Vec::new();
        let mut refused = survey.refused;
        for found in survey.models {
            let name = found.name.clone();
            match self.consider(found, WantReason::Itself) {
                Ok(wish) => wishes.push(wish),
                Err(reason) => refused.push((name.clone(), reason)),
            }
            present.insert(name.into());
        }
        let all_taken = !survey.is_partial && refused.is_empty() && survey.duplicates.is_empty();
        for (name, reason) in refused {
            self.note(&name, reason.clone());
            self.parts.registry.fail(&name, &reason);
            present.insert(name.into());
        }
        self.wish(wishes);
        if !survey.is_partial {
            self.drop_all_but(&present);
        }
        for name in survey.duplicates {
            self.parts.registry.fail(&name, DUPLICATE);
        }
        all_taken
    }

    /// Unloads the models that are not there any more.
    fn drop_all_but(self: &Arc<Self>, present: &BTreeSet<ModelName>) {
        let gone: Vec<ModelName> =
            self.lock().wanted().filter(|name| !present.contains(*name)).cloned().collect();
        gone.into_iter().for_each(|name| self.unwant(LifecycleEvent::Unwant(name)));
        for name in self.parts.registry.snapshot().failed_names() {
            if !present.contains(name) {
                self.parts.registry.withdraw(name);
            }
        }
    }

    /// Waits until there is nothing left to do; whether everything that is
    /// wanted serves.
    fn wait_for_all(&self) -> bool {
        let Ok(plan) = self.wait(Plan::is_settled) else { return false };
        plan.wanted().all(|name| plan.situation(name) == ModelSituation::Serves)
    }
}

/// What others need comes first, so that nobody is told that it is missing.
fn want_all(plan: &mut Plan, wishes: Vec<Wish>, deeds: &mut Vec<Deed>) {
    let mut wishes = wishes;
    while !wishes.is_empty() {
        let names: BTreeSet<ModelName> = wishes.iter().map(|wish| wish.name.clone()).collect();
        let is_ahead = |wish: &Wish| match &wish.target {
            Some(target) => {
                let needs = target.definition.needed_models();
                needs.iter().all(|need| need.name == *wish.name || !names.contains(&*need.name))
            }
            None => plan.needs_of(&wish.name).iter().all(|need| !names.contains(need)),
        };
        let (mut ready, mut rest): (Vec<Wish>, Vec<Wish>) = wishes.into_iter().partition(is_ahead);
        // Those that need each other in a circle: the plan will say so.
        if ready.is_empty() {
            std::mem::swap(&mut ready, &mut rest);
        }
        for wish in ready {
            plan.want(&wish.name, wish.target, wish.reason, deeds);
        }
        wishes = rest;
    }
    keep_last_reasons(deeds);
}

/// With each wish the plan knows better why a model can't be loaded: only the last
/// reason is said.
fn keep_last_reasons(deeds: &mut Vec<Deed>) {
    let mut said = BTreeSet::new();
    deeds.reverse();
    deeds.retain(|deed| match deed {
        Deed::Block(name, _) => said.insert(name.clone()),
        Deed::Load(_) | Deed::Unload(_) => true,
    });
    deeds.reverse();
}

/// Checks a name that a client gave, with the original's words.
fn check_name(name: &str) -> Result<(), Status> {
    let trimmed = name.trim();
    if trimmed.is_empty() {
        return Err(Status::invalid_argument(
            "Model name cannot be empty. Please enter a valid name to deploy.",
        ));
    }
    if trimmed == ".." || trimmed.contains('/') {
        return Err(Status::invalid_argument(format!(
            "invalid model name '{name}', model name must not contain path traversal characters"
        )));
    }
    Ok(())
}

/// The right to change a model by order of a client: one at a time.
struct Hold {
    shared: Arc<Shared>,
    name: ModelName,
}

impl Hold {
    fn take(shared: &Arc<Shared>, name: &ModelName) -> Result<Self, Status> {
        let mut plan = shared.wait(|plan| !plan.is_held(name))?;
        plan.hold(name);
        Ok(Self { shared: shared.clone(), name: name.clone() })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.shared.lock().release(&self.name);
        self.shared.changed.notify_all();
    }
}
