//! Refuses compiled models, which are native code.

use std::sync::Arc;

use galatea_backend::{
    AutoCompletePermission, Backend, BackendFingerprint, CustomBatchStrategy, ExecutionPolicy,
    LoadedVersion, Model, ModelFiles, ModelHost, UnconfiguredModel,
};
use galatea_config::{ConfigDraft, ModelSpec};
use galatea_infer::Status;

/// The platform of compiled models.
pub(crate) const COMPILED: &str = "torch_aoti";

/// Returns true if the model is a compiled model. As in Triton, the platform determines this; here,
/// so does the file name.
pub(crate) fn is_compiled(platform: &str, file: &str) -> bool {
    platform == COMPILED || file.ends_with(".pt2")
}

/// A `pytorch` backend, built in or not, that refuses compiled models.
pub struct WithoutNativeModels {
    backend: Arc<dyn Backend>,
    reason: &'static str,
}

impl WithoutNativeModels {
    /// Makes the backend refuse compiled models. The error ends with the reason.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, reason: &'static str) -> Self {
        Self { backend, reason }
    }

    fn check(&self, name: &str, platform: &str, file: &str) -> Result<(), Status> {
        if !is_compiled(platform, file) {
            return Ok(());
        }
        Err(Status::invalid_argument(format!(
            "unable to load model '{name}': a compiled model (model.pt2) is native code, {}",
            self.reason
        )))
    }

    fn check_draft(&self, draft: &ConfigDraft) -> Result<(), Status> {
        self.check(draft.name(), draft.platform(), draft.default_model_filename())
    }
}

impl Backend for WithoutNativeModels {
    fn execution_policy(&self, spec: &ModelSpec) -> ExecutionPolicy {
        self.backend.execution_policy(spec)
    }

    fn auto_complete_config(
        &self,
        draft: &mut ConfigDraft,
        files: &dyn ModelFiles,
    ) -> Result<(), Status> {
        self.check_draft(draft)?;
        self.backend.auto_complete_config(draft, files)
    }

    fn reads_whole_configuration(&self) -> bool {
        self.backend.reads_whole_configuration()
    }

    fn gpus_refused(&self) -> Option<String> {
        self.backend.gpus_refused()
    }

    fn begin_load(
        &self,
        draft: &mut ConfigDraft,
        files: &dyn ModelFiles,
        auto_complete: AutoCompletePermission,
    ) -> Result<Option<Box<dyn UnconfiguredModel>>, Status> {
        self.check_draft(draft)?;
        self.backend.begin_load(draft, files, auto_complete)
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
        host: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn Model>, Status> {
        self.check(&spec.name, &spec.platform, &spec.default_model_filename)?;
        self.backend.load(spec, files, host)
    }

    fn batch_rule(
        &self,
        loaded: &LoadedVersion<'_>,
    ) -> Result<Option<Box<dyn CustomBatchStrategy>>, Status> {
        self.backend.batch_rule(loaded)
    }

    fn fingerprint(&self, loaded: &LoadedVersion<'_>) -> Option<BackendFingerprint> {
        self.backend.fingerprint(loaded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiled_models_are_known_by_platform_or_file() {
        assert!(is_compiled("torch_aoti", "model.pt"));
        assert!(is_compiled("pytorch_libtorch", "other.pt2"));
        assert!(!is_compiled("pytorch_libtorch", "model.pt"));
    }
}
