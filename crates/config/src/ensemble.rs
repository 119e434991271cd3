//! Ensemble configuration: the composing models and the tensors that connect them.

use std::collections::BTreeMap;

use galatea_protocol::inference::ModelEnsembling;
use galatea_protocol::inference::model_ensembling::Step;

/// The steps of an ensemble, connected by named tensors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnsembleScheduling {
    /// The steps. Their order is irrelevant.
    pub steps: Vec<EnsembleStep>,
    /// The maximum number of requests in flight at each step, across all requests to the ensemble;
    /// 0 for no limit.
    pub max_inflight_requests: u32,
}

/// One step of an ensemble.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnsembleStep {
    /// The composing model.
    pub model_name: String,
    /// The model's version; `None` selects the newest version that is serving.
    pub model_version: Option<i64>,
    /// The ensemble tensor for each input of the model.
    pub input_map: BTreeMap<String, String>,
    /// The ensemble tensor for each output of the model.
    pub output_map: BTreeMap<String, String>,
}

impl EnsembleScheduling {
    /// An ensemble input that a step also produces, with the number of the step.
    #[must_use]
    pub fn input_produced_by_step(&self, is_input: impl Fn(&str) -> bool) -> Option<(&str, usize)> {
        self.steps.iter().enumerate().find_map(|(index, step)| {
            let tensor = step.output_map.values().find(|tensor| is_input(tensor))?;
            Some((tensor.as_str(), index))
        })
    }
}

/// The number that selects the newest version.
const NEWEST: i64 = -1;

impl From<&ModelEnsembling> for EnsembleScheduling {
    fn from(message: &ModelEnsembling) -> Self {
        Self {
            steps: message.step.iter().map(EnsembleStep::from).collect(),
            max_inflight_requests: message.max_inflight_requests,
        }
    }
}

impl From<&Step> for EnsembleStep {
    fn from(message: &Step) -> Self {
        Self {
            model_name: message.model_name.clone(),
            model_version: (message.model_version != NEWEST).then_some(message.model_version),
            input_map: message.input_map.clone(),
            output_map: message.output_map.clone(),
        }
    }
}
