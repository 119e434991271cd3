//! Built-in backends that execute their models with a library.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use galatea_backend::Backend;
use galatea_backend_onnxruntime::{BackendOptions, OnnxRuntimeBackend, OrtLibrary};
use galatea_backend_openvino::{self as openvino, OpenVinoBackend};
use galatea_backend_python::{BackendScript, SuppliedScript};
use galatea_backend_pytorch::{self as pytorch, PyTorchBackend};
use galatea_backend_tensorflow::{self as tensorflow, GraphRuntimes, TensorFlowBackend};
use galatea_gate::ledger::MemoryAccount;
use galatea_infer::Status;
use galatea_runtime::{LibraryPathOverrides, LibrarySearchSpec, ModelImporter, RuntimeOnDemand};

use super::torch::TorchWorkers;
use super::{Backends, ONNXRUNTIME, OPENVINO, PYTORCH, TENSORFLOW, settings_for};

/// A built-in backend that has been created.
pub(super) struct BuiltInBackend {
    pub(super) backend: Arc<dyn Backend>,
    /// The library that executes the backend's models, if it needs one and has opened it.
    pub(super) library: Box<dyn Fn() -> Option<PathBuf> + Send + Sync>,
}

impl BuiltInBackend {
    pub(super) fn new(backend: Arc<dyn Backend>, library: Option<PathBuf>) -> Self {
        Self { backend, library: Box::new(move || library.clone()) }
    }
}

impl Backends {
    pub(super) fn onnxruntime(&self) -> Result<BuiltInBackend, Status> {
        let path = self.runtime_library(
            OrtLibrary::NAME,
            self.settings.onnxruntime_library.as_deref(),
            self.environment.onnxruntime_library.as_deref(),
        )?;
        let log = self.log.clone();
        let options = BackendOptions {
            // The processors that the process may use, given its affinity and its cgroup quota.
            processors: std::thread::available_parallelism().map_or(1, NonZero::get),
            backend_config: settings_for(ONNXRUNTIME, &self.settings.backend_settings),
            log: Arc::new(move |level, message| log.write(level, message)),
            devices: self.devices.clone(),
            account: Arc::new(MemoryAccount::of_server(self.ledger.clone())),
        };
        if let Some(allocator) = &self.allocator {
            allocator.prefault_heap();
        }
        let backend = Arc::new(OnnxRuntimeBackend::new(OrtLibrary::open(&path)?, options)?);
        Ok(BuiltInBackend::new(backend, Some(path)))
    }

    pub(super) fn openvino(&self) -> Result<BuiltInBackend, Status> {
        let openvino = self.openvino_on_demand();
        Ok(BuiltInBackend::new(openvino.get()?, openvino.opened_path()))
    }

    fn openvino_on_demand(&self) -> Arc<RuntimeOnDemand<OpenVinoBackend>> {
        let make = || {
            let search = self.library_search(
                openvino::Library::NAME,
                self.settings.openvino_library.as_deref(),
                self.environment.openvino_library.as_deref(),
            );
            let (settings, devices) = (self.own_settings(OPENVINO), self.devices.clone());
            let ledger = self.ledger.clone();
            let open = move |path: &Path| {
                let options = openvino::BackendOptions {
                    backend_config: settings.clone(),
                    devices: devices.clone(),
                    account: Arc::new(MemoryAccount::of_server(ledger.clone())),
                };
                OpenVinoBackend::new(openvino::Library::open(path)?, options).map(Arc::new)
            };
            Arc::new(RuntimeOnDemand::new(search, open))
        };
        self.openvino.get_or_init(make).clone()
    }

    pub(super) fn pytorch(&self) -> Result<BuiltInBackend, Status> {
        let path = self.runtime_library(
            pytorch::Library::NAME,
            self.settings.torch_library.as_deref(),
            self.environment.torch_library.as_deref(),
        )?;
        let cache = self.environment.cache_folder.as_ref();
        let script = BackendScript::Supplied(SuppliedScript::PYTORCH);
        let workers = self.python_backend(PYTORCH, Some(self.with_environment(PYTORCH, script)));
        let options = pytorch::TorchOptions {
            processors: std::thread::available_parallelism().map_or(1, NonZero::get),
            cache_folder: cache.map(|one| one.join("galatea/pytorch")),
            temporary_folder: self.environment.temporary_folder.clone(),
            devices: self.devices.clone(),
            account: Arc::new(MemoryAccount::of_server(self.ledger.clone())),
            workers: Arc::new(TorchWorkers(workers)),
        };
        let backend = Arc::new(PyTorchBackend::new(pytorch::Library::open(&path)?, options));
        Ok(BuiltInBackend::new(backend, Some(path)))
    }

    pub(super) fn tensorflow(&self) -> Result<BuiltInBackend, Status> {
        let search = self.library_search(
            tensorflow::Library::NAME,
            self.settings.tensorflow_library.as_deref(),
            self.environment.tensorflow_library.as_deref(),
        );
        let library = Arc::new(RuntimeOnDemand::new(search, tensorflow::Library::open));
        let openvino = self.openvino_on_demand();
        let (found, opened) = (openvino.clone(), openvino.clone());
        let runtimes = GraphRuntimes {
            tensorflow: library.clone(),
            openvino: RuntimeOnDemand::new(
                move || found.find(),
                move |_| Ok(opened.get()? as Arc<dyn ModelImporter>),
            ),
        };
        let log = self.log.clone();
        let options = tensorflow::BackendOptions {
            temporary_folder: self.environment.temporary_folder.clone(),
            backend_config: self.own_settings(TENSORFLOW),
            log: Arc::new(move |level, message| log.write(level, message)),
            devices: self.devices.clone(),
            account: Arc::new(MemoryAccount::of_server(self.ledger.clone())),
        };
        let backend: Arc<dyn Backend> = Arc::new(TensorFlowBackend::new(runtimes, options)?);
        let in_use = move || library.opened_path().or_else(|| openvino.opened_path());
        Ok(BuiltInBackend { backend, library: Box::new(in_use) })
    }

    /// Finds the library of a runtime.
    fn runtime_library(
        &self,
        name: LibrarySearchSpec,
        flag: Option<&Path>,
        variable: Option<&Path>,
    ) -> Result<PathBuf, Status> {
        self.library_search(name, flag, variable)()
    }

    /// A search for a runtime's library by its flag, by its environment variable, or in the usual
    /// places.
    fn library_search(
        &self,
        name: LibrarySearchSpec,
        flag: Option<&Path>,
        variable: Option<&Path>,
    ) -> impl Fn() -> Result<PathBuf, Status> + Send + Sync + use<> {
        let (flag, variable) = (flag.map(Path::to_path_buf), variable.map(Path::to_path_buf));
        let environment = self.environment.clone();
        move || {
            let named =
                LibraryPathOverrides { flag: flag.as_deref(), variable: variable.as_deref() };
            name.find_path(named, environment.search_places()).map_err(Status::not_found)
        }
    }
}
