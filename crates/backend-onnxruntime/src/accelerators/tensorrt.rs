//! Options of the TensorRT provider.

use galatea_config::Accelerator;
use galatea_infer::Status;

use crate::api::ProviderOptions;
use crate::parameters::{invalid_value, parse_switch};

/// The type of a parameter.
#[derive(Copy, Clone)]
enum ParameterType {
    Boolean,
    Number,
    Text,
}

/// The parameters that a configuration may give, and their types.
const PARAMETERS: [(&str, ParameterType); 31] = [
    ("int8_calibration_table_name", ParameterType::Text),
    ("int8_use_native_calibration_table", ParameterType::Boolean),
    ("max_workspace_size_bytes", ParameterType::Number),
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

/// The options of an accelerator's parameters, under the library's names.
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
        let value = match parameter_type {
            ParameterType::Boolean => parse_switch(key, value)?.digit().to_owned(),
            ParameterType::Number => match value.trim().parse::<i64>() {
                Ok(number) => number.to_string(),
                Err(_) => return Err(invalid_value(key, value, "an integral number")),
            },
            ParameterType::Text => value.clone(),
        };
        options.push((library_name(name), value));
    }
    options.push((String::from("device_id"), gpu.to_string()));
    Ok(options)
}

/// The library's name of a parameter, which begins with `trt_`.
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

    fn check(key: &str, value: &str, expected: Result<&[(&str, &str)], &str>) {
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
        check("precision_mode", "FP16", Ok(&[("trt_fp16_enable", "1")]));
        check("precision_mode", "FP32", Ok(&[]));
        check("precision_mode", "FP4", Err("unsupported precision mode 'FP4' is requested"));
        check("max_workspace_size_bytes", "4096", Ok(&[("trt_max_workspace_size", "4096")]));
        check(
            "int8_use_native_calibration_table",
            "true",
            Ok(&[("trt_int8_use_native_calibration_table", "1")]),
        );
        check("trt_auxiliary_streams", "-1", Ok(&[("trt_auxiliary_streams", "-1")]));
        check(
            "trt_dla_core",
            "first",
            Err("'trt_dla_core' is 'first', which is not an integral number"),
        );
        check(
            "trt_nothing",
            "1",
            Err("unknown parameter 'trt_nothing' is provided for TensorRT Execution Accelerator"),
        );
    }
}
