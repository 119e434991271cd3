//! Refuses compiled models, which are native code.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use galatea_backend::{
    AutoCompletePermission, Backend, BackendFingerprint, CustomBatchStrategy, ExecutionPolicy,
    FileFingerprint, FileReadLimit, LoadedVersion, Model, ModelFiles, ModelHost, UnconfiguredModel,
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
    refusal: NativeModelRefusal,
}

/// The reason why compiled models are refused.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum NativeModelRefusal {
    /// The operator refuses all of them.
    Operator,
    /// A client sent the model with a load request.
    LoadRequest,
}

impl WithoutNativeModels {
    /// Makes the backend refuse compiled models. The error ends with the reason.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, refusal: NativeModelRefusal) -> Self {
        Self { backend, refusal }
    }

    fn check(&self, name: &str, platform: &str, file: &str) -> Result<(), Status> {
        if !is_compiled(platform, file) {
            return Ok(());
        }
        let reason = match self.refusal {
            NativeModelRefusal::Operator => "which --allow-native-models=false refuses",
            NativeModelRefusal::LoadRequest => "which a load request must not bring",
        };
        Err(Status::invalid_argument(format!(
            "unable to load model '{name}': a compiled model (model.pt2) is native code, {reason}"
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
        match self.refusal {
            NativeModelRefusal::Operator => self.backend.load(spec, files, host),
            NativeModelRefusal::LoadRequest => self.backend.load(spec, &ClientFiles(files), host),
        }
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

/// Files that a client sent with a load request.
struct ClientFiles<'a>(&'a dyn ModelFiles);

impl ModelFiles for ClientFiles<'_> {
    fn are_from_client(&self) -> bool {
        true
    }

    fn model_path(&self) -> &Path {
        self.0.model_path()
    }

    fn version(&self) -> i64 {
        self.0.version()
    }

    fn version_path(&self) -> &Path {
        self.0.version_path()
    }

    fn fetch_ahead(&self) {
        self.0.fetch_ahead();
    }

    fn fetch(&self) -> Result<(), Status> {
        self.0.fetch()
    }

    fn resolve(&self, name: &str) -> Result<PathBuf, Status> {
        self.0.resolve(name)
    }

    fn resolve_in_model_directory(&self, name: &str) -> Result<PathBuf, Status> {
        self.0.resolve_in_model_directory(name)
    }

    fn read_in_model_directory(&self, name: &str, size: FileReadLimit) -> Result<Vec<u8>, Status> {
        self.0.read_in_model_directory(name, size)
    }

    fn fingerprints(&self) -> Option<Vec<FileFingerprint>> {
        self.0.fingerprints()
    }

    fn read_initial_state(&self, name: &str, size: FileReadLimit) -> Result<Vec<u8>, Status> {
        self.0.read_initial_state(name, size)
    }

    fn read_warmup(&self, name: &str, size: FileReadLimit) -> Result<Vec<u8>, Status> {
        self.0.read_warmup(name, size)
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
