//! The models of the repositories, as the engine asks for them.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use galatea_allocator::release_free_memory;
use galatea_backend::{Backend, ModelFiles};
use galatea_backend_plugin::Agents;
use galatea_config::{ConfigDraft, ConfigErrors, Support};
use galatea_engine::{
    Catalog, FoundModel, ListedModel, ModelDefinition, Overridden, Sighting, Survey, Uniqueness,
};
use galatea_infer::{Code, LoadParameters, NameMapping, Status};
use galatea_repository::{
    Finding, ModelSource, Overlays, Problem, RegisterError, Repository, ScanOptions,
    versions_to_load,
};
use galatea_telemetry::Logger;

use crate::agents::{Attended, attend};
use crate::backends::{Backends, Wanted};
use crate::op_libraries;

/// How messages call a configuration that came with a load.
const OVERRIDE: &str = "load parameter 'config'";

/// The platform of models that are made of others.
const ENSEMBLE: &str = "ensemble";

/// Repositories with what it takes to load models from them.
pub(crate) struct RepositoryCatalog {
    /// Where models are.
    pub(crate) repository: Repository,
    /// Where files of clients are kept.
    pub(crate) overlays: Overlays,
    /// What to look for in a model's directory.
    pub(crate) options: ScanOptions,
    /// What turns a directory into a model.
    pub(crate) definer: Arc<Definer>,
    /// Where remarks go.
    pub(crate) logger: Logger,
}

impl Catalog for RepositoryCatalog {
    fn names(&self) -> Vec<ListedModel> {
        let uniqueness = |is_duplicate: bool| match is_duplicate {
            true => Uniqueness::Duplicate,
            false => Uniqueness::Unique,
        };
        let names = self.repository.names().into_iter();
        names
            .map(|listed| ListedModel {
                namespace: listed.namespace,
                uniqueness: uniqueness(listed.is_duplicate),
                name: listed.name,
            })
            .collect()
    }

    fn survey(&self) -> Survey {
        let scan = self.repository.scan(&self.options);
        let mut survey = Survey::default();
        for problem in scan.problems {
            match problem {
                Problem::Repository { .. } => {
                    self.logger.error(&problem);
                    survey.is_partial = true;
                }
                Problem::Duplicate { ref name } => {
                    self.logger.error(&problem);
                    survey.duplicates.push(name.clone());
                }
                Problem::Model { name, reason } => survey.refused.push((name, reason)),
            }
        }
        let found = |source| self.found(source, None, Overridden::Nothing);
        survey.models = scan.models.into_iter().map(found).collect();
        survey
    }

    fn find(&self, name: &str, parameters: LoadParameters) -> Sighting {
        let LoadParameters { config, files } = parameters;
        if !files.is_empty() {
            return self.overlaid(name, config, &files);
        }
        match self.repository.find(name, &self.options) {
            Finding::Missing => Sighting::Missing,
            Finding::Problem(Problem::Model { reason, .. }) => Sighting::Refused(reason),
            Finding::Problem(problem) => Sighting::Refused(problem.to_string()),
            Finding::Models(sources) => {
                let overridden = match config {
                    Some(_) => Overridden::Configuration,
                    None => Overridden::Nothing,
                };
                let found = |source| self.found(source, config.clone(), overridden);
                Sighting::Found(sources.into_iter().map(found).collect())
            }
        }
    }

    fn register(&self, path: &str, names: &[NameMapping]) -> Result<(), Status> {
        let names: Vec<(String, String)> =
            names.iter().map(|given| (given.directory.clone(), given.name.clone())).collect();
        self.repository.register(path, &names).map_err(|error| refused(&error))
    }

    fn unregister(&self, path: &str) -> Result<(), Status> {
        self.repository.unregister(path).map_err(|error| refused(&error))
    }

    fn settle(&self) {
        release_free_memory();
    }
}

fn refused(error: &RegisterError) -> Status {
    let code = match error {
        RegisterError::Known { .. } | RegisterError::NameTaken { .. } => Code::AlreadyExists,
        RegisterError::Unsupported(_) => Code::Unsupported,
        RegisterError::Missing { .. }
        | RegisterError::Name { .. }
        | RegisterError::Unknown { .. } => Code::InvalidArgument,
    };
    Status::new(code, error.to_string())
}

impl RepositoryCatalog {
    /// A model of a client's files alone.
    fn overlaid(
        &self,
        name: &str,
        config: Option<String>,
        files: &[(String, Vec<u8>)],
    ) -> Sighting {
        if config.is_none() {
            let reason = "Load parameter 'config' must be specified for model file override";
            return Sighting::Refused(String::from(reason));
        }
        match self.overlays.model(name, files) {
            Ok(source) => {
                let is_named = self.repository.is_given_name(name);
                let namespace = self.repository.namespace_of_files();
                let source = ModelSource { is_named, namespace, ..source };
                Sighting::Found(vec![self.found(source, config, Overridden::Files)])
            }
            Err(status) => Sighting::Refused(status.to_string()),
        }
    }

    fn found(
        &self,
        source: ModelSource,
        config: Option<String>,
        overridden: Overridden,
    ) -> FoundModel {
        let definer = self.definer.clone();
        FoundModel {
            namespace: source.namespace.clone(),
            name: source.name.clone(),
            place: source.directory.path().to_owned(),
            modified: source.modified.clone(),
            overridden,
            define: Box::new(move || {
                let defined = definer.define(&source, config.as_deref(), overridden);
                defined.map_err(|error| error.to_string())
            }),
        }
    }
}

/// Reads configurations.
pub(crate) struct Definer {
    /// Whether backends may fill in what a configuration leaves out.
    pub(crate) auto_complete: bool,
    /// What to look for in a directory that agents moved a model to.
    pub(crate) options: ScanOptions,
    /// The repository agents.
    pub(crate) agents: Arc<Agents>,
    /// The backends.
    pub(crate) backends: Arc<Backends>,
    /// Where remarks go.
    pub(crate) logger: Logger,
}

/// Why a directory is no model that could be loaded.
#[derive(Debug)]
pub(crate) enum DefineError {
    /// What is wrong with its configuration.
    Config(ConfigErrors),
    /// What is wrong with its directory.
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

impl Definer {
    /// A model as it is to be loaded; `config` replaces its configuration.
    ///
    /// Its repository agents are asked first, because they may refuse it, or move it
    /// to another directory. As in the original, its configuration stays what it was.
    pub(crate) fn define(
        &self,
        source: &ModelSource,
        config: Option<&str>,
        overridden: Overridden,
    ) -> Result<ModelDefinition, DefineError> {
        source.notes.iter().for_each(|note| self.logger.warning(note));
        let mut draft = match config {
            Some(json) => ConfigDraft::from_json(OVERRIDE, json)?,
            None => self.draft(source)?,
        };
        // Before agents may act on it.
        op_libraries::check(&draft, overridden, || self.draft(source).ok())?;
        let attended = attend(&self.agents, source, &draft, &self.options)
            .map_err(|status| DefineError::Directory(status.message().to_owned()))?;
        let (moved_to, agents) = match attended {
            Some(Attended { moved_to, agents }) => (moved_to, Some(agents)),
            None => (None, None),
        };
        moved_to.iter().flat_map(|moved| &moved.notes).for_each(|note| self.logger.warning(note));
        if source.is_named {
            draft.rename(&source.name);
        }
        let source = moved_to.as_ref().unwrap_or(source);
        if source.versions.is_empty() && source.config.is_none() && config.is_none() {
            // Its backend is not what it lacks.
            return Err(DefineError::Directory(format!(
                "at least one version must be available under the version policy of model '{}'",
                source.name
            )));
        }
        let newest = source.versions.last();
        let files = newest.map_or(&[][..], |version| version.files.as_slice());
        draft.resolve_identity(&source.name, files)?;
        let mut support = Support::default();
        if backend_name(&draft).is_empty() {
            // No backend will look at it, so what is wrong is said here.
            draft.clone().finish(&support)?;
        }
        let versions = self.versions(source, &draft);
        let backend = self.backend(&draft, overridden, source, &versions);
        support.secondary_devices = backend.supports_secondary_devices();
        Ok(ModelDefinition {
            namespace: source.namespace.clone(),
            name: source.name.clone(),
            backend,
            draft,
            versions,
            auto_complete: self.auto_complete,
            support,
            agents,
        })
    }

    fn backend(
        &self,
        draft: &ConfigDraft,
        overridden: Overridden,
        source: &ModelSource,
        versions: &[Arc<dyn ModelFiles>],
    ) -> Arc<dyn Backend> {
        let own = std::iter::once(source.directory.path());
        let directories: Vec<&Path> =
            own.chain(versions.iter().map(|version| version.version_path())).collect();
        let is_from_client = match overridden {
            Overridden::Files => true,
            Overridden::Nothing | Overridden::Configuration => false,
        };
        self.backends.get(&Wanted {
            backend: backend_name(draft),
            runtime: draft.runtime(),
            directories: (!is_from_client).then_some(&*directories),
        })
    }

    fn draft(&self, source: &ModelSource) -> Result<ConfigDraft, DefineError> {
        match &source.config {
            Some(file) => {
                let path = file.path.display().to_string();
                Ok(ConfigDraft::from_pbtxt(&path, &file.text)?)
            }
            None if self.auto_complete => Ok(ConfigDraft::empty()),
            None => Err(DefineError::Directory(format!(
                "there is no '{}', which is needed because configurations are not completed",
                source.directory.path().join("config.pbtxt").display()
            ))),
        }
    }

    fn versions(&self, source: &ModelSource, draft: &ConfigDraft) -> Vec<Arc<dyn ModelFiles>> {
        let available: Vec<i64> = source.versions.iter().map(|version| version.number).collect();
        let selection = versions_to_load(&draft.version_policy(), &available);
        for version in &selection.missing {
            self.logger.error(format_args!(
                "version {version} is specified for model '{}', but the version directory is not \
                 present",
                source.name
            ));
        }
        let files =
            |version: i64| -> Arc<dyn ModelFiles> { Arc::new(source.directory.version(version)) };
        selection.load.into_iter().map(files).collect()
    }
}

/// Ensembles are a platform without a backend.
fn backend_name(draft: &ConfigDraft) -> &str {
    if draft.platform() == ENSEMBLE { ENSEMBLE } else { draft.backend() }
}
