//! What the configuration of an ensemble says: models, and how their tensors
//! are joined.

use std::collections::BTreeMap;

use galatea_protocol::inference::ModelEnsembling;
use galatea_protocol::inference::model_ensembling::Step;

/// The models that an ensemble consists of, joined by named tensors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnsembleScheduling {
    /// The steps. Their order means nothing.
    pub steps: Vec<EnsembleStep>,
    /// How many requests each step may have at a time, of all requests to the
    /// ensemble; 0 for any number.
    pub max_inflight_requests: u32,
}

/// One model of an ensemble.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnsembleStep {
    /// The composing model.
    pub model_name: String,
    /// Its version; `None` for the newest that serves.
    pub model_version: Option<i64>,
    /// Which tensor of the ensemble each input of the model gets.
    pub input_map: BTreeMap<String, String>,
    /// Which tensor of the ensemble each output of the model becomes.
    pub output_map: BTreeMap<String, String>,
}

/// What the format calls the newest version.
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
