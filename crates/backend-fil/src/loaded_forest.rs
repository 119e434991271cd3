//! A loaded model version.

use std::sync::Arc;

use galatea_backend::{LogLevel, ModelFiles, ModelHost};
use galatea_config::ModelSpec;
use galatea_forest::fil::{FilModel, FilParameters};
use galatea_forest::{ReadError, read_forest};
use galatea_infer::{Code, Status};
use galatea_runtime::model_path;

use crate::refusal::refused;
use crate::signature::Signature;

/// A loaded model version, which all of its instances share.
pub(crate) struct LoadedForest {
    pub(crate) model_name: Arc<str>,
    pub(crate) forest: FilModel,
    pub(crate) signature: Signature,
}

impl LoadedForest {
    /// Reads the model's file and compares the model with its configuration.
    pub(crate) fn load(
        spec: &ModelSpec,
        files: &dyn ModelFiles,
        host: &dyn ModelHost,
    ) -> Result<Self, Status> {
        let parameter = |name: &str| spec.parameters.get(name).map(String::as_str);
        let (parameters, warnings) = FilParameters::read(parameter).map_err(refused)?;
        for warning in warnings {
            host.log(LogLevel::Warning, &format!("model '{}': {warning}", spec.name));
        }
        let signature = Signature::new(spec)?;
        let file_name = parameters.format.default_file_name();
        let path = model_path(files, spec.model_filename(None), file_name, &spec.name)?;
        let failed = |reason: &str| format!("failed to load '{}': {reason}", path.display());
        let bytes = std::fs::read(&path)
            .map_err(|error| Status::unavailable(failed(&error.to_string())))?;
        let forest = read_forest(parameters.format, &bytes).map_err(|error| match error {
            ReadError::Malformed(_) => Status::new(Code::Unknown, failed(&error.to_string())),
            ReadError::Unsupported(_) => Status::unsupported(failed(&error.to_string())),
        })?;
        signature.check_features(forest.feature_count())?;
        let forest = FilModel::new(forest, &parameters, signature.output.width).map_err(refused)?;
        if let Some(explanation) = &signature.explanation {
            forest.explainer(explanation.width).map_err(refused)?;
        }
        let model_name = Arc::from(spec.name.as_str());
        Ok(Self { model_name, forest, signature })
    }
}
