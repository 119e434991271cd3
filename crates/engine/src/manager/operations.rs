//! What clients and the program may order.

use std::collections::BTreeSet;
use std::sync::{Arc, MutexGuard, PoisonError};

use galatea_backend::LogLevel;
use galatea_dispatch::ModelDefinition;
use galatea_infer::{LoadParameters, NameMapping, Status};
use galatea_policy::{LifecycleStatus, LoadReason, ModelName, model_id};
use galatea_repository::{ListedModel, Lookup, Scan, ScanProblem};

use super::plan::{Deed, Plan, Unused};
use super::{ControlMode, Manager, Shared, Target};
use crate::LoadFailure;
use crate::catalog::CatalogModel;
use crate::registry::DUPLICATE;

/// A model that was looked at, for the plan.
struct Wish {
    id: ModelName,
    /// What others call it.
    name: String,
    reason: LoadReason,
    /// The names of the models that it needs.
    needs: BTreeSet<String>,
    reading: Reading,
}

/// How much of a model was read.
enum Reading {
    /// Nothing: what the plan has is what was found.
    Current(Box<CatalogModel>),
    /// All of it.
    Done(Arc<Target>),
}

impl Wish {
    fn read(id: ModelName, name: String, reason: LoadReason, target: Target) -> Self {
        let needed = target.definition.needed_models().into_iter();
        let needs = needed.map(|need| need.name).collect();
        Self { id, name, reason, needs, reading: Reading::Done(Arc::new(target)) }
    }

    /// What was found, if it was not read.
    fn unread(self) -> Result<Self, Box<CatalogModel>> {
        match self.reading {
            Reading::Current(found) => Err(found),
            Reading::Done(_) => Ok(self),
        }
    }

    /// Whether the plan has something else by now than what was found.
    fn is_outdated(&self, plan: &Plan) -> bool {
        match &self.reading {
            Reading::Current(found) => plan.current_needs(&self.id, found, self.reason).is_none(),
            Reading::Done(_) => false,
        }
    }
}

/// What an order to load came to.
struct Ordered {
    /// The models of the name.
    ids: Vec<ModelName>,
    /// These, what they need, and with namespaces all other models of the needed names.
    wanted: Vec<ModelName>,
}

/// The search for the models of a name and whatever they need.
struct Search {
    asked: String,
    /// For the models of that name.
    parameters: LoadParameters,
    /// Names to look for.
    ahead: Vec<String>,
    /// These names, and those that were looked for.
    known: BTreeSet<String>,
    wishes: Vec<Wish>,
}

impl Search {
    fn new(asked: &str, parameters: LoadParameters) -> Self {
        let asked = asked.to_owned();
        let (ahead, known) = (vec![asked.clone()], BTreeSet::from([asked.clone()]));
        Self { asked, parameters, ahead, known, wishes: Vec::new() }
    }

    /// This one was found, and what it needs is to be.
    fn add(&mut self, wish: Wish) {
        let known = &mut self.known;
        let needs = wish.needs.iter().filter(|need| known.insert((*need).clone()));
        self.ahead.extend(needs.cloned());
        self.wishes.push(wish);
    }
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
        let ordered = self.shared.load_by_name(&name, parameters).map_err(|refusal| {
            let reason = refusal.map(|reason| format!(": {reason}")).unwrap_or_default();
            Status::internal(format!(
                "failed to load '{name}', failed to poll from model repository{reason}"
            ))
        })?;
        let Ordered { ids, wanted } = ordered;
        let plan =
            self.shared.wait(|plan| wanted.iter().all(|id| plan.is_settled_with_related(id)))?;
        let failure = |id: &ModelName| match plan.status(id) {
            LifecycleStatus::Serving | LifecycleStatus::InProgress => None,
            LifecycleStatus::Failed | LifecycleStatus::Blocked(_) | LifecycleStatus::Absent => {
                let error = plan.error(id).unwrap_or("it was unloaded meanwhile");
                Some(format!("load failed for model '{id}': {error}\n"))
            }
        };
        let failures: String = ids.iter().filter_map(failure).collect();
        if failures.is_empty() { Ok(()) } else { Err(Status::invalid_argument(failures)) }
    }

    /// Unloads a model by order of a client: returns when it is out of service.
    pub(crate) fn unload(&self, name: &str, unload_dependents: bool) -> Result<(), Status> {
        self.check_mode()?;
        let name: ModelName = name.into();
        let _hold = Hold::take(&self.shared, &name)?;
        // No load may begin between this and what follows.
        let plan = self.shared.wait(|plan| {
            let ids = plan.named(&name);
            ids.iter().all(|id| !plan.is_loading(id))
        })?;
        let mut ids = plan.named(&name);
        // With namespaces, an order that failed at start is known by the name alone.
        if !ids.contains(&name) {
            ids.push(name);
        }
        let unused = if unload_dependents { Unused::Go } else { Unused::Stay };
        ids.extend(self.shared.unwant(plan, &ids, unused, Dependents::Follow));
        // Others may have been about to take them out of service already.
        let is_done = |plan: &Plan| ids.iter().all(|id| plan.is_out_of_service(id));
        self.shared.wait(is_done).map(drop)
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
    pub(crate) fn register(&self, path: &str, names: &[NameMapping]) -> Result<(), Status> {
        self.check_registration("registration")?;
        self.shared.parts.catalog.register(path, names)?;
        let line = format_args!("model repository registered: {path}");
        self.shared.parts.log.write(LogLevel::Info, line);
        Ok(())
    }

    /// Takes a repository away, and nothing that was loaded from it.
    pub(crate) fn unregister(&self, path: &str) -> Result<(), Status> {
        self.check_registration("unregistration")?;
        self.shared.parts.catalog.unregister(path)?;
        let line = format_args!("model repository unregistered: {path}");
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
        let polling = self.shared.polling.lock().unwrap_or_else(PoisonError::into_inner);
        let scan = self.shared.parts.catalog.scan();
        let all_taken = self.shared.follow(scan);
        drop(polling);
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
                self.shared.log_failure(&name, &reason);
                self.shared.parts.registry.fail(&name, &reason);
            }
        }
        self.shared.wait_for_all() && all_found
    }

    /// Loads models that no catalog has; returns what failed.
    pub(crate) fn load_definitions(&self, definitions: Vec<ModelDefinition>) -> Vec<LoadFailure> {
        let wishes = definitions.into_iter().map(|definition| {
            let (id, name) = (definition.id(), definition.name.clone());
            let target = Target::unstamped(definition, &self.shared.parts.retirer);
            Wish::read(id, name, LoadReason::Direct, target)
        });
        // All of them are read: none is given back.
        let _ = self.shared.wish(wishes.collect());
        self.shared.wait_for_all();
        let mut failures = self.shared.lock().failures();
        failures.sort_by(|a, b| (&a.name, a.version).cmp(&(&b.name, b.version)));
        failures
    }
}

impl Shared {
    /// Looks for the models of a name and whatever they need, and wants them. The error says what could not be taken, unless it
    /// isn't there at all.
    fn load_by_name(
        self: &Arc<Self>,
        asked: &str,
        parameters: LoadParameters,
    ) -> Result<Ordered, Option<String>> {
        let mut search = Search::new(asked, parameters);
        loop {
            self.look_for(&mut search)?;
            self.parts.registry.dismiss_name(asked);
            let asked_for = search.wishes.iter().filter(|wish| wish.name == asked);
            let ids = asked_for.map(|wish| wish.id.clone()).collect();
            let wanted = search.wishes.iter().map(|wish| wish.id.clone()).collect();
            // Each round reads what others unloaded meanwhile, so the loop ends.
            match self.wish(std::mem::take(&mut search.wishes)) {
                Ok(()) => return Ok(Ordered { ids, wanted }),
                Err(wishes) => self.read_outdated(wishes, &mut search)?,
            }
        }
    }

    /// Looks for everything that is still ahead.
    fn look_for(&self, search: &mut Search) -> Result<(), Option<String>> {
        while let Some(name) = search.ahead.pop() {
            let by_name = name == search.asked;
            let given = if by_name {
                std::mem::take(&mut search.parameters)
            } else {
                LoadParameters::default()
            };
            let found = match self.parts.catalog.find(&name, given) {
                Lookup::Models(found) => found,
                // The plan reports it for the models that need it.
                Lookup::Missing if !by_name => continue,
                Lookup::Missing => return Err(None),
                Lookup::Problem(ScanProblem::Model { reason, .. }) => {
                    return Err(Some(self.note(&name, reason)));
                }
                Lookup::Problem(problem) => {
                    return Err(Some(self.note(&name, problem.to_string())));
                }
            };
            let reason = if by_name { LoadReason::Direct } else { LoadReason::Dependency };
            for one in found {
                let wish = self.consider(one, reason);
                search.add(wish.map_err(|reason| Some(self.note(&name, reason)))?);
            }
        }
        Ok(())
    }

    /// Reads the models of which the plan has something else by now.
    fn read_outdated(&self, wishes: Vec<Wish>, search: &mut Search) -> Result<(), Option<String>> {
        for wish in wishes {
            let reason = wish.reason;
            let wish = wish.unread().or_else(|found| {
                let name = found.name.clone();
                let wish = self.consider(*found, reason);
                wish.map_err(|reason| Some(self.note(&name, reason)))
            })?;
            search.add(wish);
        }
        Ok(())
    }

    /// Writes to the log why a model can't be taken.
    fn note(&self, name: &str, reason: String) -> String {
        let line = format_args!("failed to poll model '{name}': {reason}");
        self.parts.log.write(LogLevel::Error, line);
        reason
    }

    /// Reads the configuration of a model that changed.
    fn consider(&self, found: CatalogModel, reason: LoadReason) -> Result<Wish, String> {
        let id = model_id(found.namespace.as_deref(), &found.name);
        let current = self.lock().current_needs(&id, &found, reason);
        if let Some(needs) = current {
            let name = found.name.clone();
            return Ok(Wish { id, name, reason, needs, reading: Reading::Current(found.into()) });
        }
        let CatalogModel { name, path, modified, overrides, define, .. } = found;
        let target = Target::new(path, modified, overrides, define()?, &self.parts.retirer);
        Ok(Wish::read(id, name, reason, target))
    }

    /// Wants models, all of them or, if the plan has something else by now than when
    /// one was looked at, none: then they are given back.
    fn wish(self: &Arc<Self>, wishes: Vec<Wish>) -> Result<(), Vec<Wish>> {
        self.change(|plan, deeds| {
            if plan.closed {
                return Ok(());
            }
            if wishes.iter().any(|wish| wish.is_outdated(plan)) {
                return Err(wishes);
            }
            want_all(plan, wishes, deeds);
            Ok(())
        })
    }

    /// Takes models out of the plan, and forgets why they failed. Returns all that are
    /// not wanted any more.
    fn unwant<'s>(
        self: &'s Arc<Self>,
        plan: MutexGuard<'s, Plan>,
        ids: &[ModelName],
        unused: Unused,
        dependents: Dependents,
    ) -> Vec<ModelName> {
        self.change_in(plan, |plan, deeds| {
            let dropped = plan.unwant(ids, unused, deeds);
            match dependents {
                Dependents::Follow => follow_order(deeds),
                Dependents::Fail => {}
            }
            ids.iter().chain(&dropped).for_each(|id| self.dismiss(plan, id));
            dropped
        })
    }

    /// Forgets why a model failed, unless the plan wants it.
    pub(super) fn dismiss(&self, plan: &Plan, id: &str) {
        if !plan.is_wanted(id) {
            self.parts.registry.dismiss(id);
        }
    }

    /// Changes the plan to what the repositories hold; whether all of it could
    /// be taken.
    fn follow(self: &Arc<Self>, scan: Scan<CatalogModel>) -> bool {
        let mut present: BTreeSet<ModelName> = BTreeSet::new();
        let mut wishes = Vec::new();
        let (mut refused, mut duplicates, mut is_partial) = (Vec::new(), Vec::new(), false);
        for problem in scan.problems {
            match problem {
                ScanProblem::Repository { .. } => {
                    self.parts.log.write(LogLevel::Error, format_args!("{problem}"));
                    is_partial = true;
                }
                ScanProblem::Duplicate { ref name } => {
                    self.parts.log.write(LogLevel::Error, format_args!("{problem}"));
                    duplicates.push(name.clone());
                }
                ScanProblem::Model { name, reason } => refused.push((name, reason)),
            }
        }
        let mut ahead = scan.models;
        // Loads of the last survey may end meanwhile: what failed is read again.
        loop {
            for found in std::mem::take(&mut ahead) {
                let id = model_id(found.namespace.as_deref(), &found.name);
                match self.consider(found, LoadReason::Direct) {
                    Ok(wish) => wishes.push(wish),
                    Err(reason) => refused.push((id.to_string(), reason)),
                }
                present.insert(id);
            }
            let Err(back) = self.wish(std::mem::take(&mut wishes)) else { break };
            for wish in back {
                match wish.unread() {
                    Ok(wish) => wishes.push(wish),
                    Err(found) => ahead.push(*found),
                }
            }
        }
        let all_taken = !is_partial && refused.is_empty() && duplicates.is_empty();
        for (name, reason) in refused {
            self.note(&name, reason.clone());
            self.parts.registry.fail(&name, &reason);
            present.insert(name.into());
        }
        if !is_partial {
            self.drop_all_but(&present, &duplicates);
        }
        for name in duplicates {
            self.parts.registry.fail(&name, DUPLICATE);
        }
        all_taken
    }

    /// Unloads the models that are not there any more, or more than once.
    fn drop_all_but(self: &Arc<Self>, present: &BTreeSet<ModelName>, duplicates: &[String]) {
        let plan = self.lock();
        let snapshot = self.parts.registry.snapshot();
        // Whose failure is known already must not look mended for a moment.
        let failed = snapshot.failed_names();
        let failed = failed.filter(|id| !duplicates.iter().any(|one| **one == ***id));
        let known = plan.wanted().chain(failed);
        let gone: Vec<ModelName> = known.filter(|id| !present.contains(*id)).cloned().collect();
        if !gone.is_empty() {
            self.unwant(plan, &gone, Unused::Stay, Dependents::Fail);
        }
    }

    /// Waits until there is nothing left to do; whether everything that is
    /// wanted serves.
    fn wait_for_all(&self) -> bool {
        let Ok(plan) = self.wait(Plan::is_settled) else { return false };
        plan.wanted().all(|name| plan.status(name) == LifecycleStatus::Serving)
    }
}

/// What becomes of models that need one which goes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Dependents {
    /// They go by the same order.
    Follow,
    /// They are there and lack it.
    Fail,
}

/// Whoever orders a model to go means that those go which need it: they did not fail,
/// as in the original.
fn follow_order(deeds: &mut Vec<Deed>) {
    deeds.retain_mut(|deed| match deed {
        Deed::Unload(_, reason) => {
            *reason = None;
            true
        }
        Deed::Block(..) => false,
        Deed::Load(_) => true,
    });
}

/// What others need comes first, so that nobody is told that it is missing.
fn want_all(plan: &mut Plan, wishes: Vec<Wish>, deeds: &mut Vec<Deed>) {
    plan.announce(wishes.iter().map(|wish| wish.id.clone()));
    let mut wishes = wishes;
    while !wishes.is_empty() {
        let names: BTreeSet<String> = wishes.iter().map(|wish| wish.name.clone()).collect();
        let is_ahead =
            |wish: &Wish| wish.needs.iter().all(|need| *need == wish.name || !names.contains(need));
        let (mut ready, mut rest): (Vec<Wish>, Vec<Wish>) = wishes.into_iter().partition(is_ahead);
        // Those that need each other in a circle: the plan will say so.
        if ready.is_empty() {
            std::mem::swap(&mut ready, &mut rest);
        }
        for wish in ready {
            let target = match wish.reading {
                Reading::Current(_) => None,
                Reading::Done(target) => Some(target),
            };
            plan.want(&wish.id, target, wish.reason, deeds);
        }
        wishes = rest;
    }
    plan.resolve(deeds);
    keep_last_reasons(deeds);
}

/// With each wish the plan knows better why a model can't be loaded: only the last
/// reason is said.
fn keep_last_reasons(deeds: &mut Vec<Deed>) {
    let mut said = BTreeSet::new();
    deeds.reverse();
    deeds.retain(|deed| match deed {
        Deed::Block(name, _) => said.insert(name.clone()),
        Deed::Load(_) | Deed::Unload(..) => true,
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
