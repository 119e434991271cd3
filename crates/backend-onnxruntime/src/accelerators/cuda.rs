//! Options for the CUDA provider.

use std::collections::BTreeMap;

use galatea_config::Accelerator;
use galatea_infer::Status;

use super::ProviderOptions;
use galatea_runtime::parameters::{integer_parameter, parse_bool_parameter};

/// The options from an accelerator's parameters. The library validates most of them and reports
/// unknown ones.
pub(super) fn accelerator_options(accelerator: &Accelerator) -> Result<ProviderOptions, Status> {
    let mut options = ProviderOptions::new();
    for (key, value) in &accelerator.parameters {
        if matches!(key.as_str(), "do_copy_in_default_stream" | "use_ep_level_unified_stream") {
            parse_bool_parameter(key, value)?;
        }
        if !key.is_empty() && !value.is_empty() {
            options.insert(key.clone(), value.clone());
        }
    }
    Ok(options)
}

/// The options from a model's parameters, which is an older way to specify them.
pub(super) fn parameter_options(
    values: &BTreeMap<String, String>,
) -> Result<ProviderOptions, Status> {
    let mut options = ProviderOptions::new();
    let searches = ["EXHAUSTIVE", "HEURISTIC", "DEFAULT"];
    let strategies = ["kNextPowerOfTwo", "kSameAsRequested"];
    for (key, names) in
        [("cudnn_conv_algo_search", &searches[..]), ("arena_extend_strategy", &strategies[..])]
    {
        let Some(number) = integer_parameter(values, key)? else { continue };
        let name = usize::try_from(number).ok().and_then(|number| names.get(number));
        let name = name.ok_or_else(|| {
            Status::invalid_argument(format!("unsupported {key} value '{number}' is requested"))
        })?;
        options.insert(key.to_owned(), (*name).to_owned());
    }
    for key in ["gpu_mem_limit", "do_copy_in_default_stream"] {
        if let Some(value) = values.get(key) {
            options.insert(key.to_owned(), value.clone());
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Options<'a> = &'a [(&'a str, &'a str)];

    fn owned(options: Options<'_>) -> ProviderOptions {
        options.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn check(values: Options<'_>, expected: Result<Options<'_>, &str>) {
        let options = parameter_options(&owned(values));
        let options = options.map_err(|status| status.message().to_owned());
        assert_eq!(options, expected.map(owned).map_err(ToOwned::to_owned));
    }

    #[test]
    fn a_models_parameters_become_options() {
        check(&[("cudnn_conv_algo_search", "1")], Ok(&[("cudnn_conv_algo_search", "HEURISTIC")]));
        check(
            &[("cudnn_conv_algo_search", "3")],
            Err("unsupported cudnn_conv_algo_search value '3' is requested"),
        );
        check(
            &[("arena_extend_strategy", "1"), ("other", "x")],
            Ok(&[("arena_extend_strategy", "kSameAsRequested")]),
        );
        check(
            &[("arena_extend_strategy", "2")],
            Err("unsupported arena_extend_strategy value '2' is requested"),
        );
        check(
            &[("arena_extend_strategy", "x")],
            Err("failed to convert 'x' to integral number: parameter 'arena_extend_strategy'"),
        );
        let given = &[("do_copy_in_default_stream", "on"), ("gpu_mem_limit", "-1")];
        check(given, Ok(given));
    }

    #[test]
    fn an_accelerators_parameters_are_left_to_the_library() {
        let options = |parameters| {
            let accelerator =
                Accelerator { name: String::from("cuda"), parameters: owned(parameters) };
            accelerator_options(&accelerator).map_err(|status| status.message().to_owned())
        };
        let given = &[("use_ep_level_unified_stream", "TRUE"), ("use_tf32", "0"), ("x", "y")];
        assert_eq!(options(given), Ok(owned(given)));
        assert_eq!(options(&[("use_tf32", "")]), Ok(owned(&[])));
        let expected =
            "failed to convert '' to boolean: parameter 'do_copy_in_default_stream'".to_owned();
        assert_eq!(options(&[("do_copy_in_default_stream", "")]), Err(expected));
    }
}
