//! A compiled model's sessions.

use std::path::PathBuf;
use std::sync::Arc;

use galatea_backend::{ExecutionPredictability, LogLevel, ModelHost};
use galatea_config::ModelSpec;
use galatea_infer::Status;
use galatea_runtime::{
    CpuOrGpu, OpenedModel, SessionInterface, SessionSource, TensorInfo, check_interface,
};
use serde_json::{Value, json};

use super::interface::ModelTensors;
use super::session::AotiSession;
use super::shapes::CompiledShapes;
use super::shared::SharedModel;
use crate::api::{AlignedBytes, Container, Library};
use crate::call_spec;
use crate::package::{CompiledInput, Package, WeightsPlace, compiled_inputs, is_predictable};
use crate::parameters::ModelParameters;
use crate::worker::{worker_output, worker_threads};

/// A package whose library is loaded and whose model has been compared with its configuration.
struct OpenedPackage {
    container: Container,
    interface: SessionInterface,
    compiled: Vec<CompiledInput>,
    weights: WeightsPlace,
    /// True if the work of the model depends only on the shapes of its inputs.
    is_predictable: bool,
}

/// Opens the sessions of one version of a compiled model.
pub(crate) struct AotiSource {
    pub(crate) library: Arc<Library>,
    pub(crate) path: PathBuf,
    pub(crate) spec: Arc<ModelSpec>,
    pub(crate) parameters: ModelParameters,
    pub(crate) host: Arc<dyn ModelHost>,
    /// The processors that the process may use.
    pub(crate) processors: usize,
    /// The directory from which the model's library is opened.
    pub(crate) temporary_folder: PathBuf,
}

impl SessionSource for AotiSource {
    type Shared = Arc<SharedModel>;
    type Session = AotiSession;

    fn open_shared(&self) -> Result<OpenedModel<Self::Shared>, Status> {
        let instances = CpuOrGpu::Cpu.sharing_instance_count(&self.spec);
        let opened = self.open(instances)?;
        let OpenedPackage { container, interface, compiled, weights, is_predictable } = opened;
        if weights == WeightsPlace::Pickled {
            // Without its weights, the model would read memory that isn't there.
            return Err(Status::internal("the package has changed while it was loaded"));
        }
        let names = |tensors: &[TensorInfo]| -> Vec<String> {
            tensors.iter().map(|tensor| tensor.name.clone()).collect()
        };
        let output_names = names(&interface.outputs);
        let shapes = CompiledShapes::new(self.spec.name.clone(), &interface, compiled);
        let threads = self.threads(instances);
        let session = Arc::new(SharedModel {
            library: self.library.clone(),
            container: Arc::new(container),
            output_names,
            shapes,
            threads,
        });
        Ok(OpenedModel { session, interface, guarantee: guarantee(is_predictable, threads) })
    }

    fn session(&self, shared: Self::Shared) -> Result<AotiSession, Status> {
        Ok(AotiSession::new(shared))
    }
}

impl AotiSource {
    /// The reason why only a Python program can execute the model; `None` if the library can.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the file isn't a package.
    pub(crate) fn worker_reason(&self) -> Result<Option<String>, Status> {
        let mut package = Package::open(&self.path)?;
        let operations = package.proxy_operations()?;
        if !operations.is_empty() {
            let operations = operations.join(", ");
            return Ok(Some(format!("its operations {operations} have no C interface")));
        }
        let is_pickled = package.has_pickled_weights()?;
        Ok(is_pickled.then(|| String::from("its weights are pickled, which only Python reads")))
    }

    /// Describes the model to a worker, after the checks that a session makes.
    ///
    /// # Errors
    ///
    /// The reason why the model can't be executed with its configuration.
    pub(crate) fn worker_job(&self) -> Result<(Value, CompiledShapes), Status> {
        let OpenedPackage { interface, compiled, weights, .. } = self.open(1)?;
        check_interface(&self.spec, &interface)?;
        let inputs: Vec<&str> = interface.inputs.iter().map(|one| one.name.as_str()).collect();
        let outputs = interface.outputs.iter().enumerate();
        let outputs: Vec<Value> = outputs
            .filter_map(|(index, one)| worker_output(&self.spec, index, &one.name))
            .collect();
        let job = json!({
            "form": "package",
            "path": self.path.to_string_lossy(),
            "has_pickled_weights": weights == WeightsPlace::Pickled,
            "threads": worker_threads(&self.spec, &self.parameters, self.processors),
            "inputs": inputs,
            "outputs": outputs,
        });
        Ok((job, CompiledShapes::new(self.spec.name.clone(), &interface, compiled)))
    }

    /// Loads the model's library and compares the model with the configuration.
    fn open(&self, runners: u32) -> Result<OpenedPackage, Status> {
        let mut package = Package::open(&self.path)?;
        self.check_machine(&mut package)?;
        let source = package.source()?;
        let compiled = source.as_deref().map_or_else(Vec::new, compiled_inputs);
        let weights = package.weights_place(source.as_deref())?;
        let blob = match weights {
            // A worker reads pickled weights.
            WeightsPlace::Library | WeightsPlace::Pickled => None,
            WeightsPlace::Blob => Some(package.read_blob(AlignedBytes::read)?),
        };
        let kernels = package.kernels()?;
        let sources: Vec<&str> = source.as_deref().into_iter().chain(kernels.as_deref()).collect();
        let is_predictable = is_predictable(&sources);
        let extracted = package.extract(&self.temporary_folder)?;
        let container = Container::load(self.library.clone(), &extracted.path, runners, blob);
        let container = container.map_err(|status| {
            status.prefixed(format!("failed to load '{}': ", self.path.display()))
        })?;
        let interface =
            self.tensors(&container, &compiled, |tensors| tensors.interface(&self.spec))?;
        if compiled.len() != container.input_count() {
            self.warn(
                "the package doesn't state the shapes that the model was compiled for: a request \
                 with another shape may end the process that executes the model",
            );
        }
        Ok(OpenedPackage { container, interface, compiled, weights, is_predictable })
    }

    /// Refuses a package that can't run on this machine, before its code is loaded.
    fn check_machine(&self, package: &mut Package) -> Result<(), Status> {
        // If the CPU is unknown, nothing is refused.
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        match package.metadata()?.refusal(std::env::consts::ARCH, &cpuinfo) {
            None => Ok(()),
            Some(reason) => {
                let (name, path) = (&self.spec.name, self.path.display());
                let text = format!("unable to load model '{name}', '{path}': {reason}");
                Err(Status::unsupported(text))
            }
        }
    }

    /// Passes on the model's tensors, whose names come from its call specification.
    fn tensors<T>(
        &self,
        container: &Container,
        compiled: &[CompiledInput],
        use_tensors: impl FnOnce(&ModelTensors<'_>) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let (arguments, results) = container.call_spec()?;
        let wrong = |what: &str, reason: &str| {
            Status::internal(format!(
                "Failed to parse {what} call specification for model \"{}\": {reason}.",
                self.spec.name
            ))
        };
        let inputs =
            call_spec::input_names(&arguments).map_err(|reason| wrong("input", &reason))?;
        let outputs =
            call_spec::output_names(&results).map_err(|reason| wrong("output", &reason))?;
        let (input_count, output_count) = (container.input_count(), container.output_count());
        // The specification also lists arguments that aren't tensors. The model doesn't have these.
        use_tensors(&ModelTensors {
            input_names: Some(&*inputs).filter(|names| names.len() == input_count),
            output_names: Some(&*outputs).filter(|names| names.len() == output_count),
            input_count,
            output_count,
            compiled,
        })
    }

    /// The number of threads per operation. The first model with that setting determines it. If no
    /// model has the setting, it is large enough to keep the processors busy while all instances
    /// execute.
    fn threads(&self, instances: u32) -> i32 {
        let wanted = self.parameters.intra_op_threads;
        if let Some(decided) = self.library.intra_op_threads(wanted) {
            if let Some(wanted) = wanted.filter(|&wanted| wanted != decided) {
                self.warn(&format!(
                    "INTRA_OP_THREAD_COUNT is {wanted}, and {decided} is used: the first model that \
                     sets it decides for all"
                ));
            }
            return decided;
        }
        let instances = usize::try_from(instances.max(1)).unwrap_or(1);
        i32::try_from(self.processors / instances).unwrap_or(i32::MAX).max(1)
    }

    fn warn(&self, text: &str) {
        self.host.log(LogLevel::Warning, &format!("model '{}': {text}", self.spec.name));
    }
}

/// The guarantee for executions.
///
/// The code of a compiled model runs on the calling thread, and an instance always finds a free
/// runner, because the container has one for each instance. The only state that PyTorch keeps for a
/// thread is the number of threads for operations, which is set for each run, and caches. With more
/// than one thread, OpenMP would start other threads for each thread that executes the model.
const fn guarantee(is_predictable: bool, threads: i32) -> ExecutionPredictability {
    if is_predictable && threads == 1 {
        ExecutionPredictability::Predictable
    } else {
        ExecutionPredictability::NonBlocking
    }
}
