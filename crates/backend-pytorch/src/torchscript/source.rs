//! A TorchScript model's sessions.

use std::ffi::CString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use galatea_backend::{ExecutionPredictability, LogLevel, ModelHost};
use galatea_config::ModelSpec;
use galatea_infer::Status;
use galatea_runtime::{CpuOrGpu, OpenedModel, SessionInterface, SessionSource, TensorInfo};
use galatea_tensor::DataType;

use super::interface::interface;
use super::predictable::are_predictable;
use super::session::{Signature, TorchScriptSession};
use crate::api::{FileAccess, Library, ScriptModule, Shim};
use crate::parameters::ModelParameters;

/// Opens the sessions of one model version.
pub(crate) struct TorchScriptSource {
    pub(crate) library: Arc<Library>,
    pub(crate) shim: Arc<Shim>,
    pub(crate) path: PathBuf,
    pub(crate) spec: Arc<ModelSpec>,
    pub(crate) parameters: ModelParameters,
    /// Specifies whether the model may read and write files.
    pub(crate) files: FileAccess,
    pub(crate) host: Arc<dyn ModelHost>,
    /// The processors that the process may use.
    pub(crate) processors: usize,
}

/// The model that was loaded first, which the first instance uses. As in Triton, each other
/// instance loads its own model unless the configuration shares the weights.
#[derive(Clone)]
pub(crate) struct FirstModule {
    module: Arc<ScriptModule>,
    is_used: Arc<AtomicBool>,
    signature: Arc<Signature>,
    /// The number of threads per operation.
    threads: i32,
}

impl SessionSource for TorchScriptSource {
    type Shared = FirstModule;
    type Session = TorchScriptSession;

    fn open_shared(&self) -> Result<OpenedModel<FirstModule>, Status> {
        if let Some(count) = self.parameters.inter_op_threads {
            self.shim.set_inter_op_threads(count);
        }
        let module = self.load()?;
        let interface = interface(&self.spec, &module.arguments())?;
        let inputs = interface.inputs.iter().map(|input| CString::new(input.name.as_str()));
        let input_keys: Result<Vec<CString>, _> = inputs.collect();
        let input_keys =
            input_keys.map_err(|_| Status::invalid_argument("an input's name has a NUL byte"))?;
        let outputs = interface.outputs.iter().map(|output| {
            (output.name.clone(), output.element.datatype().unwrap_or(DataType::Fp32))
        });
        let signature = Arc::new(Signature { input_keys, outputs: outputs.collect() });
        let threads = self.threads();
        let guarantee = guarantee(&module, &interface, threads);
        let session = FirstModule { module, is_used: Arc::default(), signature, threads };
        Ok(OpenedModel { session, interface, guarantee })
    }

    fn session(&self, shared: FirstModule) -> Result<TorchScriptSession, Status> {
        let FirstModule { module, is_used, signature, threads } = shared;
        let is_first = !is_used.swap(true, Ordering::Relaxed);
        let module = if is_first || self.parameters.shares_weights { module } else { self.load()? };
        Ok(TorchScriptSession { library: self.library.clone(), module, signature, threads })
    }
}

impl TorchScriptSource {
    fn load(&self) -> Result<Arc<ScriptModule>, Status> {
        let loaded =
            ScriptModule::load(self.shim.clone(), &self.path, &self.parameters, self.files);
        let loaded = loaded.map_err(|status| {
            status.prefixed(format!("failed to load model '{}': ", self.spec.name))
        });
        loaded.map(Arc::new)
    }

    /// The number of threads per operation, determined as for compiled models.
    fn threads(&self) -> i32 {
        let wanted = self.parameters.intra_op_threads;
        if let Some(decided) = self.library.intra_op_threads(wanted) {
            if let Some(wanted) = wanted.filter(|&wanted| wanted != decided) {
                let line = format!(
                    "model '{}': INTRA_OP_THREAD_COUNT is {wanted}, and {decided} is used: the \
                     first model that sets it decides for all",
                    self.spec.name
                );
                self.host.log(LogLevel::Warning, &line);
            }
            return decided;
        }
        let instances = CpuOrGpu::Cpu.sharing_instance_count(&self.spec).max(1);
        let instances = usize::try_from(instances).unwrap_or(1);
        i32::try_from(self.processors / instances).unwrap_or(i32::MAX).max(1)
    }
}

/// The guarantee for executions.
///
/// PyTorch's interpreter runs on the calling thread. The state that it keeps for a thread is either
/// set for each run (the modes, the optimization and the number of threads) or a cache. With more
/// than one thread per operation, OpenMP would start other threads for each thread that executes
/// the model.
fn guarantee(
    module: &ScriptModule,
    interface: &SessionInterface,
    threads: i32,
) -> ExecutionPredictability {
    if module.may_block() {
        return ExecutionPredictability::Unspecified;
    }
    // A branch may depend on a string, and operators on strings have the names of others.
    let is_number =
        |tensor: &TensorInfo| tensor.element.datatype().is_some_and(|it| it != DataType::Bytes);
    if threads == 1
        && interface.inputs.iter().all(is_number)
        && are_predictable(&module.operators())
    {
        ExecutionPredictability::Predictable
    } else {
        ExecutionPredictability::NonBlocking
    }
}
