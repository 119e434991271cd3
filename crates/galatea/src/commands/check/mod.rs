//! `galatea check MODEL…`: the checks that a server runs at startup, without serving.
//!
//! One run finds everything that would keep a model from loading: problems in repositories,
//! configurations, backends and model files, ensemble steps that don't fit together, and missing
//! rate-limiter resources. No instance is created and nothing is warmed up. Repository agents run
//! as for a load and are then notified that the load failed. With namespaces, all repositories
//! count, and models are listed by id.

mod differences;
mod ensembles;
mod report;

use std::collections::BTreeMap;
use std::sync::Arc;

use galatea_backend::ModelFiles;
use galatea_backend_plugin::RepositoryAgents;
use galatea_bucket::BucketConnector;
use galatea_capi::ReservedServerPointer;
use galatea_config::{BoundedText, ConfigErrors, Diagnostic};
use galatea_dispatch::{LoadProblem, LogSink, ModelDefinition, ResourceLimitCheck};
use galatea_engine::{LoadOverride, NamespaceMode};
use galatea_infer::Status;
use galatea_policy::model_id;
use galatea_repository::{
    ModelRepositories, ScanProblem, ScanResult, ScannedModel, versions_to_load,
};
use galatea_telemetry::{LogOptions, Logger};
use galatea_tools::console::{ReportFormat, print_line};

use self::differences::Differences;
use self::ensembles::Ensembles;
use self::report::{ModelReport, Report};
use super::sources::{self, Repositories};
use crate::backends::{self, Backends};
use crate::definer::{DefineError, ModelDefiner};
use crate::environment::Environment;
use crate::flags::Settings;
use crate::gpus;
use crate::model_code::ModelCodePermission;
use crate::python::PythonAccess;

/// The options of a check.
#[derive(Debug)]
pub(crate) struct CheckOptions {
    /// The settings of the server that would serve the models.
    pub(super) settings: Settings,
    /// Files, model directories and repositories, in addition to the repositories in the settings.
    pub(super) models: Vec<String>,
}

/// Checks the models and the repositories in the settings, and prints a report. Returns true if
/// there are no errors.
///
/// # Errors
///
/// Returns an error if a repository can't be read at all.
pub(crate) fn run(
    options: CheckOptions,
    mut environment: Environment,
    format: ReportFormat,
) -> Result<bool, String> {
    let CheckOptions { mut settings, models } = options;
    backends::quiet_tensorflow(&settings, &mut environment);
    let sources = sources::find_for_check(&models)?;
    // The links live as long as the check.
    let repositories = Repositories::of(&sources, None, &environment.temporary_folder)?;
    settings.model_repositories.extend(repositories.paths.iter().cloned());
    let namespaces = settings.namespaces;
    let buckets = Arc::new(BucketConnector::new(environment.buckets.clone()));
    let opened = ModelRepositories::open_with(&settings.model_repositories, Some(buckets));
    let repository = opened.map_err(|error| error.to_string())?;
    let repository = match namespaces {
        NamespaceMode::None => repository,
        NamespaceMode::Repositories => repository.with_namespaces(),
    };
    let options = settings.scan_options();
    let scan = repository.scan(&options);
    // The report contains everything.
    let silent = LogOptions { info: false, warning: false, error: false, ..LogOptions::default() };
    let logger = Logger::new(silent).map_err(|error| error.to_string())?;
    let auto_complete = settings.auto_complete_config;
    let limits = ResourceLimitCheck::new(&settings.rate_limit());
    let log = LogSink::new(|_, _, _| {});
    // Backends may call the server while they check a model.
    let reserved = ReservedServerPointer::new();
    let agents =
        RepositoryAgents::new(&settings.repoagent_directory, &environment.temporary_folder);
    let python = Arc::new(PythonAccess::new(logger.clone()));
    let mut report = Report {
        flags: flags_without_effect(&settings),
        differences: Differences::of(&settings),
        ..Report::default()
    };
    let devices = gpus::find(&settings, &environment).devices;
    let support = gpus::support(&devices, &settings);
    let settings = Arc::new(settings);
    let backends = Backends::new(settings, environment, None, log, &reserved, python, devices);
    let backends = Arc::new(backends);
    let definer = ModelDefiner {
        auto_complete,
        options,
        model_code: ModelCodePermission::Allowed,
        agents: Arc::new(agents),
        backends: backends.clone(),
        support,
        logger,
    };
    check_models(&definer, scan, namespaces, &limits, &mut report);
    report.backends = backends.in_use();
    report.name_places(&repositories.places);
    print_line(&mut std::io::stdout(), report.render(format).trim_end());
    Ok(report.error_count() == 0)
}

/// The notes that a server would log about its flags.
fn flags_without_effect(settings: &Settings) -> Vec<String> {
    let mut remarks = settings.notes.clone();
    let unused = backends::unused(settings);
    remarks.extend(unused.map(|setting| format!("'--backend-config={setting}' has no effect")));
    remarks.extend(settings.tls_remarks());
    remarks
}

fn check_models(
    definer: &ModelDefiner,
    scan: ScanResult,
    namespaces: NamespaceMode,
    limits: &ResourceLimitCheck,
    report: &mut Report,
) {
    for problem in scan.problems {
        match problem {
            ScanProblem::Model { name, reason } => {
                report.models.push(ModelReport::refused(name, reason))
            }
            ScanProblem::Duplicate { .. } | ScanProblem::Repository { .. } => {
                report.errors.push(problem.to_string());
            }
        }
    }
    let mut ensembles = Ensembles::new(namespaces);
    for source in &scan.models {
        let model = check_model(definer, source, limits, &mut ensembles, &mut report.differences);
        report.models.push(model);
    }
    for (id, errors) in ensembles.check() {
        let model = report.models.iter_mut().find(|model| *model.name == *id);
        if let Some(model) = model {
            model.add_config_errors(errors);
        }
    }
    report.models.sort_by(|a, b| a.name.cmp(&b.name));
}

/// Checks one model and adds it to the models that ensembles may use.
fn check_model(
    definer: &ModelDefiner,
    source: &ScannedModel,
    limits: &ResourceLimitCheck,
    ensembles: &mut Ensembles,
    differences: &mut Differences,
) -> ModelReport {
    let id = model_id(source.namespace.as_deref(), &source.name);
    let mut report = ModelReport::new(&id, source);
    let definition = match definer.define(source, None, LoadOverride::None) {
        Ok(definition) => definition,
        Err(DefineError::Config(errors)) => {
            report.add_config_errors(errors);
            return report;
        }
        Err(DefineError::Directory(reason)) => {
            report.add(Diagnostic::about("", BoundedText::truncated(&reason)));
            return report;
        }
    };
    missing_versions(&definition, &mut report);
    report.add_warnings(definer.advice(&definition).into_iter().collect());
    if let Err(status) = definition.check_versions() {
        report.add(Diagnostic::about("", BoundedText::truncated(status.message())));
    }
    let mut passed = BTreeMap::new();
    for files in &definition.versions {
        let checked = definition.check_load(files.as_ref());
        for problem in checked.problems {
            match problem {
                LoadProblem::Config(errors) => report.add_config_errors(errors),
                LoadProblem::Load(status) => report.add(at_version(files.as_ref(), &status)),
            }
        }
        report.add_warnings(checked.warnings);
        if let Some(spec) = checked.spec {
            report.add_warnings(spec.ignored_setting_warnings());
            report.set_backend(&spec);
            differences.add(&id, &spec);
            if let Err(status) = limits.try_add(&spec) {
                report.add(Diagnostic::about(
                    "instance_group",
                    BoundedText::truncated(status.message()),
                ));
            }
            passed.insert(files.version(), spec);
        }
    }
    // A name can't refer to a model that the server rejects.
    match definer.judge(&definition) {
        Ok(()) => ensembles.add(id, definition, passed),
        // Otherwise the checks of its versions also found these errors.
        Err(errors) if definition.versions.is_empty() => report.add_config_errors(errors),
        Err(_) => {}
    }
    report
}

fn missing_versions(definition: &ModelDefinition, report: &mut ModelReport) {
    let available: Vec<i64> = definition.versions.iter().map(|files| files.version()).collect();
    let selection = versions_to_load(&definition.draft.version_policy(), &available);
    for version in selection.missing {
        // Triton serves the other versions.
        report.add_warnings(vec![format!("version_policy: version {version} has no directory")]);
    }
}

fn at_version(files: &dyn ModelFiles, status: &Status) -> Diagnostic {
    let file = files.version_path().display().to_string();
    Diagnostic { file, ..Diagnostic::about("", BoundedText::truncated(status.message())) }
}

impl ModelReport {
    fn add_config_errors(&mut self, errors: ConfigErrors) {
        errors.diagnostics.into_iter().for_each(|diagnostic| self.add(diagnostic));
    }
}
