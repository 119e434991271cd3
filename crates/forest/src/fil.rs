//! Triton's backend `fil` as pure functions: its parameters, and how predictions become outputs on a
//! CPU.

mod parameters;
#[cfg(test)]
mod tests;

use crate::{Explainer, Forest, ForestTask, LengthError, Postprocessor};

pub use parameters::{FilParameters, FilWarning};

/// An error with the code that Triton gives it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilError {
    /// Triton's INTERNAL.
    #[error("{0}")]
    Internal(String),
    /// Triton's INVALID_ARG.
    #[error("{0}")]
    InvalidArgument(String),
    /// Triton's UNSUPPORTED.
    #[error("{0}")]
    Unsupported(String),
}

/// The values of a row in `output__0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RowOutput {
    /// The index of the class with the highest prediction.
    BestClass,
    /// 1 if the prediction is above the threshold, otherwise 0.
    IsAbove,
    /// Predictions as they are.
    Predictions,
    /// The probabilities of both classes, of which the model predicts the second.
    BothClasses,
}

/// A forest with the parameters of its configuration.
#[derive(Debug)]
pub struct FilModel {
    forest: Forest,
    threshold: f32,
    threads: usize,
    output: RowOutput,
}

impl FilModel {
    /// Joins a forest with parameters and the number of values that `output__0` has for each row by
    /// the configuration's `dims`.
    pub fn new(
        mut forest: Forest,
        parameters: &FilParameters,
        width: usize,
    ) -> Result<Self, FilError> {
        if forest.targets() != 1 {
            return Err(FilError::Internal("Multi-target model not supported".to_owned()));
        }
        let is_multi_class = forest.task() == ForestTask::MultiClassifier;
        if parameters.predict_proba && is_multi_class {
            // Triton replaces what the file says.
            forest.set_postprocessor(match forest.has_leaf_vectors() {
                true => Postprocessor::Identity,
                false => Postprocessor::Softmax,
            });
        }
        let columns = forest.columns();
        let output = match (parameters.is_classifier, parameters.predict_proba) {
            (true, false) if columns > 1 => RowOutput::BestClass,
            (true, false) => RowOutput::IsAbove,
            (true, true) if columns == 1 && width == 2 => RowOutput::BothClasses,
            _ => RowOutput::Predictions,
        };
        let model =
            Self { forest, threshold: parameters.threshold, threads: parameters.threads, output };
        if model.width() == width {
            return Ok(model);
        }
        // Triton writes beyond the output or leaves memory in it.
        Err(FilError::InvalidArgument(format!(
            "output__0 has {width} values for each row, but the model gives {}",
            model.width()
        )))
    }

    /// The forest.
    #[must_use]
    pub fn forest(&self) -> &Forest {
        &self.forest
    }

    /// The number of values that `output__0` has for each row.
    #[must_use]
    pub fn width(&self) -> usize {
        match self.output {
            RowOutput::BestClass | RowOutput::IsAbove => 1,
            RowOutput::Predictions => self.forest.columns(),
            RowOutput::BothClasses => 2,
        }
    }

    /// Fills `output__0` for `count` rows of `input__0`.
    pub fn predict(
        &self,
        rows: &[f32],
        count: usize,
        output: &mut [f32],
    ) -> Result<(), LengthError> {
        LengthError::check("output__0", output.len(), count, self.width())?;
        let predict = |output: &mut [f32]| self.forest.predict(rows, count, output, self.threads);
        match self.output {
            RowOutput::Predictions => predict(output),
            RowOutput::IsAbove => {
                predict(output)?;
                let class = |value: f32| if value > self.threshold { 1.0 } else { 0.0 };
                output.iter_mut().for_each(|value| *value = class(*value));
                Ok(())
            }
            RowOutput::BestClass => {
                let columns = self.forest.columns();
                let mut predictions = vec![0.0; count.saturating_mul(columns)];
                predict(&mut predictions)?;
                for (output, values) in output.iter_mut().zip(predictions.chunks(columns)) {
                    *output = best_class(values);
                }
                Ok(())
            }
            RowOutput::BothClasses => {
                let mut predictions = vec![0.0; count];
                predict(&mut predictions)?;
                for (pair, value) in output.chunks_mut(2).zip(predictions) {
                    #[expect(clippy::cast_possible_truncation, reason = "as in Triton")]
                    let first = (1.0 - f64::from(value)) as f32;
                    pair.copy_from_slice(&[first, value]);
                }
                Ok(())
            }
        }
    }

    /// Checks that the output `treeshap_output` is possible, with as many values for each row as the
    /// configuration's `dims` say.
    pub fn explainer(&self, width: usize) -> Result<Explainer<'_>, FilError> {
        let explainer = Explainer::new(&self.forest);
        let explainer = explainer.map_err(|error| FilError::Unsupported(error.to_string()))?;
        if explainer.outputs() == width {
            return Ok(explainer);
        }
        Err(FilError::InvalidArgument(format!(
            "treeshap_output has {width} values for each row, but the model gives {}",
            explainer.outputs()
        )))
    }
}

/// The first class whose prediction is the highest. None that is positive is the first class.
#[expect(clippy::cast_precision_loss, reason = "classes are few")]
fn best_class(predictions: &[f32]) -> f32 {
    let mut best = (0, 0.0);
    for (class, value) in predictions.iter().enumerate() {
        if *value > best.1 {
            best = (class, *value);
        }
    }
    best.0 as f32
}

/// The shape of an output for a batch: the number of rows, then the configuration's `dims` without
/// those that are 1. Dimensions that begin with -1 have the rows in its place.
pub fn output_shape(dims: &[i64], rows: i64) -> Result<Vec<i64>, FilError> {
    let rest = dims.strip_prefix(&[-1]).unwrap_or(dims);
    if rest.iter().any(|dim| *dim < 0) {
        return Err(FilError::Internal(
            "Backends with variable-shape outputs must request desired output shape".to_owned(),
        ));
    }
    let kept = rest.iter().copied().filter(|dim| *dim != 1);
    Ok(std::iter::once(rows).chain(kept).collect())
}
