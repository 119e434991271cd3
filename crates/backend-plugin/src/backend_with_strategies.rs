//! A built-in backend whose models may have compiled batching strategies.

use std::sync::Arc;

use galatea_backend::{
    AutoCompletePermission, Backend as BackendTrait, BackendFingerprint, CustomBatchStrategy,
    ExecutionPolicy, LoadedVersion, Model, ModelFiles, ModelHost, UnconfiguredModel,
};
use galatea_config::{ConfigDraft, ModelSpec};
use galatea_infer::Status;

use crate::library::search::LibrarySearchScope;
use crate::strategy_loader::StrategyLoader;

/// Forwards everything except the batching strategy to the backend.
pub(crate) struct BackendWithStrategies {
    pub(crate) backend: Arc<dyn BackendTrait>,
    pub(crate) scope: LibrarySearchScope,
    pub(crate) strategies: Arc<StrategyLoader>,
}

impl BackendTrait for BackendWithStrategies {
    fn execution_policy(&self, spec: &ModelSpec) -> ExecutionPolicy {
        self.backend.execution_policy(spec)
    }

    fn gpus_refused(&self) -> Option<String> {
        self.backend.gpus_refused()
    }

    fn reads_whole_configuration(&self) -> bool {
        self.backend.reads_whole_configuration()
    }

    fn auto_complete_config(
        &self,
        draft: &mut ConfigDraft,
        files: &dyn ModelFiles,
    ) -> Result<(), Status> {
        self.backend.auto_complete_config(draft, files)
    }

    fn begin_load(
        &self,
        draft: &mut ConfigDraft,
        files: &dyn ModelFiles,
        auto_complete: AutoCompletePermission,
    ) -> Result<Option<Box<dyn UnconfiguredModel>>, Status> {
        self.backend.begin_load(draft, files, auto_complete)
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
        host: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn Model>, Status> {
        self.backend.load(spec, files, host)
    }

    fn batch_rule(
        &self,
        loaded: &LoadedVersion<'_>,
    ) -> Result<Option<Box<dyn CustomBatchStrategy>>, Status> {
        self.strategies.batch_rule(loaded, self.scope)
    }

    /// A strategy selects the batch but doesn't change the responses.
    fn fingerprint(&self, loaded: &LoadedVersion<'_>) -> Option<BackendFingerprint> {
        self.backend.fingerprint(loaded)
    }
}
