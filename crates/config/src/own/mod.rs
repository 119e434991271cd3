//! The parameters of a configuration that Triton lacks. Triton passes all parameters on to the
//! backend, and so loads a model that has these too.
//!
//! A parameter is a file here, which reads and checks it, a row of [`OWN_PARAMETERS`] and a field of
//! [`OwnSettings`]. `galatea check` and `galatea tune` read the table. Each parameter changes how
//! requests are batched, and none is accepted without a batcher.

mod objective;
mod padding;

use galatea_config_message::Diagnostics;
use galatea_protocol::inference::ModelConfig;

pub use self::padding::{CutOutput, PaddedInput, Padding, PaddingMask};

/// A parameter that Triton lacks, or several.
#[derive(Copy, Clone, Debug)]
pub struct OwnParameter {
    /// The name, which is also the beginning of the names of parameters that complete it.
    pub name: &'static str,
    /// The effect here and in Triton, for an operator.
    pub effect: &'static str,
}

/// Every parameter that Triton lacks.
pub const OWN_PARAMETERS: [OwnParameter; 2] = [
    OwnParameter {
        name: objective::PARAMETER,
        effect: "latency_objective_us forms batches by deadlines, and refuses what can't be \
                 answered in time; Triton ignores it",
    },
    OwnParameter {
        name: padding::INPUTS,
        effect: "batch_padding lets requests of unequal lengths share a batch; Triton ignores it",
    },
];

impl OwnParameter {
    /// Returns true if this is a parameter's name, or that of a parameter that completes it.
    #[must_use]
    pub fn includes(&self, parameter: &str) -> bool {
        let rest = parameter.strip_prefix(self.name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    }
}

/// The settings of these parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnSettings {
    /// The time that answers may take, from the arrival of their requests. With the dynamic
    /// batcher it turns deadline batching on; 0 does that without an objective, for requests
    /// that have deadlines of their own.
    pub latency_objective_microseconds: Option<u64>,
    /// The way in which requests of unequal lengths share a batch; none if they don't. Only with
    /// the dynamic batcher.
    pub padding: Option<Padding>,
}

impl OwnSettings {
    /// The settings of a checked configuration; `None` if it has errors, which the check reports.
    pub(crate) fn of(config: &ModelConfig) -> Option<Self> {
        let mut diagnostics = Diagnostics::default();
        let padding = padding::parse(config, &mut diagnostics);
        let latency_objective_microseconds = objective::microseconds(config);
        diagnostics.is_empty().then_some(Self { latency_objective_microseconds, padding })
    }
}

/// Appends a diagnostic for every error in these parameters.
pub(crate) fn check(config: &ModelConfig, diagnostics: &mut Diagnostics) {
    objective::check(config, diagnostics);
    padding::parse(config, diagnostics);
}
