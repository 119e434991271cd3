//! Ensembles, once the models that they consist of are known.

use std::collections::BTreeMap;
use std::sync::Arc;

use galatea_config::{ConfigErrors, Diagnostic, ModelSpec, validate_ensemble};

/// Checks each ensemble against its models; one that is part of another comes
/// first. What is wrong with which.
pub(super) fn check(specs: &mut BTreeMap<String, Arc<ModelSpec>>) -> Vec<(String, ConfigErrors)> {
    let mut found = Vec::new();
    let mut waiting: Vec<String> = specs
        .iter()
        .filter(|(_, spec)| spec.ensemble().is_some())
        .map(|(name, _)| name.clone())
        .collect();
    loop {
        let ready = waiting.iter().position(|name| !waits(name, specs, &waiting));
        let Some(index) = ready else { break };
        let name = waiting.swap_remove(index);
        let Some(spec) = specs.get(&name) else { continue };
        let mut ensemble = ModelSpec::clone(spec);
        match validate_ensemble(&mut ensemble, |model| specs.get(model).cloned()) {
            Ok(()) => {
                specs.insert(name, Arc::new(ensemble));
            }
            Err(errors) => {
                // What it is part of lacks it.
                specs.remove(&name);
                found.push((name, errors));
            }
        }
    }
    waiting.sort();
    found.extend(waiting.into_iter().map(|name| {
        let text = format!("ensemble {name} needs itself, through the models of its steps");
        (name, Diagnostic::about("ensemble_scheduling", text).into())
    }));
    found
}

/// Whether a model of this ensemble has not been checked yet.
fn waits(name: &str, specs: &BTreeMap<String, Arc<ModelSpec>>, waiting: &[String]) -> bool {
    let steps = specs.get(name).and_then(|spec| spec.ensemble()).map(|ensemble| &ensemble.steps);
    steps.is_some_and(|steps| steps.iter().any(|step| waiting.contains(&step.model_name)))
}
