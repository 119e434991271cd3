//! The reasons why a model is not serving, in Triton's words.

use std::collections::BTreeSet;

use galatea_policy::{LifecycleStatus, LoadBlockReason, ModelId};

use super::Plan;

impl Plan {
    pub(super) fn block_text(&self, id: &ModelId, reason: &LoadBlockReason) -> String {
        let needed = match reason {
            LoadBlockReason::DependencyCycle => return self.cycle_text(id),
            LoadBlockReason::MissingDependency(needed) => needed,
        };
        let depends = format!("ensemble '{id}' depends on '{needed}' which");
        let error = self.error(needed).unwrap_or_default();
        let is_misfit = self.models.get(needed).is_some_and(|planned| planned.is_misfit);
        let not_valid =
            || format!("{depends} is not valid. Model '{needed}' failed with error: {error}");
        match self.status(needed) {
            LifecycleStatus::Failed if is_misfit => not_valid(),
            LifecycleStatus::Failed => format!(
                "{depends} has no loaded version. Model '{needed}' loading failed with error: \
                 {error}"
            ),
            LifecycleStatus::Blocked(_) => not_valid(),
            LifecycleStatus::Absent | LifecycleStatus::InProgress | LifecycleStatus::Serving => {
                let is_missing = |needed: &ModelId| !self.is_desired(needed);
                let missing: Vec<String> = self
                    .lifecycle
                    .dependencies_of(id)
                    .iter()
                    .filter(|needed| is_missing(needed))
                    .map(ToString::to_string)
                    .collect();
                format!(
                    "ensemble {id} contains models that are not available or ambiguous: {}",
                    missing.join(", ")
                )
            }
        }
    }

    fn cycle_text(&self, id: &ModelId) -> String {
        // The message names the last model in the cycle: it needs this model, and this model needs
        // it.
        let mut pending: Vec<ModelId> = vec![id.clone()];
        let mut seen: BTreeSet<ModelId> = BTreeSet::new();
        while let Some(one) = pending.pop() {
            let needed = self.lifecycle.dependencies_of(&one);
            if needed.contains(id) {
                return format!(
                    "circular dependency between ensembles: {id} -> ... -> {one} -> {id}"
                );
            }
            pending.extend(needed.into_iter().filter(|one| seen.insert(one.clone())));
        }
        format!("circular dependency between ensembles: {id} -> ... -> {id}")
    }
}
