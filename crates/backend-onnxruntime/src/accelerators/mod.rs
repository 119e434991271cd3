//! Execution providers, which execute a graph's operators in place of the CPU's.

mod cuda;
mod tensorrt;

use galatea_backend::{Host, LogLevel};
use galatea_config::{Accelerator, ModelSpec};
use galatea_infer::Status;

use crate::api::{Library, ProviderOptions, SessionOptions};

const CUDA: &str = "CUDAExecutionProvider";
const OPENVINO: &str = "OpenVINOExecutionProvider";
const TENSORRT: &str = "TensorrtExecutionProvider";

/// The processor that a session is made for.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Processor {
    /// The CPU.
    Cpu,
    /// The GPU with this number.
    Gpu(u32),
}

/// Appends the providers that the configuration asks for and the processor needs, in their
/// order of preference.
pub(crate) fn append_providers(
    options: &mut SessionOptions,
    spec: &ModelSpec,
    processor: Processor,
    library: &Library,
    host: &dyn Host,
) -> Result<(), Status> {
    let mut cuda_options = ProviderOptions::new();
    for accelerator in &spec.optimization.gpu_execution_accelerators {
        let provider = match accelerator.name.as_str() {
            "tensorrt" => TENSORRT,
            "cuda" => CUDA,
            _ => return Err(unknown(accelerator)),
        };
        let Processor::Gpu(gpu) = processor else {
            // Triton ignores them without a word.
            host.log(LogLevel::Warning, &not_used(spec, accelerator));
            continue;
        };
        require(library, provider, &format!("execution accelerator '{}'", accelerator.name))?;
        if provider == TENSORRT {
            options.append_tensorrt(&tensorrt::options(accelerator, gpu)?)?;
        } else {
            cuda_options = cuda::accelerator_options(accelerator)?;
        }
    }
    if let Processor::Gpu(gpu) = processor {
        require(library, CUDA, &format!("an instance on GPU {gpu}"))?;
        cuda_options.extend(cuda::parameter_options(&spec.parameters)?);
        cuda_options.push((String::from("device_id"), gpu.to_string()));
        options.append_cuda(&cuda_options)?;
    }
    for accelerator in &spec.optimization.cpu_execution_accelerators {
        if accelerator.name != "openvino" {
            return Err(unknown(accelerator));
        }
        require(library, OPENVINO, "execution accelerator 'openvino'")?;
        options.append_openvino(&openvino_options(accelerator))?;
    }
    Ok(())
}

fn openvino_options(accelerator: &Accelerator) -> ProviderOptions {
    let mut options: ProviderOptions =
        accelerator.parameters.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    if !accelerator.parameters.contains_key("device_type") {
        options.push((String::from("device_type"), String::from("CPU")));
    }
    options
}

fn require(library: &Library, provider: &str, what: &str) -> Result<(), Status> {
    if library.providers().iter().any(|name| name == provider) {
        return Ok(());
    }
    Err(Status::unsupported(format!(
        "{what} needs {provider}, which ONNX Runtime {} at '{}' does not have; it has {}",
        library.version(),
        library.path().display(),
        library.providers().join(", ")
    )))
}

fn unknown(accelerator: &Accelerator) -> Status {
    Status::invalid_argument(format!(
        "unknown Execution Accelerator '{}' is requested",
        accelerator.name
    ))
}

fn not_used(spec: &ModelSpec, accelerator: &Accelerator) -> String {
    format!(
        "model '{}' has instances on the CPU, which don't use the execution accelerator '{}'",
        spec.name, accelerator.name
    )
}
