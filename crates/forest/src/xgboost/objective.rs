//! Objectives, which determine how sums become predictions and base scores become sums.

use crate::{Postprocessor, ReadError};

/// The parts of an objective that predictions depend on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Objective {
    pub(super) postprocessor: Postprocessor,
    link: Link,
}

/// The function that converts predictions to sums.
#[derive(Debug, Clone, Copy)]
enum Link {
    Identity,
    Logit,
    Logarithm,
}

impl Objective {
    pub(super) fn from_name(name: &str) -> Result<Self, ReadError> {
        let (postprocessor, link) = match name {
            "reg:squarederror"
            | "reg:linear"
            | "reg:squaredlogerror"
            | "reg:pseudohubererror"
            | "reg:absoluteerror"
            | "reg:quantileerror"
            | "reg:expectileerror"
            | "binary:logitraw"
            | "rank:pairwise"
            | "rank:ndcg"
            | "rank:map" => (Postprocessor::Identity, Link::Identity),
            "reg:logistic" | "binary:logistic" => {
                (Postprocessor::Sigmoid { alpha: 1.0 }, Link::Logit)
            }
            "binary:hinge" => (Postprocessor::Hinge, Link::Identity),
            "count:poisson" | "reg:gamma" | "reg:tweedie" | "survival:cox" | "survival:aft" => {
                (Postprocessor::Exponential, Link::Logarithm)
            }
            "multi:softmax" | "multi:softprob" => (Postprocessor::Softmax, Link::Identity),
            name => {
                return Err(ReadError::unsupported(format!(
                    "Unrecognized XGBoost objective: {name}"
                )));
            }
        };
        Ok(Self { postprocessor, link })
    }

    /// The sum that corresponds to a base score, in XGBoost's precision.
    #[expect(clippy::cast_possible_truncation, reason = "XGBoost keeps 32 bits")]
    pub(super) fn margin(self, score: f64) -> f64 {
        let score = score as f32;
        f64::from(match self.link {
            Link::Identity => score,
            Link::Logit => -(1.0 / score - 1.0).ln(),
            Link::Logarithm => score.ln(),
        })
    }
}
