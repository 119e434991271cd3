//! The search for the models with a name and the models that they need.

use std::collections::BTreeSet;
use std::sync::Arc;

use galatea_backend::LogLevel;
use galatea_control::LoadParameters;
use galatea_policy::{LoadReason, ModelId, model_id};
use galatea_repository::{LookupResult, ScanProblem};

use super::candidate::{CandidateContent, CandidateModel};
use super::defined_model::DefinedModel;
use super::driver::Driver;
use crate::catalog::{CatalogModel, LoadableModels};

/// The models that an order made desired.
pub(super) struct OrderedModels {
    /// The models with the ordered name.
    pub(super) named: Vec<ModelId>,
    /// The models with the ordered name, and the models that they need. With namespaces, this
    /// includes all models with the needed names.
    pub(super) all: Vec<ModelId>,
    /// True if all of them could be read.
    pub(super) is_complete: bool,
}

/// The error for an order whose name matches no readable model. The reason is in the log.
pub(super) struct UnreadableModel;

/// A search in progress.
struct Search {
    name: String,
    /// The parameters for the models with the ordered name.
    parameters: LoadParameters,
    /// The names still to be looked up.
    pending: Vec<String>,
    /// The names already looked up, and those still to be looked up.
    known: BTreeSet<String>,
    candidates: Vec<CandidateModel>,
    is_complete: bool,
}

impl Search {
    fn new(name: &str, parameters: LoadParameters) -> Self {
        let name = name.to_owned();
        let (pending, known) = (vec![name.clone()], BTreeSet::from([name.clone()]));
        Self { name, parameters, pending, known, candidates: Vec::new(), is_complete: true }
    }

    /// Adds a candidate, and schedules lookups of the models that it needs.
    fn add(&mut self, candidate: CandidateModel) {
        let known = &mut self.known;
        let needed = candidate.dependencies.iter().filter(|name| known.insert((*name).clone()));
        self.pending.extend(needed.cloned());
        self.candidates.push(candidate);
    }
}

/// Looks up models in a catalog for a driver's plan.
pub(super) struct Searcher<'d> {
    pub(super) catalog: &'d dyn LoadableModels,
    pub(super) driver: &'d Arc<Driver>,
}

impl Searcher<'_> {
    /// Makes the models with this name desired, along with the models that they need.
    pub(super) fn load(
        &self,
        name: &str,
        parameters: LoadParameters,
    ) -> Result<OrderedModels, UnreadableModel> {
        let mut search = Search::new(name, parameters);
        loop {
            self.look_up_pending(&mut search)?;
            let candidates = std::mem::take(&mut search.candidates);
            let named = candidates.iter().filter(|candidate| candidate.name == name);
            let named = named.map(|candidate| candidate.id.clone()).collect();
            let all = candidates.iter().map(|candidate| candidate.id.clone()).collect();
            let plan = self.driver.lock("load the models of a name");
            let outdated = self.driver.step(plan, |plan, step| {
                plan.set_desired(candidates, step)?;
                plan.note_ordered_load(name);
                Ok(())
            });
            // Each round defines models that others unloaded in the meantime, so the loop
            // terminates.
            match outdated {
                Ok(()) => {
                    return Ok(OrderedModels { named, all, is_complete: search.is_complete });
                }
                Err(candidates) => self.define_outdated(candidates, &mut search)?,
            }
        }
    }

    /// Looks up the pending names. As in Triton, readable models are loaded even if others can't be
    /// read, but the ordered model must be readable.
    fn look_up_pending(&self, search: &mut Search) -> Result<(), UnreadableModel> {
        while let Some(name) = search.pending.pop() {
            let is_ordered = name == search.name;
            let (reason, parameters) = if is_ordered {
                (LoadReason::Direct, std::mem::take(&mut search.parameters))
            } else {
                (LoadReason::Dependency, LoadParameters::default())
            };
            let found = match self.catalog.find(&name, parameters) {
                LookupResult::Models(found) => found,
                LookupResult::Missing => {
                    let line = format_args!(
                        "failed to poll model '{name}': model not found in any model repository."
                    );
                    self.driver.log.write(LogLevel::Error, line);
                    Vec::new()
                }
                LookupResult::Problem(ScanProblem::Model { reason, .. }) => {
                    self.log_invalid(&name, &reason);
                    Vec::new()
                }
                LookupResult::Problem(problem) => {
                    self.driver.log.write(LogLevel::Error, &problem);
                    Vec::new()
                }
            };
            let count = search.candidates.len();
            let is_missing = found.is_empty();
            for one in found {
                self.add_candidate(one, reason, search);
            }
            let is_read = search.candidates.len() > count;
            search.is_complete &= !is_missing;
            if is_ordered && !is_read {
                return Err(UnreadableModel);
            }
        }
        Ok(())
    }

    fn add_candidate(&self, found: CatalogModel, reason: LoadReason, search: &mut Search) {
        let id = model_id(found.namespace.as_deref(), &found.name);
        match self.candidate(found, reason) {
            Ok(candidate) => search.add(candidate),
            Err(reason) => {
                self.log_invalid(&id, &reason);
                search.is_complete = false;
            }
        }
    }

    /// Defines the models whose revision in the plan has changed since they were looked up.
    fn define_outdated(
        &self,
        candidates: Vec<CandidateModel>,
        search: &mut Search,
    ) -> Result<(), UnreadableModel> {
        for candidate in candidates {
            let reason = candidate.reason;
            match candidate.into_undefined() {
                Ok(found) => self.add_candidate(*found, reason, search),
                Err(candidate) => search.add(candidate),
            }
        }
        let is_read = search.candidates.iter().any(|candidate| candidate.name == search.name);
        if is_read { Ok(()) } else { Err(UnreadableModel) }
    }

    /// Defines a model, unless the plan already has it.
    pub(super) fn candidate(
        &self,
        found: CatalogModel,
        reason: LoadReason,
    ) -> Result<CandidateModel, String> {
        let id = model_id(found.namespace.as_deref(), &found.name);
        let plan = self.driver.lock("compare a model with the plan");
        let current = plan.current_dependencies(&id, &found);
        drop(plan);
        let name = found.name.clone();
        if let Some(dependencies) = current {
            let content = CandidateContent::Unchanged(found.into());
            return Ok(CandidateModel { id, name, reason, dependencies, content });
        }
        let model = DefinedModel::define(found, &self.driver.worker.reaper)?;
        Ok(CandidateModel::defined(id, name, reason, model))
    }

    /// Logs the reason why a model can't be read.
    pub(super) fn log_invalid(&self, id: &str, reason: &str) {
        let line = format_args!("Poll failed for model directory '{id}': {reason}");
        self.driver.log.write(LogLevel::Error, line);
    }
}
