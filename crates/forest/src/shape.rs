//! The properties of a forest other than its trees: the task, the outputs and the transformation of
//! sums.

use crate::{Postprocessor, ReadError};

/// The maximum number of outputs per row, over all targets.
const OUTPUTS_MAX: usize = 1 << 15;
/// The maximum number of features. The two highest bits of a node's feature are flags.
const FEATURES_MAX: u32 = 1 << 30;

/// The purpose of a model, under treelite's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForestTask {
    /// One score per row, which is the probability of the second class.
    BinaryClassifier,
    /// One number per row and target.
    Regressor,
    /// One score per class.
    MultiClassifier,
    /// One number per row, for ranking rows.
    LearningToRank,
    /// One number per row, which is higher for more unusual rows.
    IsolationForest,
}

/// The precision of leaf values and sums, and of the thresholds in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// 32 bits, as in XGBoost.
    Single,
    /// 64 bits, as in LightGBM and scikit-learn.
    Double,
}

/// The properties of a forest other than its trees.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Shape {
    pub(crate) task: ForestTask,
    pub(crate) precision: Precision,
    pub(crate) features: u32,
    /// The number of classes for each target; 1 for a target without classes.
    pub(crate) classes: Vec<u32>,
    /// True if sums are divided by the number of trees that contribute to them.
    pub(crate) is_average: bool,
    pub(crate) postprocessor: Postprocessor,
    /// The base scores, which are added to the sums: one for each output, or one for all outputs.
    pub(crate) base_scores: Vec<f64>,
}

impl Shape {
    /// The maximum number of classes, which is the number of columns per target.
    pub(crate) fn columns(&self) -> usize {
        self.classes.iter().copied().max().unwrap_or(0) as usize
    }

    pub(crate) fn outputs(&self) -> usize {
        self.columns().saturating_mul(self.classes.len())
    }

    /// Checks that the numbers are consistent, and assigns a base score to each output.
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
