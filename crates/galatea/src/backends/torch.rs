//! Workers for PyTorch models that the library can't execute.

use std::sync::Arc;

use galatea_backend::{Model, ModelFiles, ModelHost};
use galatea_backend_python::PythonBackend;
use galatea_backend_pytorch as pytorch;
use galatea_config::ModelSpec;
use galatea_infer::Status;
use serde_json::Value;

/// The Python backend with the supplied script. An error in its settings affects only models that
/// need this backend.
pub(super) struct TorchWorkers(pub(super) Result<PythonBackend, Status>);

impl pytorch::TorchWorkers for TorchWorkers {
    fn describe(
        &self,
        spec: &ModelSpec,
        files: &dyn ModelFiles,
        job: Value,
    ) -> Result<Value, Status> {
        match &self.0 {
            Ok(backend) => backend.describe_job(spec, files, job),
            Err(reason) => Err(reason.clone()),
        }
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
        host: Arc<dyn ModelHost>,
        job: Value,
    ) -> Result<Box<dyn Model>, Status> {
        match &self.0 {
            Ok(backend) => backend.load_job(spec, files, host, job),
            Err(reason) => Err(reason.clone()),
        }
    }
}
