//! From what the repositories hold to loaded models.

use std::collections::BTreeMap;
use std::sync::Arc;

use galatea_backend::ModelFiles;
use galatea_config::{ConfigDraft, Support};
use galatea_engine::{ModelDefinition, Server};
use galatea_repository::{ModelSource, Problem, Repository, ScanOptions, versions_to_load};
use galatea_telemetry::Logger;

use crate::backends::Backends;
use crate::flags::Settings;

const DUPLICATE: &str = "model appears in two or more repositories";

/// What became of the models as a whole.
#[derive(Debug, Default)]
pub(crate) struct LoadReport {
    /// Whether every model of the repositories serves now.
    pub(crate) all_loaded: bool,
    /// Why models have no version that could have been tried.
    pub(crate) reasons: BTreeMap<String, String>,
}

/// Loads every model of the repositories; what goes wrong is logged.
pub(crate) fn load_all(
    server: &Server,
    repository: &Repository,
    settings: &Settings,
    backends: &mut Backends<'_>,
    logger: &Logger,
) -> LoadReport {
    let options = ScanOptions { config_name: settings.model_config_name.clone() };
    let scan = repository.scan(&options);
    let mut report = LoadReport { all_loaded: scan.problems.is_empty(), ..LoadReport::default() };
    for problem in scan.problems {
        logger.error(&problem);
        match problem {
            Problem::Repository { .. } => {}
            Problem::Duplicate { name } => {
                report.reasons.insert(name, String::from(DUPLICATE));
            }
            Problem::Model { name, reason } => {
                report.reasons.insert(name, reason);
            }
        }
    }
    let mut definitions = Vec::new();
    for source in scan.models {
        source.notes.iter().for_each(|note| logger.warning(note));
        match define(&source, settings, backends, logger) {
            Ok(definition) => definitions.push(definition),
            Err(reason) => {
                logger.error(format_args!("failed to load '{}': {reason}", source.name));
                report.reasons.insert(source.name, reason);
            }
        }
    }
    for name in report.reasons.keys() {
        server.declare(name);
    }
    let failures = server.load(definitions, settings.model_load_threads);
    report.all_loaded &= report.reasons.is_empty() && failures.is_empty();
    report
}

fn define(
    source: &ModelSource,
    settings: &Settings,
    backends: &mut Backends<'_>,
    logger: &Logger,
) -> Result<ModelDefinition, String> {
    let mut draft = draft(source, settings.auto_complete_config)?;
    let newest = source.versions.last();
    let files = newest.map_or(&[][..], |version| version.files.as_slice());
    draft.resolve_identity(&source.name, files).map_err(|error| error.to_string())?;
    let support = Support::default();
    if draft.backend().is_empty() {
        // No backend will look at it, so what is wrong is said here.
        draft.clone().finish(&support).map_err(|errors| errors.to_string())?;
    }
    let versions = versions(source, &draft, logger)?;
    Ok(ModelDefinition {
        name: source.name.clone(),
        backend: backends.get(draft.backend()),
        draft,
        versions,
        auto_complete: settings.auto_complete_config,
        support,
    })
}

fn draft(source: &ModelSource, auto_complete: bool) -> Result<ConfigDraft, String> {
    match &source.config {
        Some(file) => {
            let path = file.path.display().to_string();
            ConfigDraft::from_pbtxt(&path, &file.text).map_err(|errors| errors.to_string())
        }
        None if auto_complete => Ok(ConfigDraft::empty()),
        None => Err(format!(
            "there is no '{}', which is needed because configurations are not completed",
            source.directory.path().join("config.pbtxt").display()
        )),
    }
}

fn versions(
    source: &ModelSource,
    draft: &ConfigDraft,
    logger: &Logger,
) -> Result<Vec<Arc<dyn ModelFiles>>, String> {
    let available: Vec<i64> = source.versions.iter().map(|version| version.number).collect();
    let selection = versions_to_load(&draft.version_policy(), &available);
    for version in &selection.missing {
        logger.error(format_args!(
            "version {version} is specified for model '{}', but the version directory is not \
             present",
            source.name
        ));
    }
    if selection.load.is_empty() {
        return Err(format!(
            "at least one version must be available under the version policy of model '{}'",
            source.name
        ));
    }
    let files =
        |version: i64| -> Arc<dyn ModelFiles> { Arc::new(source.directory.version(version)) };
    Ok(selection.load.into_iter().map(files).collect())
}
