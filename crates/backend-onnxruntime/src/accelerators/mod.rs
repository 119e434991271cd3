//! Execution providers, which execute a graph's operators instead of the CPU provider.

mod cuda;
mod tensorrt;

use std::collections::BTreeMap;

use galatea_config::{Accelerator, ModelSpec};
use galatea_devices::CudaStream;
use galatea_infer::Status;
use galatea_runtime::CpuOrGpu;

use crate::api::{OrtLibrary, SessionOptions};

const CUDA: &str = "CUDAExecutionProvider";
const OPENVINO: &str = "OpenVINOExecutionProvider";
const TENSORRT: &str = "TensorrtExecutionProvider";
const CUDA_GRAPHS: &str = "enable_cuda_graph";
const TENSORRT_GRAPHS: &str = "trt_cuda_graph_enable";

/// An execution provider's options, keyed by name.
pub(crate) type ProviderOptions = BTreeMap<String, String>;

/// A session's providers and their options, in order of preference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Providers {
    tensorrt: Vec<ProviderOptions>,
    cuda: Option<ProviderOptions>,
    openvino: Vec<ProviderOptions>,
    /// The setting that requests the first GPU provider, for error messages.
    asked_by: String,
    /// Accelerators that the session doesn't use.
    not_used: Vec<String>,
}

impl Providers {
    /// The providers that the configuration requests and the processor needs.
    ///
    /// As in Triton, every session on a GPU has the CUDA provider. The configuration can add
    /// options and place the TensorRT provider before it.
    pub(crate) fn of(spec: &ModelSpec, processor: CpuOrGpu) -> Result<Self, Status> {
        let mut providers = Self::default();
        let mut cuda_options = ProviderOptions::new();
        for accelerator in &spec.optimization.gpu_execution_accelerators {
            if !matches!(accelerator.name.as_str(), "tensorrt" | "cuda") {
                return Err(unknown(accelerator));
            }
            let CpuOrGpu::Gpu(gpu) = processor else {
                providers.not_used.push(accelerator.name.clone());
                continue;
            };
            if accelerator.name == "cuda" {
                cuda_options.extend(cuda::accelerator_options(accelerator)?);
            } else {
                providers.tensorrt.push(tensorrt::options(accelerator, gpu)?);
            }
        }
        if let CpuOrGpu::Gpu(gpu) = processor {
            cuda_options.extend(cuda::parameter_options(&spec.parameters)?);
            cuda_options.insert(String::from("device_id"), gpu.to_string());
            providers.cuda = Some(cuda_options);
            providers.asked_by = format!("an instance on GPU {gpu}");
        }
        for accelerator in &spec.optimization.cpu_execution_accelerators {
            if accelerator.name != "openvino" {
                return Err(unknown(accelerator));
            }
            providers.openvino.push(openvino_options(accelerator));
        }
        Ok(providers)
    }

    /// The options that make the library record executions as CUDA graphs.
    fn recording_options(&self) -> Vec<&'static str> {
        let is_on = |options: &ProviderOptions, name: &str| {
            let value = options.get(name);
            value.is_some_and(|value| value.eq_ignore_ascii_case("true") || value == "1")
        };
        let mut found = Vec::new();
        if self.tensorrt.iter().any(|options| is_on(options, TENSORRT_GRAPHS)) {
            found.push(TENSORRT_GRAPHS);
        }
        if self.cuda.as_ref().is_some_and(|options| is_on(options, CUDA_GRAPHS)) {
            found.push(CUDA_GRAPHS);
        }
        found
    }

    /// Checks that the library includes the providers.
    pub(crate) fn require(&self, library: &OrtLibrary) -> Result<(), Status> {
        if !self.tensorrt.is_empty() {
            require(library, TENSORRT, "execution accelerator 'tensorrt'")?;
        }
        if self.cuda.is_some() {
            require(library, CUDA, &self.asked_by)?;
        }
        if self.openvino.is_empty() {
            return Ok(());
        }
        require(library, OPENVINO, "execution accelerator 'openvino'")
    }

    /// Warnings for the operator about settings that the session doesn't use.
    pub(crate) fn warnings(&self, model: &str) -> Vec<String> {
        // Triton ignores these settings silently.
        let unused = self.not_used.iter().map(|accelerator| {
            format!(
                "model '{model}' has instances on the CPU, which don't use the execution \
                 accelerator '{accelerator}'"
            )
        });
        let graphs = self.recording_options().into_iter().map(|option| {
            format!(
                "model '{model}' asks for '{option}', which has no effect: a recorded graph would \
                 read the inputs of the batch that it was recorded with"
            )
        });
        unused.chain(graphs).collect()
    }

    /// Appends the providers to a session's options. GPU providers execute on `stream`.
    pub(crate) fn append(
        &self,
        options: &mut SessionOptions,
        stream: Option<&CudaStream>,
        library: &OrtLibrary,
    ) -> Result<(), Status> {
        self.require(library)?;
        for tensorrt in &self.tensorrt {
            options.append_tensorrt(tensorrt, stream)?;
        }
        if let Some(cuda) = &self.cuda {
            options.append_cuda(cuda, stream)?;
        }
        for openvino in &self.openvino {
            options.append_openvino(openvino)?;
        }
        Ok(())
    }
}

/// The reason why the library can't execute models on GPUs, if that is the case.
pub(crate) fn gpus_refused(library: &OrtLibrary) -> Option<String> {
    require(library, CUDA, "it").err().map(|status| String::from(status.message()))
}

fn openvino_options(accelerator: &Accelerator) -> ProviderOptions {
    let mut options: ProviderOptions = accelerator.parameters.clone();
    options.entry(String::from("device_type")).or_insert_with(|| String::from("CPU"));
    options
}

fn require(library: &OrtLibrary, provider: &str, what: &str) -> Result<(), Status> {
    if library.providers().iter().any(|name| name == provider) {
        return Ok(());
    }
    let remedy = match provider {
        OPENVINO => "onnxruntime-openvino",
        _ => "onnxruntime-gpu",
    };
    Err(Status::unsupported(format!(
        "{what} needs {provider}, which ONNX Runtime {} at '{}' does not have; it has {}. A \
         library with it is in the Python package {remedy} (pip install {remedy})",
        library.version(),
        library.file().path().display(),
        library.providers().join(", ")
    )))
}

fn unknown(accelerator: &Accelerator) -> Status {
    Status::invalid_argument(format!(
        "unknown Execution Accelerator '{}' is requested",
        accelerator.name
    ))
}

#[cfg(test)]
mod tests {
    use galatea_config::SupportedFeatures;
    use galatea_pbtxt::parse_config_draft;

    use super::*;

    fn providers(settings: &str, processor: CpuOrGpu) -> Result<Providers, String> {
        let text = format!(
            "input [ {{ name: 'I' data_type: TYPE_FP32 dims: [ 1 ] }} ]
             output [ {{ name: 'O' data_type: TYPE_FP32 dims: [ 1 ] }} ] {settings}"
        );
        let mut draft = parse_config_draft("config.pbtxt", &text).unwrap();
        draft.resolve_name_and_backend("m", &["model.onnx".to_owned()]).unwrap();
        let spec = draft.into_validated_spec(&SupportedFeatures::default()).unwrap();
        Providers::of(&spec, processor).map_err(|status| status.message().to_owned())
    }

    fn accelerators(text: &str) -> String {
        format!(
            "optimization {{ execution_accelerators {{ gpu_execution_accelerator: [ {text} ] }} }}"
        )
    }

    fn parameter(key: &str, value: &str) -> String {
        format!("parameters {{ key: '{key}' value: {{ string_value: '{value}' }} }}")
    }

    fn options(pairs: &[(&str, &str)]) -> ProviderOptions {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    #[test]
    // row: ONNX-06
    fn every_session_on_a_gpu_has_cuda_on_its_device() {
        let plain = providers("", CpuOrGpu::Gpu(3)).unwrap();
        assert_eq!(plain.cuda, Some(options(&[("device_id", "3")])));
        assert!(plain.tensorrt.is_empty());
        let both = accelerators(
            "{ name: 'cuda' parameters { key: 'use_tf32' value: '0' } \
               parameters { key: 'device_id' value: '9' } },
             { name: 'tensorrt' parameters { key: 'trt_dla_core' value: '2' } }",
        );
        let both = providers(&both, CpuOrGpu::Gpu(1)).unwrap();
        assert_eq!(both.cuda, Some(options(&[("device_id", "1"), ("use_tf32", "0")])));
        assert_eq!(both.tensorrt, [options(&[("device_id", "1"), ("trt_dla_core", "2")])]);
    }

    #[test]
    // row: ONNX-06
    fn the_models_parameters_outrank_the_accelerators() {
        let accelerator = accelerators(
            "{ name: 'cuda' parameters { key: 'gpu_mem_limit' value: '7' } \
               parameters { key: 'cudnn_conv_algo_search' value: 'HEURISTIC' } }",
        );
        let settings = format!("{accelerator} {}", parameter("cudnn_conv_algo_search", "2"));
        let found = providers(&settings, CpuOrGpu::Gpu(0)).unwrap();
        let expected =
            [("cudnn_conv_algo_search", "DEFAULT"), ("device_id", "0"), ("gpu_mem_limit", "7")];
        assert_eq!(found.cuda, Some(options(&expected)));
    }

    #[test]
    // row: ONNX-06
    fn accelerators_of_gpus_are_named_and_checked() {
        let unknown = accelerators("{ name: 'warp' }");
        for processor in [CpuOrGpu::Cpu, CpuOrGpu::Gpu(0)] {
            let expected = "unknown Execution Accelerator 'warp' is requested";
            assert_eq!(providers(&unknown, processor), Err(expected.to_owned()));
        }
        let wrong = accelerators("{ name: 'tensorrt' parameters { key: 'x' value: 'y' } }");
        let on_cpu = providers(&wrong, CpuOrGpu::Cpu).unwrap();
        assert!(on_cpu.tensorrt.is_empty() && on_cpu.cuda.is_none());
        assert_eq!(on_cpu.not_used, ["tensorrt"]);
        let expected = "unknown parameter 'x' is provided for TensorRT Execution Accelerator";
        assert_eq!(providers(&wrong, CpuOrGpu::Gpu(0)), Err(expected.to_owned()));
    }

    #[test]
    fn recorded_graphs_are_recognized() {
        for (name, option) in [("cuda", CUDA_GRAPHS), ("tensorrt", TENSORRT_GRAPHS)] {
            for (value, expected) in [("1", true), ("True", true), ("0", false), ("false", false)] {
                let text = format!(
                    "{{ name: '{name}' parameters {{ key: '{option}' value: '{value}' }} }}"
                );
                let found = providers(&accelerators(&text), CpuOrGpu::Gpu(0));
                let options = found.map(|found| found.recording_options()).unwrap_or_default();
                assert_eq!(options, [option][..usize::from(expected)], "{name} {value}");
            }
        }
    }
}
