//! Configuration parameters that Triton lacks. Triton passes all parameters to the backend, so it
//! also loads models that have these.
//!
//! Each parameter is a row in [`OWN_PARAMETERS`], whose function reads and checks it, and a field in
//! [`NonTritonSettings`]. The function of a parameter that excludes or describes other settings has
//! a file in this directory. `galatea check` and `galatea tune` read the table. Every parameter
//! changes how requests are scheduled.

mod coalesce;
mod objective;
mod padding;

use galatea_config_message::Diagnostics;
use galatea_protocol::inference::ModelConfig;

pub use self::padding::{BatchPaddingSettings, PaddedInput, PaddingMaskInput, UnpaddedOutput};

/// A parameter, or a group of parameters, that Triton lacks.
#[derive(Copy, Clone, Debug)]
pub struct NonTritonParameter {
    /// The name, which is also the prefix of related parameters.
    pub name: &'static str,
    /// The effect here and in Triton, described for operators.
    pub effect: &'static str,
    /// True if the parameter is refused without `dynamic_batching`.
    pub needs_batcher: bool,
    read: ParameterReader,
}

/// A function that reads a parameter into the settings and appends a diagnostic for every error.
type ParameterReader = fn(&ModelConfig, &mut NonTritonSettings, &mut Diagnostics);

/// Every parameter that Triton lacks.
pub const OWN_PARAMETERS: [NonTritonParameter; 3] = [
    NonTritonParameter {
        name: objective::PARAMETER,
        effect: "latency_objective_us forms batches by deadlines, and refuses what can't be \
                 answered in time; Triton ignores it",
        needs_batcher: true,
        read: objective::read,
    },
    NonTritonParameter {
        name: padding::INPUTS,
        effect: "batch_padding lets requests of unequal lengths share a batch; Triton ignores it",
        needs_batcher: true,
        read: |config, settings, diagnostics| {
            settings.padding = padding::parse(config, diagnostics);
        },
    },
    NonTritonParameter {
        name: coalesce::PARAMETER,
        effect: "coalesce executes equal requests that are in flight once; Triton ignores it",
        needs_batcher: false,
        read: coalesce::read,
    },
];

impl NonTritonParameter {
    /// Returns true if this is the name of the parameter or of a related parameter.
    #[must_use]
    pub fn matches_name(&self, parameter: &str) -> bool {
        let rest = parameter.strip_prefix(self.name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    }
}

/// The settings from these parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NonTritonSettings {
    /// The maximum time from the arrival of a request to its response. With the dynamic batcher,
    /// this setting turns on deadline batching; 0 does so without an objective, for requests that
    /// have their own deadlines.
    pub latency_objective_microseconds: Option<u64>,
    /// The padding that lets requests of unequal lengths share a batch; `None` if they don't.
    /// Requires the dynamic batcher.
    pub padding: Option<BatchPaddingSettings>,
    /// True if equal requests that are in flight at the same time share one execution.
    pub coalesce: bool,
}

impl NonTritonSettings {
    /// Reads the settings of a configuration; `None` if they have errors, which the check reports.
    pub(crate) fn of(config: &ModelConfig) -> Option<Self> {
        let mut diagnostics = Diagnostics::default();
        let settings = read(config, &mut diagnostics);
        diagnostics.is_empty().then_some(settings)
    }
}

/// Appends a diagnostic for every error in these parameters.
pub(crate) fn check(config: &ModelConfig, diagnostics: &mut Diagnostics) {
    read(config, diagnostics);
}

fn read(config: &ModelConfig, diagnostics: &mut Diagnostics) -> NonTritonSettings {
    let mut settings = NonTritonSettings::default();
    for parameter in OWN_PARAMETERS {
        (parameter.read)(config, &mut settings, diagnostics);
    }
    settings
}

/// The value of a parameter; `None` if it is not set.
fn text<'config>(config: &'config ModelConfig, parameter: &str) -> Option<&'config str> {
    config.parameters.get(parameter).map(|value| value.string_value.as_str())
}

/// Parses a number; `None` for anything but decimal digits.
fn whole_number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}
