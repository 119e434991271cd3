//! Checks ensembles, once their composing models are known.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use galatea_config::{
    BoundedText, ComposingModel, ConfigDraft, ConfigErrors, Diagnostic, ModelSpec,
    validate_ensemble,
};
use galatea_dispatch::ModelDefinition;
use galatea_engine::{NamespaceMode, ensemble_version_error};
use galatea_policy::{ModelId, ModelIdsByName};

/// The repository models that ensembles may use, by id.
pub(super) struct Ensembles {
    /// The models with at least one version that passed its own checks.
    models: BTreeMap<ModelId, CheckedModel>,
    /// The models with each name, if namespaces are on. Models that would not load are included,
    /// because a server would know them too.
    names: Option<ModelIdsByName>,
}

struct CheckedModel {
    namespace: Option<Arc<str>>,
    /// The configuration as read, with field positions.
    draft: ConfigDraft,
    /// The specification of the newest version.
    spec: Arc<ModelSpec>,
    /// The versions that passed their own checks.
    versions: BTreeSet<i64>,
}

impl Ensembles {
    pub(super) fn new(namespaces: NamespaceMode) -> Self {
        let names = match namespaces {
            NamespaceMode::None => None,
            NamespaceMode::Repositories => Some(ModelIdsByName::default()),
        };
        Self { models: BTreeMap::new(), names }
    }

    /// Adds a readable model with the versions that passed their own checks. Without any such
    /// version, the model would not load.
    pub(super) fn add(
        &mut self,
        id: ModelId,
        definition: ModelDefinition,
        mut passed: BTreeMap<i64, Arc<ModelSpec>>,
    ) {
        if let Some(names) = &mut self.names {
            names.insert(id.clone());
        }
        let versions = passed.keys().copied().collect();
        if let Some((_, spec)) = passed.pop_last() {
            let ModelDefinition { namespace, draft, .. } = definition;
            self.models.insert(id, CheckedModel { namespace, draft, spec, versions });
        }
    }

    /// Checks each ensemble against its models, inner ensembles first. Returns the errors of each
    /// ensemble.
    pub(super) fn check(mut self) -> Vec<(ModelId, ConfigErrors)> {
        let mut found = Vec::new();
        let is_ensemble = |model: &CheckedModel| model.spec.ensemble().is_some();
        let ensembles = self.models.iter().filter(|(_, model)| is_ensemble(model));
        let mut waiting: Vec<ModelId> = ensembles.map(|(id, _)| id.clone()).collect();
        while let Some(index) = waiting.iter().position(|id| !self.is_blocked(id, &waiting)) {
            let id = waiting.swap_remove(index);
            let Some(model) = self.models.get(&id) else { continue };
            match self.validate(&id, model) {
                Ok(spec) => {
                    self.models.entry(id).and_modify(|model| model.spec = spec);
                }
                Err(errors) => {
                    let errors = model.draft.add_error_positions(errors);
                    // The ensembles that contain this one then lack it.
                    self.models.remove(&id);
                    found.push((id, errors));
                }
            }
        }
        waiting.sort();
        found.extend(waiting.into_iter().filter_map(|id| {
            let text = format_args!("ensemble {id} needs itself, through the models of its steps");
            let errors = Diagnostic::about("ensemble_scheduling", text).into();
            let located = self.models.get(&id)?.draft.add_error_positions(errors);
            Some((id, located))
        }));
        found
    }

    fn validate(
        &self,
        id: &ModelId,
        ensemble: &CheckedModel,
    ) -> Result<Arc<ModelSpec>, ConfigErrors> {
        let mut spec = ModelSpec::clone(&ensemble.spec);
        let part = |name: &str| {
            let id = self.resolve(ensemble, name);
            let spec = self.models.get(&id)?.spec.clone();
            Some(ComposingModel { id: id.to_string(), spec })
        };
        let compared = validate_ensemble(id, &mut spec, part);
        let mut diagnostics = self.missing_versions(id, ensemble);
        diagnostics.extend(compared.err().into_iter().flat_map(|errors| errors.diagnostics));
        if diagnostics.is_empty() { Ok(Arc::new(spec)) } else { Err(ConfigErrors { diagnostics }) }
    }

    /// The steps whose model exists but lacks the version that the step specifies.
    fn missing_versions(&self, id: &ModelId, ensemble: &CheckedModel) -> Vec<Diagnostic> {
        let steps = ensemble.spec.ensemble().map(|ensemble| ensemble.steps.iter());
        let steps = steps.into_iter().flatten().enumerate();
        steps
            .filter_map(|(index, step)| {
                let version = step.model_version?;
                let resolved = self.resolve(ensemble, &step.model_name);
                if self.models.get(&resolved)?.versions.contains(&version) {
                    return None;
                }
                let path = format_args!("ensemble_scheduling.step[{index}].model_version");
                let status = ensemble_version_error(id, &resolved, version);
                Some(Diagnostic::about(path, BoundedText::truncated(status.message())))
            })
            .collect()
    }

    /// Resolves a model name used by an ensemble.
    fn resolve(&self, ensemble: &CheckedModel, name: &str) -> ModelId {
        let namespace = ensemble.namespace.as_deref().unwrap_or_default();
        match &self.names {
            Some(names) => names.resolve(namespace, name),
            None => name.into(),
        }
    }

    /// Returns true if a composing model of this ensemble has not been checked yet.
    fn is_blocked(&self, id: &ModelId, waiting: &[ModelId]) -> bool {
        let Some(ensemble) = self.models.get(id) else { return false };
        let steps = ensemble.spec.ensemble().map(|ensemble| &ensemble.steps);
        let mut names = steps.into_iter().flatten().map(|step| &step.model_name);
        names.any(|name| waiting.contains(&self.resolve(ensemble, name)))
    }
}
