//! Ensembles, once the models that they consist of are known.

use std::collections::BTreeMap;
use std::sync::Arc;

use galatea_config::{ConfigDraft, ConfigErrors, Diagnostic, ModelSpec, validate_ensemble};
use galatea_engine::{ModelDefinition, Namespaces};
use galatea_policy::{ModelName, ModelNames};

/// The models of the repositories, by their ids, as ensembles may consist of them.
pub(super) struct Ensembles {
    /// Those of which a version passed its own checks.
    models: BTreeMap<ModelName, Checked>,
    /// Which models a name has, if there are namespaces: also those that would not
    /// load, because a server knows them too.
    names: Option<ModelNames>,
}

struct Checked {
    namespace: Option<Arc<str>>,
    /// Its configuration as it was read, which knows places.
    draft: ConfigDraft,
    /// That of its newest version.
    spec: Arc<ModelSpec>,
}

impl Ensembles {
    pub(super) fn new(namespaces: Namespaces) -> Self {
        let names = match namespaces {
            Namespaces::None => None,
            Namespaces::Repositories => Some(ModelNames::default()),
        };
        Self { models: BTreeMap::new(), names }
    }

    /// A model that could be read; without `newest`, it would not load.
    pub(super) fn add(
        &mut self,
        id: ModelName,
        definition: ModelDefinition,
        newest: Option<Arc<ModelSpec>>,
    ) {
        if let Some(names) = &mut self.names {
            names.insert(id.clone());
        }
        if let Some(spec) = newest {
            let ModelDefinition { namespace, draft, .. } = definition;
            self.models.insert(id, Checked { namespace, draft, spec });
        }
    }

    /// Checks each ensemble against its models; one that is part of another comes
    /// first. What is wrong with which.
    pub(super) fn check(mut self) -> Vec<(ModelName, ConfigErrors)> {
        let mut found = Vec::new();
        let is_ensemble = |model: &Checked| model.spec.ensemble().is_some();
        let ensembles = self.models.iter().filter(|(_, model)| is_ensemble(model));
        let mut waiting: Vec<ModelName> = ensembles.map(|(id, _)| id.clone()).collect();
        while let Some(index) = waiting.iter().position(|id| !self.waits(id, &waiting)) {
            let id = waiting.swap_remove(index);
            let Some(model) = self.models.get(&id) else { continue };
            match self.validate(model) {
                Ok(spec) => {
                    self.models.entry(id).and_modify(|model| model.spec = spec);
                }
                Err(errors) => {
                    let errors = model.draft.locate(errors);
                    // What it is part of lacks it.
                    self.models.remove(&id);
                    found.push((id, errors));
                }
            }
        }
        waiting.sort();
        found.extend(waiting.into_iter().filter_map(|id| {
            let text = format!("ensemble {id} needs itself, through the models of its steps");
            let errors = Diagnostic::about("ensemble_scheduling", text).into();
            let located = self.models.get(&id)?.draft.locate(errors);
            Some((id, located))
        }));
        found
    }

    fn validate(&self, ensemble: &Checked) -> Result<Arc<ModelSpec>, ConfigErrors> {
        let mut spec = ModelSpec::clone(&ensemble.spec);
        let part = |name: &str| self.models.get(&self.meant(ensemble, name));
        validate_ensemble(&mut spec, |name| part(name).map(|part| part.spec.clone()))?;
        Ok(Arc::new(spec))
    }

    /// The model that an ensemble means by a name.
    fn meant(&self, ensemble: &Checked, name: &str) -> ModelName {
        let namespace = ensemble.namespace.as_deref().unwrap_or_default();
        match &self.names {
            Some(names) => names.meant(namespace, name),
            None => name.into(),
        }
    }

    /// Whether a model of this ensemble has not been checked yet.
    fn waits(&self, id: &ModelName, waiting: &[ModelName]) -> bool {
        let Some(ensemble) = self.models.get(id) else { return false };
        let steps = ensemble.spec.ensemble().map(|ensemble| &ensemble.steps);
        let mut names = steps.into_iter().flatten().map(|step| &step.model_name);
        names.any(|name| waiting.contains(&self.meant(ensemble, name)))
    }
}
