//! The backends that are built in, made when the first model asks for one.

use std::collections::BTreeMap;
use std::sync::Arc;

use galatea_backend::{Backend, ExecutionPolicy, Host, Model, ModelFiles};
use galatea_backend_identity::IdentityBackend;
use galatea_config::{ConfigDraft, ModelSpec};
use galatea_infer::Status;

use crate::environment::Environment;
use crate::flags::Settings;
use crate::onnxruntime_library;

/// Backends by name.
pub(crate) struct Backends<'a> {
    settings: &'a Settings,
    environment: &'a Environment,
    made: BTreeMap<String, Arc<dyn Backend>>,
}

impl<'a> Backends<'a> {
    /// No backend is made yet.
    pub(crate) const fn new(settings: &'a Settings, environment: &'a Environment) -> Self {
        Self { settings, environment, made: BTreeMap::new() }
    }

    /// The backend of that name; one that can't be had says so when a model
    /// is loaded with it.
    pub(crate) fn get(&mut self, name: &str) -> Arc<dyn Backend> {
        if let Some(backend) = self.made.get(name) {
            return backend.clone();
        }
        let backend =
            self.make(name).unwrap_or_else(|status| Arc::new(Unavailable { reason: status }));
        self.made.insert(name.to_owned(), backend.clone());
        backend
    }

    fn make(&self, name: &str) -> Result<Arc<dyn Backend>, Status> {
        match name {
            "identity" => Ok(Arc::new(IdentityBackend)),
            "onnxruntime" => {
                let flag = self.settings.onnxruntime_library.as_deref();
                let library =
                    onnxruntime_library::find(flag, self.environment).map_err(Status::not_found)?;
                Err(Status::unsupported(format!("this build can't use '{}'", library.display())))
            }
            _ => Err(Status::unsupported(format!(
                "unknown backend '{name}': this server has identity and onnxruntime"
            ))),
        }
    }
}

/// Stands where a backend can't be had.
struct Unavailable {
    reason: Status,
}

impl Backend for Unavailable {
    fn policy(&self, _: &ModelSpec) -> ExecutionPolicy {
        ExecutionPolicy::Blocking
    }

    fn complete_config(&self, _: &mut ConfigDraft, _: &dyn ModelFiles) -> Result<(), Status> {
        Err(self.reason.clone())
    }

    fn load(
        &self,
        _: Arc<ModelSpec>,
        _: &dyn ModelFiles,
        _: Arc<dyn Host>,
    ) -> Result<Box<dyn Model>, Status> {
        Err(self.reason.clone())
    }
}
