//! Options of the TensorRT provider.

use galatea_config::Accelerator;
use galatea_infer::Status;

use super::ProviderOptions;
use super::cuda::digit;
use crate::parameters::{parse_switch, wrong};

/// What a parameter's value is.
#[derive(Copy, Clone)]
enum Kind {
    Boolean,
    Number,
    Text,
}

/// The parameters that a configuration may give, and what they are.
const PARAMETERS: [(&str, Kind); 31] = [
    ("int8_calibration_table_name", Kind::Text),
    ("int8_use_native_calibration_table", Kind::Boolean),
    ("max_workspace_size_bytes", Kind::Number),
    ("trt_auxiliary_streams", Kind::Number),
    ("trt_build_heuristics_enable", Kind::Boolean),
    ("trt_builder_optimization_level", Kind::Number),
    ("trt_context_memory_sharing_enable", Kind::Boolean),
    ("trt_cuda_graph_enable", Kind::Boolean),
    ("trt_detailed_build_log", Kind::Boolean),
    ("trt_dla_core", Kind::Number),
    ("trt_dla_enable", Kind::Boolean),
    ("trt_dump_ep_context_model", Kind::Boolean),
    ("trt_dump_subgraphs", Kind::Boolean),
    ("trt_engine_cache_enable", Kind::Boolean),
    ("trt_engine_cache_path", Kind::Text),
    ("trt_engine_cache_prefix", Kind::Text),
    ("trt_ep_context_embed_mode", Kind::Number),
    ("trt_ep_context_file_path", Kind::Text),
    ("trt_extra_plugin_lib_paths", Kind::Text),
    ("trt_force_sequential_engine_build", Kind::Boolean),
    ("trt_force_timing_cache", Kind::Boolean),
    ("trt_layer_norm_fp32_fallback", Kind::Boolean),
    ("trt_max_partition_iterations", Kind::Number),
    ("trt_min_subgraph_size", Kind::Number),
    ("trt_profile_max_shapes", Kind::Text),
    ("trt_profile_min_shapes", Kind::Text),
    ("trt_profile_opt_shapes", Kind::Text),
    ("trt_sparsity_enable", Kind::Boolean),
    ("trt_tactic_sources", Kind::Text),
    ("trt_timing_cache_enable", Kind::Boolean),
    ("trt_timing_cache_path", Kind::Text),
];

/// What the accelerator's parameters say, under the library's names.
pub(super) fn options(accelerator: &Accelerator, gpu: u32) -> Result<ProviderOptions, Status> {
    let mut options = ProviderOptions::new();
    for (key, value) in &accelerator.parameters {
        if key == "precision_mode" {
            options.extend(precision(value)?);
            continue;
        }
        let parameter = PARAMETERS.iter().find(|(name, _)| name == key);
        let Some((name, kind)) = parameter else {
            return Err(Status::invalid_argument(format!(
                "unknown parameter '{key}' is provided for TensorRT Execution Accelerator"
            )));
        };
        let value = match kind {
            Kind::Boolean => digit(parse_switch(key, value)?),
            Kind::Number => match value.trim().parse::<i64>() {
                Ok(number) => number.to_string(),
                Err(_) => return Err(wrong(key, value, "an integral number")),
            },
            Kind::Text => value.clone(),
        };
        options.push((library_name(name), value));
    }
    options.push((String::from("device_id"), gpu.to_string()));
    Ok(options)
}

/// The library's name for a parameter: it begins with `trt_`.
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
    fn parameters_get_the_names_of_the_library() {
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
