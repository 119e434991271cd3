//! Options for the TensorRT provider.

use galatea_config::Accelerator;
use galatea_infer::Status;

use super::ProviderOptions;
use galatea_runtime::parameters::{
    leading_number, parameter_conversion_error, parse_bool_parameter,
};

/// The type of a parameter.
#[derive(Copy, Clone)]
enum ParameterType {
    Boolean,
    Number,
    ByteSize,
    Text,
}

/// The parameters that a configuration may specify, and their types.
const PARAMETERS: [(&str, ParameterType); 31] = [
    ("int8_calibration_table_name", ParameterType::Text),
    ("int8_use_native_calibration_table", ParameterType::Boolean),
    ("max_workspace_size_bytes", ParameterType::ByteSize),
    ("trt_auxiliary_streams", ParameterType::Number),
    ("trt_build_heuristics_enable", ParameterType::Boolean),
    ("trt_builder_optimization_level", ParameterType::Number),
    ("trt_context_memory_sharing_enable", ParameterType::Boolean),
    ("trt_cuda_graph_enable", ParameterType::Boolean),
    ("trt_detailed_build_log", ParameterType::Boolean),
    ("trt_dla_core", ParameterType::Number),
    ("trt_dla_enable", ParameterType::Boolean),
    ("trt_dump_ep_context_model", ParameterType::Boolean),
    ("trt_dump_subgraphs", ParameterType::Boolean),
    ("trt_engine_cache_enable", ParameterType::Boolean),
    ("trt_engine_cache_path", ParameterType::Text),
    ("trt_engine_cache_prefix", ParameterType::Text),
    ("trt_ep_context_embed_mode", ParameterType::Number),
    ("trt_ep_context_file_path", ParameterType::Text),
    ("trt_extra_plugin_lib_paths", ParameterType::Text),
    ("trt_force_sequential_engine_build", ParameterType::Boolean),
    ("trt_force_timing_cache", ParameterType::Boolean),
    ("trt_layer_norm_fp32_fallback", ParameterType::Boolean),
    ("trt_max_partition_iterations", ParameterType::Number),
    ("trt_min_subgraph_size", ParameterType::Number),
    ("trt_profile_max_shapes", ParameterType::Text),
    ("trt_profile_min_shapes", ParameterType::Text),
    ("trt_profile_opt_shapes", ParameterType::Text),
    ("trt_sparsity_enable", ParameterType::Boolean),
    ("trt_tactic_sources", ParameterType::Text),
    ("trt_timing_cache_enable", ParameterType::Boolean),
    ("trt_timing_cache_path", ParameterType::Text),
];

/// The options from an accelerator's parameters, under the library's names. The values are
/// validated as in Triton and passed on unchanged.
pub(super) fn options(accelerator: &Accelerator, gpu: u32) -> Result<ProviderOptions, Status> {
    let mut options = ProviderOptions::new();
    for (key, value) in &accelerator.parameters {
        if key == "precision_mode" {
            options.extend(precision(value)?);
            continue;
        }
        let parameter = PARAMETERS.iter().find(|(name, _)| name == key);
        let Some((name, parameter_type)) = parameter else {
            return Err(Status::invalid_argument(format!(
                "unknown parameter '{key}' is provided for TensorRT Execution Accelerator"
            )));
        };
        check(*parameter_type, key, value)?;
        if !value.is_empty() {
            options.insert(library_name(name), value.clone());
        }
    }
    options.insert(String::from("device_id"), gpu.to_string());
    Ok(options)
}

fn check(parameter_type: ParameterType, key: &str, value: &str) -> Result<(), Status> {
    let number = leading_number(value);
    let is_number = match parameter_type {
        ParameterType::Boolean => return parse_bool_parameter(key, value).map(|_| ()),
        ParameterType::Text => return Ok(()),
        ParameterType::Number => number.is_some_and(|number| number.parse::<i32>().is_ok()),
        ParameterType::ByteSize => number.is_some(),
    };
    let to = match parameter_type {
        ParameterType::ByteSize => "unsigned long long integral number",
        ParameterType::Boolean | ParameterType::Number | ParameterType::Text => "integral number",
    };
    if is_number { Ok(()) } else { Err(parameter_conversion_error(key, value, to)) }
}

/// The library's name for a parameter, which starts with `trt_`.
fn library_name(parameter: &str) -> String {
    match parameter {
        "max_workspace_size_bytes" => String::from("trt_max_workspace_size"),
        name if name.starts_with("trt_") => name.to_owned(),
        name => format!("trt_{name}"),
    }
}

fn precision(mode: &str) -> Result<Option<(String, String)>, Status> {
    let option = match mode {
        "FP32" => return Ok(None),
        "FP16" => "trt_fp16_enable",
        "BF16" => "trt_bf16_enable",
        "INT8" => "trt_int8_enable",
        _ => {
            return Err(Status::invalid_argument(format!(
                "unsupported precision mode '{mode}' is requested"
            )));
        }
    };
    Ok(Some((option.to_owned(), String::from("1"))))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn expect(key: &str, value: &str, expected: Result<&[(&str, &str)], &str>) {
        let parameters = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let accelerator = Accelerator { name: String::from("tensorrt"), parameters };
        let found = options(&accelerator, 2).map_err(|status| status.message().to_owned());
        let expected = expected.map_err(ToOwned::to_owned).map(|options| {
            let own = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
            options.iter().chain([&("device_id", "2")]).map(own).collect::<ProviderOptions>()
        });
        assert_eq!(found, expected);
    }

    #[test]
    fn parameters_get_the_librarys_names() {
        expect("precision_mode", "FP16", Ok(&[("trt_fp16_enable", "1")]));
        expect("precision_mode", "FP32", Ok(&[]));
        expect("precision_mode", "FP4", Err("unsupported precision mode 'FP4' is requested"));
        expect("max_workspace_size_bytes", "4096", Ok(&[("trt_max_workspace_size", "4096")]));
        expect(
            "int8_use_native_calibration_table",
            "true",
            Ok(&[("trt_int8_use_native_calibration_table", "true")]),
        );
        expect("trt_auxiliary_streams", "-1", Ok(&[("trt_auxiliary_streams", "-1")]));
        expect(
            "trt_dla_core",
            "first",
            Err("failed to convert 'first' to integral number: parameter 'trt_dla_core'"),
        );
        expect("trt_dla_core", "1st", Ok(&[("trt_dla_core", "1st")]));
        expect(
            "max_workspace_size_bytes",
            "much",
            Err("failed to convert 'much' to unsigned long long integral number: parameter \
                 'max_workspace_size_bytes'"),
        );
        expect(
            "trt_dla_enable",
            "yes",
            Err("failed to convert 'yes' to boolean: parameter 'trt_dla_enable'"),
        );
        expect("trt_engine_cache_path", "", Ok(&[]));
        expect(
            "trt_nothing",
            "1",
            Err("unknown parameter 'trt_nothing' is provided for TensorRT Execution Accelerator"),
        );
    }
}
