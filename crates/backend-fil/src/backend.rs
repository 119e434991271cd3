//! The backend and its models.

use std::sync::Arc;

use galatea_backend::{
    Backend, BackendFingerprint, ExecutionPolicy, Instance, InstanceCreation, LoadedVersion, Model,
    ModelFiles, ModelHost, Placement, missing_config_error,
};
use galatea_config::{ConfigDraft, ModelSpec};
use galatea_infer::Status;

use crate::instance::FilInstance;
use crate::loaded_forest::LoadedForest;

/// The `fil` backend.
#[derive(Copy, Clone, Debug, Default)]
pub struct FilBackend;

impl Backend for FilBackend {
    fn execution_policy(&self, _: &ModelSpec) -> ExecutionPolicy {
        ExecutionPolicy::Blocking
    }

    fn gpus_refused(&self) -> Option<String> {
        Some(String::from("KIND_GPU cannot be used in CPU-only build"))
    }

    /// Doesn't complete anything.
    fn auto_complete_config(
        &self,
        draft: &mut ConfigDraft,
        _: &dyn ModelFiles,
    ) -> Result<(), Status> {
        if draft.has_explicit_config() { Ok(()) } else { Err(missing_config_error(draft)) }
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
        host: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn Model>, Status> {
        let loaded = Arc::new(LoadedForest::load(&spec, files, &*host)?);
        Ok(Box::new(ForestModel { loaded, spec, host }))
    }

    fn fingerprint(&self, _: &LoadedVersion<'_>) -> Option<BackendFingerprint> {
        Some(BackendFingerprint::from_version(env!("CARGO_PKG_VERSION")))
    }
}

/// A loaded model and its host.
struct ForestModel {
    loaded: Arc<LoadedForest>,
    spec: Arc<ModelSpec>,
    host: Arc<dyn ModelHost>,
}

impl Model for ForestModel {
    fn create_instance(&self, at: &Placement) -> Result<Box<dyn Instance>, Status> {
        let host_policy = at.host_policy(&self.spec);
        Ok(Box::new(FilInstance::new(self.loaded.clone(), host_policy, self.host.clone())))
    }

    fn instance_creation(&self) -> InstanceCreation {
        InstanceCreation::Parallel
    }
}
