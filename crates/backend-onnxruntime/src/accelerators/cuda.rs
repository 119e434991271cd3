//! Options of the CUDA provider.

use std::collections::BTreeMap;

use galatea_config::Accelerator;
use galatea_infer::Status;

use crate::api::ProviderOptions;
use crate::parameters::{integer, invalid_value, parse_switch, switch};

/// The options of an accelerator's parameters; the library checks most of them.
pub(super) fn accelerator_options(accelerator: &Accelerator) -> Result<ProviderOptions, Status> {
    let mut options = ProviderOptions::new();
    for (key, value) in &accelerator.parameters {
        let value = match key.as_str() {
            "do_copy_in_default_stream" | "use_ep_level_unified_stream" => {
                parse_switch(key, value)?.digit().to_owned()
            }
            _ => value.clone(),
        };
        options.push((key.clone(), value));
    }
    Ok(options)
}

/// The options of a model's parameters, an older way to give them.
pub(super) fn parameter_options(
    values: &BTreeMap<String, String>,
) -> Result<ProviderOptions, Status> {
    let mut options = ProviderOptions::new();
    let searches = ["EXHAUSTIVE", "HEURISTIC", "DEFAULT"];
    let strategies = ["kNextPowerOfTwo", "kSameAsRequested"];
    for (key, names) in
        [("cudnn_conv_algo_search", &searches[..]), ("arena_extend_strategy", &strategies[..])]
    {
        let Some(number) = integer(values, key)? else { continue };
        let name = usize::try_from(number).ok().and_then(|number| names.get(number));
        let name = name.ok_or_else(|| {
            Status::invalid_argument(format!("unsupported {key} value '{number}' is requested"))
        })?;
        options.push((key.to_owned(), (*name).to_owned()));
    }
    if let Some(limit) = values.get("gpu_mem_limit") {
        let limit: u64 = limit
            .trim()
            .parse()
            .map_err(|_| invalid_value("gpu_mem_limit", limit, "a number of bytes"))?;
        options.push((String::from("gpu_mem_limit"), limit.to_string()));
    }
    if let Some(value) = switch(values, "do_copy_in_default_stream")? {
        options.push((String::from("do_copy_in_default_stream"), value.digit().to_owned()));
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(key: &str, value: &str, expected: Result<&str, &str>) {
        let values = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let options = parameter_options(&values).map_err(|status| status.message().to_owned());
        let expected = expected
            .map(|value| vec![(key.to_owned(), value.to_owned())])
            .map_err(ToOwned::to_owned);
        assert_eq!(options, expected);
    }

    #[test]
    fn a_models_parameters_become_options() {
        check("cudnn_conv_algo_search", "1", Ok("HEURISTIC"));
        check(
            "cudnn_conv_algo_search",
            "3",
            Err("unsupported cudnn_conv_algo_search value '3' is requested"),
        );
        check("arena_extend_strategy", "1", Ok("kSameAsRequested"));
        check("gpu_mem_limit", "18446744073709551615", Ok("18446744073709551615"));
        check(
            "gpu_mem_limit",
            "-1",
            Err("'gpu_mem_limit' is '-1', which is not a number of bytes"),
        );
        check("do_copy_in_default_stream", "false", Ok("0"));
    }
}
