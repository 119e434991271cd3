//! Builds model definitions from scan results.
//!
//! A loading server and `galatea check` define models in the same way.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use galatea_backend::{Backend, ModelFiles};
use galatea_backend_plugin::RepositoryAgents;
use galatea_config::{ConfigAutoCompletion, ConfigDraft, ConfigErrors, SupportedFeatures};
use galatea_dispatch::ModelDefinition;
use galatea_engine::{LoadOverride, ModelOutline};
use galatea_infer::CancelToken;
use galatea_pbtxt::parse_config_draft;
use galatea_repository::{ScanOptions, ScannedModel, versions_to_load};
use galatea_telemetry::Logger;

use crate::agents::{AgentApproval, visit_agents};
use crate::backends::{BackendRequest, Backends};
use crate::model_code::ModelCodePermission;
use crate::op_libraries;

/// The name that messages use for a configuration sent with a load request.
pub(crate) const OVERRIDE: &str = "load parameter 'config'";

/// The platform of ensembles.
const ENSEMBLE: &str = "ensemble";

/// The component that defines models: it reads their configurations and finds their backends.
pub(crate) struct ModelDefiner {
    /// True if backends may complete configurations.
    pub(crate) auto_complete: bool,
    /// The files to look for in a directory to which agents moved a model.
    pub(crate) options: ScanOptions,
    /// The permission for load requests to bring code.
    pub(crate) model_code: ModelCodePermission,
    /// The libraries of repository agents.
    pub(crate) agents: Arc<RepositoryAgents>,
    /// The available backends.
    pub(crate) backends: Arc<Backends>,
    /// The features that configurations may request, before their backend is known.
    pub(crate) support: SupportedFeatures,
    /// The log, for warnings.
    pub(crate) logger: Logger,
}

/// The reason why a model can't be defined.
#[derive(Debug)]
pub(crate) enum DefineError {
    /// The model's configuration is invalid.
    Config(ConfigErrors),
    /// The model's directory can't be used.
    Directory(String),
}

impl From<ConfigErrors> for DefineError {
    fn from(errors: ConfigErrors) -> Self {
        Self::Config(errors)
    }
}

impl fmt::Display for DefineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(errors) => errors.fmt(f),
            Self::Directory(reason) => f.write_str(reason),
        }
    }
}

impl ModelDefiner {
    /// Defines a model. `config` replaces its configuration.
    ///
    /// Its repository agents are called first, because they may refuse the load or move the model
    /// to another directory. As in Triton, the configuration stays the same.
    pub(crate) fn define(
        &self,
        source: &ScannedModel,
        config: Option<&str>,
        overrides: LoadOverride,
    ) -> Result<ModelDefinition, DefineError> {
        source.notes.iter().for_each(|note| self.logger.warning(note));
        let mut draft = match config {
            Some(json) => ConfigDraft::from_json(OVERRIDE, json)?,
            None => self.draft(source)?,
        };
        // This check comes before agents act on the model.
        let without_code = self.model_code.check_of(overrides, || self.draft(source).ok());
        if let Some(load) = &without_code {
            load.check_named(&draft)?;
        }
        op_libraries::check(&draft, overrides, || self.draft(source).ok())?;
        let visit = visit_agents(&self.agents, source, &draft, &self.options)
            .map_err(|status| DefineError::Directory(status.message().to_owned()))?;
        let (moved_to, agents) = match visit {
            Some(AgentApproval { moved_to, agents }) => (moved_to, Some(agents)),
            None => (None, None),
        };
        moved_to.iter().flat_map(|moved| &moved.notes).for_each(|note| self.logger.warning(note));
        if source.is_mapped {
            draft.rename(&source.name);
        }
        let source = moved_to.as_ref().unwrap_or(source);
        let newest = source.versions.last();
        let files = newest.map_or(&[][..], |version| version.files.as_slice());
        draft.resolve_name_and_backend(&source.name, files)?;
        if let Some(load) = without_code {
            load.check_backend(&draft, files)?;
        }
        let mut support = self.support.clone();
        if backend_name(&draft).is_empty() {
            // No backend will check this configuration, so check it here.
            draft.clone().into_validated_spec(&support)?;
        }
        let versions = self.versions(source, &draft);
        let backend = self.backend(&draft, overrides, source, &versions);
        support.whole_configuration = backend.reads_whole_configuration();
        if let Some(reason) = backend.gpus_refused() {
            support.withhold_gpus(&reason);
        }
        let definition = ModelDefinition {
            stop: CancelToken::new(),
            namespace: source.namespace.clone(),
            name: source.name.clone(),
            backend,
            draft,
            versions,
            auto_complete: self.auto_complete,
            support,
            agents,
        };
        if let Some(advice) = self.advice(&definition) {
            self.logger.error(format_args!("model '{}': {advice}", definition.name));
        }
        Ok(definition)
    }

    /// The advice for a model whose backend can't be found.
    pub(crate) fn advice(&self, definition: &ModelDefinition) -> Option<String> {
        let (draft, versions) = (&definition.draft, &definition.versions);
        let own = std::iter::once(versions.first()?.model_path());
        let directories: Vec<&Path> =
            own.chain(versions.iter().map(|version| version.version_path())).collect();
        self.backends.advice(&BackendRequest {
            backend: backend_name(draft),
            runtime: draft.runtime(),
            directories: Some(&directories),
            parameter: &|key| draft.parameter(key),
        })
    }

    /// Returns the sizes of the files of all versions to be served, the GPUs that the configuration
    /// names, and the models that the model needs. Neither repository agents nor backends are asked.
    pub(crate) fn outline(&self, source: &ScannedModel) -> ModelOutline {
        let draft = self.draft(source).unwrap_or_else(|_| ConfigDraft::empty());
        let available: Vec<i64> = source.versions.iter().map(|version| version.number).collect();
        let versions = versions_to_load(&draft.version_policy(), &available).load.into_iter();
        let sizes = versions.map(|version| source.directory.version_bytes(version));
        let mut dependencies: Vec<String> =
            draft.composing_models().into_iter().map(|(name, _)| name).collect();
        dependencies.sort_unstable();
        dependencies.dedup();
        let instances = draft.named_gpu_instances(&self.support).into_iter();
        let gpu_instances =
            instances.filter_map(|(gpu, count)| Some((u16::try_from(gpu).ok()?, count))).collect();
        ModelOutline { bytes: sizes.fold(0, u64::saturating_add), gpu_instances, dependencies }
    }

    /// Defines a model and validates its configuration. Like Triton when it reads a repository, it
    /// does so before it looks for versions or for the models that an ensemble needs.
    pub(crate) fn define_and_judge(
        &self,
        source: &ScannedModel,
        config: Option<&str>,
        overrides: LoadOverride,
    ) -> Result<ModelDefinition, DefineError> {
        let definition = self.define(source, config, overrides)?;
        self.judge(&definition)?;
        Ok(definition)
    }

    /// Checks for the mistakes that Triton finds in a configuration when it reads a repository.
    pub(crate) fn judge(&self, definition: &ModelDefinition) -> Result<(), ConfigErrors> {
        let completion = if self.auto_complete {
            ConfigAutoCompletion::ByBackend
        } else {
            ConfigAutoCompletion::Without
        };
        definition.draft.check_at_poll(&definition.support, completion)
    }

    fn backend(
        &self,
        draft: &ConfigDraft,
        overrides: LoadOverride,
        source: &ScannedModel,
        versions: &[Arc<dyn ModelFiles>],
    ) -> Arc<dyn Backend> {
        let own = std::iter::once(source.directory.path());
        let directories: Vec<&Path> =
            own.chain(versions.iter().map(|version| version.version_path())).collect();
        let is_from_client = match overrides {
            LoadOverride::Files => true,
            LoadOverride::None | LoadOverride::Configuration => false,
        };
        self.backends.get(&BackendRequest {
            backend: backend_name(draft),
            runtime: draft.runtime(),
            directories: (!is_from_client).then_some(&*directories),
            parameter: &|key| draft.parameter(key),
        })
    }

    fn draft(&self, source: &ScannedModel) -> Result<ConfigDraft, DefineError> {
        match &source.config {
            Some(file) => {
                let path = file.path.display().to_string();
                Ok(parse_config_draft(&path, &file.text)?)
            }
            None if self.auto_complete => Ok(ConfigDraft::empty()),
            None => Err(DefineError::Directory(format!(
                "there is no '{}', which is needed because configurations are not completed",
                source.directory.display_path().join("config.pbtxt").display()
            ))),
        }
    }

    fn versions(&self, source: &ScannedModel, draft: &ConfigDraft) -> Vec<Arc<dyn ModelFiles>> {
        let available: Vec<i64> = source.versions.iter().map(|version| version.number).collect();
        let selection = versions_to_load(&draft.version_policy(), &available);
        for version in &selection.missing {
            self.logger.error(format_args!(
                "version {version} is specified for model '{}', but the version directory is not \
                 present",
                source.name
            ));
        }
        let files = |version: i64| -> Arc<dyn ModelFiles> {
            Arc::new(source.directory.version_directory(version))
        };
        selection.load.into_iter().map(files).collect()
    }
}

/// The name of the backend. Ensembles have a platform but no backend.
fn backend_name(draft: &ConfigDraft) -> &str {
    if draft.platform() == ENSEMBLE { ENSEMBLE } else { draft.backend() }
}
