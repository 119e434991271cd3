//! Following the repositories: what they hold shall serve, and nothing else.

use std::collections::BTreeSet;

use galatea_backend::LogLevel;
use galatea_policy::{LoadReason, ModelName, model_id};
use galatea_repository::{Scan, ScanProblem};

use super::Manager;
use super::candidate::Candidate;
use super::effect::Step;
use super::plan::{Plan, UnusedModels};
use crate::catalog::CatalogModel;
use crate::registry::{DUPLICATE, RegistryChange};

/// What a scan found and could not read.
#[derive(Default)]
struct ScanFailures {
    /// Models that can't be loaded, by id, and why.
    invalid: Vec<(String, String)>,
    /// Names that several repositories have.
    duplicates: Vec<String>,
    /// A repository could not be listed: models that were not found may be there.
    is_partial: bool,
}

impl Manager {
    /// Makes what the repositories hold serve. Returns whether that is so for all of it.
    pub(crate) fn poll(&self) -> bool {
        let scanning = self.scanning.lock("scan the repositories");
        let is_complete = self.follow(self.catalog.scan());
        drop(scanning);
        self.wait_for_all() && is_complete
    }

    /// Changes the plan to what a scan found. Returns whether all of it could be read.
    fn follow(&self, scan: Scan<CatalogModel>) -> bool {
        let mut failures = self.split_problems(scan.problems);
        let mut present = self.set_desired(scan.models, &mut failures.invalid);
        let is_complete =
            !failures.is_partial && failures.invalid.is_empty() && failures.duplicates.is_empty();
        for (id, reason) in &failures.invalid {
            self.searcher().log_invalid(id, reason);
            present.insert(id.as_str().into());
        }
        let ScanFailures { invalid, duplicates, is_partial } = failures;
        let plan = self.driver.lock("follow a scan");
        let registry = &self.driver.worker.registry;
        self.driver.step(plan, |plan, step| {
            step.changes.extend(invalid.into_iter().map(failure));
            if !is_partial {
                let snapshot = registry.snapshot();
                // A known duplicate must not look repaired for a moment.
                let is_unique = |id: &&ModelName| !duplicates.iter().any(|name| **name == ***id);
                let failed = snapshot.failed_ids().filter(is_unique);
                remove_absent(&present, failed, plan, step);
            }
        });
        // Unloads forget why a model failed, so the new reasons come after them.
        let plan = self.driver.lock("note which names are not unique");
        self.driver.step(plan, |_, step| {
            let duplicates = duplicates.into_iter().map(|name| (name, String::from(DUPLICATE)));
            step.changes.extend(duplicates.map(failure));
        });
        is_complete
    }

    fn split_problems(&self, problems: Vec<ScanProblem>) -> ScanFailures {
        let mut failures = ScanFailures::default();
        for problem in problems {
            match problem {
                ScanProblem::Repository { .. } => {
                    self.driver.log.write(LogLevel::Error, &problem);
                    failures.is_partial = true;
                }
                ScanProblem::Duplicate { ref name } => {
                    self.driver.log.write(LogLevel::Error, &problem);
                    failures.duplicates.push(name.clone());
                }
                ScanProblem::Model { name, reason } => failures.invalid.push((name, reason)),
            }
        }
        failures
    }

    /// Makes models desired. Returns their ids, and adds those that can't be defined to
    /// `invalid`.
    fn set_desired(
        &self,
        models: Vec<CatalogModel>,
        invalid: &mut Vec<(String, String)>,
    ) -> BTreeSet<ModelName> {
        let mut present: BTreeSet<ModelName> = BTreeSet::new();
        let mut candidates: Vec<Candidate> = Vec::new();
        let mut pending = models;
        // Loads of the scan before may end meanwhile. What failed is defined again.
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

/// Removes the desired and the failed models that the scan did not find.
fn remove_absent<'a>(
    present: &BTreeSet<ModelName>,
    failed: impl Iterator<Item = &'a ModelName>,
    plan: &mut Plan,
    step: &mut Step,
) {
    let known = plan.desired().cloned().chain(failed.cloned());
    let absent: Vec<ModelName> = known.filter(|id| !present.contains(id)).collect();
    if !absent.is_empty() {
        plan.remove_desired(&absent, UnusedModels::Keep, step);
    }
}

fn failure((id, reason): (String, String)) -> RegistryChange {
    RegistryChange::Fail(id.into(), reason)
}
