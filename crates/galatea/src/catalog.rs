//! The catalog of the models in the repositories.

use std::sync::Arc;

use galatea_allocator::release_free_memory;
use galatea_config::ConfigDraft;
use galatea_control::{LoadParameters, ModelNameMapping};
use galatea_engine::{CatalogModel, LoadOverride, LoadableModels, ModelOutline};
use galatea_infer::{Code, Status};
use galatea_repository::{
    ListedModel, LookupResult, ModelRepositories, RegisterError, ScanOptions, ScanProblem,
    ScanResult, ScannedModel, UploadedModelFactory,
};

use crate::definer::{ModelDefiner, OVERRIDE};

/// The repositories, with everything needed to load models from them.
pub(crate) struct RepositoryCatalog {
    /// The repositories.
    pub(crate) repository: ModelRepositories,
    /// Writes the files that come with a load request.
    pub(crate) overlays: UploadedModelFactory,
    /// The files to look for in a model's directory.
    pub(crate) options: ScanOptions,
    /// Defines models.
    pub(crate) definer: Arc<ModelDefiner>,
}

impl LoadableModels for RepositoryCatalog {
    fn names(&self) -> Vec<ListedModel> {
        self.repository.list_model_names()
    }

    fn scan(&self) -> ScanResult<CatalogModel> {
        let scan = self.repository.scan(&self.options);
        scan.map(|source| self.catalog_model(source, None, LoadOverride::None))
    }

    fn find(&self, name: &str, parameters: LoadParameters) -> LookupResult<CatalogModel> {
        let LoadParameters { config, files } = parameters;
        if !files.is_empty() {
            return self.find_overlay(name, config, &files);
        }
        let overrides = match config {
            Some(_) => LoadOverride::Configuration,
            None => LoadOverride::None,
        };
        let lookup = self.repository.find(name, &self.options);
        lookup.map(|source| self.catalog_model(source, config.clone(), overrides))
    }

    fn outline(&self, name: &str) -> Option<ModelOutline> {
        match self.repository.find(name, &self.options) {
            LookupResult::Models(models) => {
                models.first().map(|source| self.definer.outline(source))
            }
            // A load reports the problem.
            LookupResult::Problem(_) => Some(ModelOutline::default()),
            LookupResult::Missing => None,
        }
    }

    fn register(&self, path: &str, names: &[ModelNameMapping]) -> Result<(), Status> {
        let names: Vec<(String, String)> =
            names.iter().map(|given| (given.directory.clone(), given.name.clone())).collect();
        self.repository.register(path, &names).map_err(|error| register_status(&error))
    }

    fn unregister(&self, path: &str) -> Result<(), Status> {
        self.repository.unregister(path).map_err(|error| register_status(&error))
    }

    fn release_memory(&self) {
        release_free_memory();
    }
}

fn register_status(error: &RegisterError) -> Status {
    let code = match error {
        RegisterError::AlreadyRegistered { .. } | RegisterError::NameTaken { .. } => {
            Code::AlreadyExists
        }
        RegisterError::NotFound { .. }
        | RegisterError::Remote { .. }
        | RegisterError::InvalidName { .. }
        | RegisterError::NotRegistered { .. } => Code::InvalidArgument,
    };
    Status::new(code, error.to_string())
}

impl RepositoryCatalog {
    /// Finds a model that consists only of a client's files.
    fn find_overlay(
        &self,
        name: &str,
        config: Option<String>,
        files: &[(String, Vec<u8>)],
    ) -> LookupResult<CatalogModel> {
        let problem =
            |reason| LookupResult::Problem(ScanProblem::Model { name: name.to_owned(), reason });
        let Some(json) = config else {
            let reason = "Load parameter 'config' must be specified for model file override";
            return problem(String::from(reason));
        };
        if let Err(status) = self.definer.model_code.check_files(files) {
            return problem(status.to_string());
        }
        // Errors in the configuration are reported when the model is defined.
        let text = ConfigDraft::from_json(OVERRIDE, &json).map(|draft| draft.to_pbtxt());
        match self.overlays.create(name, text.ok().as_deref(), files) {
            Ok(source) => {
                let is_mapped = self.repository.is_mapped_name(name);
                let namespace = self.repository.uploaded_model_namespace();
                let source = ScannedModel { is_mapped, namespace, ..source };
                LookupResult::Models(vec![self.catalog_model(
                    source,
                    Some(json),
                    LoadOverride::Files,
                )])
            }
            Err(status) => problem(status.to_string()),
        }
    }

    fn catalog_model(
        &self,
        source: ScannedModel,
        config: Option<String>,
        overrides: LoadOverride,
    ) -> CatalogModel {
        let definer = self.definer.clone();
        CatalogModel {
            namespace: source.namespace.clone(),
            name: source.name.clone(),
            path: source.directory.real_path(),
            modified: source.modified.clone(),
            overrides,
            define: Box::new(move || {
                let defined = definer.define_and_judge(&source, config.as_deref(), overrides);
                defined.map_err(|error| error.to_string())
            }),
        }
    }
}
