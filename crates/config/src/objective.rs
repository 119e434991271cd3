//! The latency objective of a model: a parameter, which Triton passes on to the backend and
//! ignores itself.

use galatea_protocol::inference::ModelConfig;

/// The parameter's name.
pub(crate) const PARAMETER: &str = "latency_objective_us";

/// The parameter's place in a diagnostic.
pub(crate) const PATH: &str = "parameters[\"latency_objective_us\"]";

/// The text of the parameter; `None` without it.
pub(crate) fn text(config: &ModelConfig) -> Option<&str> {
    config.parameters.get(PARAMETER).map(|value| value.string_value.as_str())
}

/// The objective of a checked configuration.
pub(crate) fn microseconds(config: &ModelConfig) -> Option<u64> {
    text(config).and_then(parse)
}

/// The number of microseconds; `None` for anything but decimal digits.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}
