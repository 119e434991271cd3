//! Objectives, which determine how sums become predictions.

use super::number;
use crate::{Postprocessor, ReadError};

/// The transformation for an objective, whose name may be followed by parameters.
pub(super) fn postprocessor(objective: &str) -> Result<Postprocessor, ReadError> {
    let mut words = objective.split(' ').filter(|word| !word.is_empty());
    let name = words.next().unwrap_or_default();
    let parameters: Vec<&str> = words.collect();
    Ok(match name {
        "multiclass" => Postprocessor::Softmax,
        "binary" | "multiclassova" => Postprocessor::Sigmoid { alpha: sigmoid(&parameters, name)? },
        "cross_entropy" => Postprocessor::Sigmoid { alpha: 1.0 },
        "cross_entropy_lambda" => Postprocessor::LogarithmOnePlusExp,
        "poisson" | "gamma" | "tweedie" => Postprocessor::Exponential,
        "regression" | "regression_l1" | "regression_l2" | "huber" | "fair" | "quantile"
        | "mape" => {
            if parameters.contains(&"sqrt") {
                Postprocessor::SignedSquare
            } else {
                Postprocessor::Identity
            }
        }
        "lambdarank" | "rank_xendcg" | "custom" => Postprocessor::Identity,
        name => return Err(ReadError::unsupported(format!("Unrecognized objective: {name}"))),
    })
}

fn sigmoid(parameters: &[&str], name: &str) -> Result<f32, ReadError> {
    let value = parameters.iter().find_map(|parameter| parameter.strip_prefix("sigmoid:"));
    match value.map(|value| number::<f32>(value, "sigmoid")).transpose()? {
        Some(alpha) if alpha > 0.0 => Ok(alpha),
        _ => Err(ReadError::malformed(format!(
            "the objective {name} of the LightGBM model has no positive sigmoid"
        ))),
    }
}
