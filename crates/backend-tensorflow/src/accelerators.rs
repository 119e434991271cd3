//! Execution accelerators in a configuration. All of TensorFlow's accelerators need a GPU.

use galatea_config::{Accelerator, InstanceKind, ModelSpec};
use galatea_infer::Status;
use galatea_runtime::parameters::leading_number;

const NUMBERS: [&str; 3] =
    ["max_cached_engines", "max_workspace_size_bytes", "minimum_segment_size"];

/// Checks the accelerators for an instance without a GPU, and returns warnings.
///
/// # Errors
///
/// `InvalidArgument`, with Triton's text, for accelerators that Triton refuses.
pub(crate) fn check(spec: &ModelSpec, kind: InstanceKind) -> Result<Vec<String>, Status> {
    let optimization = &spec.optimization;
    if !optimization.cpu_execution_accelerators.is_empty() {
        return Err(Status::invalid_argument(
            "CPU Execution Accelerator is not supported in TensorFlow backend",
        ));
    }
    let accelerators = &optimization.gpu_execution_accelerators;
    if accelerators.is_empty() {
        return Ok(Vec::new());
    }
    if kind == InstanceKind::Model {
        accelerators.iter().try_for_each(check_one)?;
        let has = |name: &str| accelerators.iter().any(|one| one.name == name);
        if has("tensorrt") && has("auto_mixed_precision") {
            return Err(Status::invalid_argument(
                "Auto mixed precision can not be set with TFTRT optimization",
            ));
        }
    }
    Ok(vec![format!(
        "model '{}': GPU Execution Accelerator will be ignored for model instance on CPU",
        spec.name
    )])
}

fn check_one(accelerator: &Accelerator) -> Result<(), Status> {
    match accelerator.name.as_str() {
        "tensorrt" => check_tensorrt(accelerator),
        "gpu_io" | "auto_mixed_precision" => Ok(()),
        other => Err(Status::invalid_argument(format!(
            "unknown Execution Accelerator '{other}' is requested"
        ))),
    }
}

fn check_tensorrt(accelerator: &Accelerator) -> Result<(), Status> {
    for (key, value) in &accelerator.parameters {
        let reason = match key.as_str() {
            "precision_mode" if matches!(value.as_str(), "FP32" | "FP16") => continue,
            "precision_mode" => format!("unsupported precision mode '{value}' is requested"),
            number if NUMBERS.contains(&number) => match leading_number(value) {
                Some(_) => continue,
                None => format!("failed to convert '{value}' to integral number"),
            },
            other => format!(
                "unknown parameter '{other}' is provided for TensorRT Execution Accelerator"
            ),
        };
        return Err(Status::invalid_argument(reason));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use galatea_config::SupportedFeatures;
    use galatea_pbtxt::parse_config_draft;

    use super::*;

    fn found(accelerators: &str, kind: InstanceKind) -> Result<usize, String> {
        let text = format!(
            "backend: 'tensorflow' platform: 'tensorflow_graphdef'
             input [ {{ name: 'I' data_type: TYPE_FP32 dims: [ 1 ] }} ]
             output [ {{ name: 'O' data_type: TYPE_FP32 dims: [ 1 ] }} ]
             optimization {{ execution_accelerators {{ {accelerators} }} }}"
        );
        let mut draft = parse_config_draft("config.pbtxt", &text).unwrap();
        draft.resolve_name_and_backend("m", &[]).unwrap();
        let spec = draft.into_validated_spec(&SupportedFeatures::default()).unwrap();
        check(&spec, kind).map(|all| all.len()).map_err(|status| status.message().to_owned())
    }

    #[test]
    fn accelerators_are_ignored_or_refused_as_in_triton() {
        let gpu = |name: &str, parameter: &str| {
            format!("gpu_execution_accelerator [ {{ name: '{name}' {parameter} }} ]")
        };
        let parameter =
            |key: &str, value: &str| format!("parameters {{ key: '{key}' value: '{value}' }}");
        let cpu = "cpu_execution_accelerator [ { name: 'openvino' } ]";
        let refused = "CPU Execution Accelerator is not supported in TensorFlow backend";
        assert_eq!(found(cpu, InstanceKind::Cpu), Err(refused.to_owned()));
        // An instance on the CPU doesn't consider GPU accelerators.
        assert_eq!(found(&gpu("nonsense", ""), InstanceKind::Cpu), Ok(1));
        assert_eq!(found("", InstanceKind::Cpu), Ok(0));
        for (name, parameter, expected) in [
            ("nonsense", String::new(), "unknown Execution Accelerator 'nonsense' is requested"),
            (
                "tensorrt",
                parameter("precision_mode", "INT8"),
                "unsupported precision mode 'INT8' is requested",
            ),
            (
                "tensorrt",
                parameter("max_cached_engines", "x"),
                "failed to convert 'x' to integral number",
            ),
            (
                "tensorrt",
                parameter("nonsense", "1"),
                "unknown parameter 'nonsense' is provided for TensorRT Execution Accelerator",
            ),
        ] {
            let text = gpu(name, &parameter);
            assert_eq!(found(&text, InstanceKind::Model), Err(expected.to_owned()));
        }
        let known = gpu("tensorrt", &parameter("minimum_segment_size", "3"));
        assert_eq!(found(&known, InstanceKind::Model), Ok(1));
        let both = format!("{known} {}", gpu("auto_mixed_precision", ""));
        let text = "Auto mixed precision can not be set with TFTRT optimization";
        assert_eq!(found(&both, InstanceKind::Model), Err(text.to_owned()));
    }
}
