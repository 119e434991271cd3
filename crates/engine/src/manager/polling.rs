//! Repository polling, which makes the server serve exactly the models in the repositories.

use std::collections::BTreeSet;

use galatea_backend::LogLevel;
use galatea_policy::{LoadReason, ModelId, model_id};
use galatea_repository::{ScanProblem, ScanResult};

use super::Manager;
use super::candidate::CandidateModel;
use super::effect::StepEffects;
use super::plan::{Plan, UnusedModels};
use crate::catalog::CatalogModel;

/// The items that a scan found but could not read.
#[derive(Default)]
struct ScanFailures {
    /// The invalid models by id, with the reasons.
    invalid: Vec<(String, String)>,
    /// True if several repositories contain models with the same name.
    has_duplicates: bool,
    /// True if a repository could not be listed, in which case unlisted models may still exist.
    is_partial: bool,
}

impl Manager {
    /// Makes the server serve the repositories' models. Returns true if all of them are serving.
    pub(crate) fn poll(&self) -> bool {
        let scanning = self.scanning.lock("scan the repositories");
        let is_complete = self.follow(self.catalog.scan());
        drop(scanning);
        self.wait_for_all() && is_complete
    }

    /// The problems from the latest scan that the index doesn't explain.
    pub(crate) fn unread(&self) -> Vec<ScanProblem> {
        self.unread.lock("tell what a scan could not read").clone()
    }

    /// Updates the plan with the results of a scan. Returns true if everything could be read.
    /// Problems also found by the previous scan are already in the log.
    fn follow(&self, scan: ScanResult<CatalogModel>) -> bool {
        let logged = self.unread();
        let is_elsewhere = |problem: &&ScanProblem| !matches!(problem, ScanProblem::Model { .. });
        let mut unread: Vec<_> = scan.problems.iter().filter(is_elsewhere).cloned().collect();
        let mut failures = self.split_problems(scan.problems, &logged);
        let mut present = self.set_desired(scan.models, &mut failures.invalid);
        let is_complete =
            !failures.is_partial && failures.invalid.is_empty() && !failures.has_duplicates;
        for (name, reason) in failures.invalid {
            present.insert(name.as_str().into());
            let problem = ScanProblem::Model { name: name.clone(), reason: reason.clone() };
            if !logged.contains(&problem) {
                self.searcher().log_invalid(&name, &reason);
            }
            unread.push(problem);
        }
        *self.unread.lock("note what a scan could not read") = unread;
        if !failures.is_partial {
            let plan = self.driver.lock("follow a scan");
            let registry = &self.driver.worker.registry;
            self.driver.step(plan, |plan, step| {
                let snapshot = registry.snapshot();
                remove_absent(&present, snapshot.untried_ids(), plan, step);
            });
        }
        is_complete
    }

    fn split_problems(&self, problems: Vec<ScanProblem>, logged: &[ScanProblem]) -> ScanFailures {
        let log = |problem: &ScanProblem| {
            if !logged.contains(problem) {
                self.driver.log.write(LogLevel::Error, problem);
            }
        };
        let mut failures = ScanFailures::default();
        for problem in problems {
            match problem {
                ScanProblem::Repository { .. } => {
                    log(&problem);
                    failures.is_partial = true;
                }
                ScanProblem::Duplicate { .. } => {
                    log(&problem);
                    failures.has_duplicates = true;
                }
                ScanProblem::Model { name, reason } => failures.invalid.push((name, reason)),
            }
        }
        failures
    }

    /// Makes models desired. Returns their ids, and adds the models that can't be defined to
    /// `invalid`.
    fn set_desired(
        &self,
        models: Vec<CatalogModel>,
        invalid: &mut Vec<(String, String)>,
    ) -> BTreeSet<ModelId> {
        let mut present: BTreeSet<ModelId> = BTreeSet::new();
        let mut candidates: Vec<CandidateModel> = Vec::new();
        let mut pending = models;
        // Loads from the previous scan may end in the meantime. Failed models are defined again.
        loop {
            for found in std::mem::take(&mut pending) {
                let id = model_id(found.namespace.as_deref(), &found.name);
                match self.searcher().candidate(found, LoadReason::Direct) {
                    Ok(candidate) => candidates.push(candidate),
                    Err(reason) => invalid.push((id.to_string(), reason)),
                }
                present.insert(id);
            }
            let plan = self.driver.lock("make the models of a scan desired");
            let taken = std::mem::take(&mut candidates);
            let outdated = self.driver.step(plan, |plan, step| plan.set_desired(taken, step));
            let Err(outdated) = outdated else { return present };
            for candidate in outdated {
                match candidate.into_undefined() {
                    Ok(found) => pending.push(*found),
                    Err(candidate) => candidates.push(candidate),
                }
            }
        }
    }
}

/// Removes desired models, and models without a version, that the scan did not find.
fn remove_absent<'a>(
    present: &BTreeSet<ModelId>,
    untried: impl Iterator<Item = &'a ModelId>,
    plan: &mut Plan,
    step: &mut StepEffects,
) {
    let known = plan.desired().cloned().chain(untried.cloned());
    let absent: Vec<ModelId> = known.filter(|id| !present.contains(id)).collect();
    if !absent.is_empty() {
        plan.remove_desired(&absent, UnusedModels::Keep, step);
    }
}
