//! The backend and its models.

use std::sync::Arc;

use galatea_backend::{
    Backend, BackendFingerprint, ExecutionPolicy, Host, Instance, InstanceCreation, LoadedVersion,
    Model, ModelFiles, Placement, unconfigured,
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
        if draft.is_provided() { Ok(()) } else { Err(unconfigured(draft)) }
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
        host: Arc<dyn Host>,
    ) -> Result<Box<dyn Model>, Status> {
        let loaded = Arc::new(LoadedForest::load(&spec, files, &*host)?);
        Ok(Box::new(ForestModel { loaded, spec, host }))
    }

    fn fingerprint(&self, _: &LoadedVersion<'_>) -> Option<BackendFingerprint> {
        Some(BackendFingerprint::of_version(env!("CARGO_PKG_VERSION")))
    }
}

/// A loaded model and its host.
struct ForestModel {
    loaded: Arc<LoadedForest>,
    spec: Arc<ModelSpec>,
    host: Arc<dyn Host>,
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
