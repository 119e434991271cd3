//! A forest's description beside its trees: task, outputs, transformation of sums.

use crate::{Postprocessor, ReadError};

/// The most outputs of one row, over all targets.
const OUTPUTS_MAX: usize = 1 << 15;
/// The most features. The two highest bits of a node's feature are flags.
const FEATURES_MAX: u32 = 1 << 30;

/// The purpose of a model, by the names of treelite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForestTask {
    /// One score for each row, the probability of the second of two classes.
    BinaryClassifier,
    /// One number for each row and target.
    Regressor,
    /// One score for each class.
    MultiClassifier,
    /// One number for each row, by which rows are ordered.
    LearningToRank,
    /// One number for each row, the higher the more unusual the row.
    IsolationForest,
}

/// Precision of thresholds' source, leaves and sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// 32 bits: XGBoost.
    Single,
    /// 64 bits: LightGBM and scikit-learn.
    Double,
}

/// A forest's description beside its trees.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Shape {
    pub(crate) task: ForestTask,
    pub(crate) precision: Precision,
    pub(crate) features: u32,
    /// The number of classes of each target; 1 where there are none.
    pub(crate) classes: Vec<u32>,
    /// Sums are divided by the number of trees that contribute to them.
    pub(crate) is_average: bool,
    pub(crate) postprocessor: Postprocessor,
    /// A number for each output, added to its sum; one number is for all.
    pub(crate) base_scores: Vec<f64>,
}

impl Shape {
    /// The greatest number of classes, which is the number of columns of each target.
    pub(crate) fn columns(&self) -> usize {
        self.classes.iter().copied().max().unwrap_or(0) as usize
    }

    pub(crate) fn outputs(&self) -> usize {
        self.columns().saturating_mul(self.classes.len())
    }

    /// Checks the numbers against each other, and gives each output its base score.
    pub(crate) fn checked(mut self) -> Result<Self, ReadError> {
        if self.features > FEATURES_MAX {
            let text = format!("{} features are more than {FEATURES_MAX}", self.features);
            return Err(ReadError::unsupported(text));
        }
        if self.classes.contains(&0) || self.classes.is_empty() {
            return Err(ReadError::malformed("a target has no class"));
        }
        let outputs = self.outputs();
        if outputs > OUTPUTS_MAX {
            return Err(ReadError::unsupported(format!(
                "{outputs} outputs for each row are more than {OUTPUTS_MAX}"
            )));
        }
        match *self.base_scores {
            [one] => self.base_scores = vec![one; outputs],
            ref scores if scores.len() == outputs => {}
            ref scores => {
                let count = scores.len();
                return Err(ReadError::malformed(format!(
                    "the model has {count} base scores for {outputs} outputs"
                )));
            }
        }
        Ok(self)
    }
}
