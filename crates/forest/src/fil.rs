//! The logic of Triton's `fil` backend as pure functions: its parameters, and the conversion of
//! predictions to outputs on a CPU.

mod parameters;
#[cfg(test)]
mod tests;

use crate::{Explainer, Forest, ForestTask, LengthError, Postprocessor};

pub use parameters::{FilParameters, FilWarning};

/// An error with Triton's error code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilError {
    /// Triton's `INTERNAL`.
    #[error("{0}")]
    Internal(String),
    /// Triton's `INVALID_ARG`.
    #[error("{0}")]
    InvalidArgument(String),
    /// Triton's `UNSUPPORTED`.
    #[error("{0}")]
    Unsupported(String),
}

/// The values of `output__0` for a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RowOutput {
    /// The index of the class with the highest prediction.
    BestClass,
    /// 1 if the prediction is above the threshold, otherwise 0.
    IsAbove,
    /// The unchanged predictions.
    Predictions,
    /// The probabilities of both classes. The model predicts only the second one.
    BothClasses,
}

/// A forest with the parameters from its configuration.
#[derive(Debug)]
pub struct FilModel {
    forest: Forest,
    threshold: f32,
    threads: usize,
    output: RowOutput,
}

impl FilModel {
    /// Combines a forest with its parameters. `width` is the number of values per row in
    /// `output__0`, according to the configuration's `dims`.
    pub fn new(
        mut forest: Forest,
        parameters: &FilParameters,
        width: usize,
    ) -> Result<Self, FilError> {
        if forest.target_count() != 1 {
            return Err(FilError::Internal("Multi-target model not supported".to_owned()));
        }
        let is_multi_class = forest.task() == ForestTask::MultiClassifier;
        if parameters.predict_proba && is_multi_class {
            // Triton ignores the file's transformation here.
            forest.set_postprocessor(match forest.has_leaf_vectors() {
                true => Postprocessor::Identity,
                false => Postprocessor::Softmax,
            });
        }
        let columns = forest.columns_per_target();
        let output = match (parameters.is_classifier, parameters.predict_proba) {
            (true, false) if columns > 1 => RowOutput::BestClass,
            (true, false) => RowOutput::IsAbove,
            (true, true) if columns == 1 && width == 2 => RowOutput::BothClasses,
            _ => RowOutput::Predictions,
        };
        let model =
            Self { forest, threshold: parameters.threshold, threads: parameters.threads, output };
        if model.output_width() == width {
            return Ok(model);
        }
        // Triton would write past the end of the output, or leave part of it uninitialized.
        Err(FilError::InvalidArgument(format!(
            "output__0 has {width} values for each row, but the model gives {}",
            model.output_width()
        )))
    }

    /// The forest.
    #[must_use]
    pub fn forest(&self) -> &Forest {
        &self.forest
    }

    /// The number of values per row in `output__0`.
    #[must_use]
    pub fn output_width(&self) -> usize {
        match self.output {
            RowOutput::BestClass | RowOutput::IsAbove => 1,
            RowOutput::Predictions => self.forest.columns_per_target(),
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
        LengthError::check("output__0", output.len(), count, self.output_width())?;
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
                let columns = self.forest.columns_per_target();
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

    /// Checks that the model supports the output `treeshap_output`, and that `width`, the number of
    /// values per row in the configuration's `dims`, is correct.
    pub fn explainer(&self, width: usize) -> Result<Explainer<'_>, FilError> {
        let explainer = Explainer::new(&self.forest);
        let explainer = explainer.map_err(|error| FilError::Unsupported(error.to_string()))?;
        if explainer.outputs_per_row() == width {
            return Ok(explainer);
        }
        Err(FilError::InvalidArgument(format!(
            "treeshap_output has {width} values for each row, but the model gives {}",
            explainer.outputs_per_row()
        )))
    }
}

/// The first class with the highest prediction, or class 0 if no prediction is positive.
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

/// The output shape for a batch: the number of rows, followed by the configuration's `dims` without
/// the dimensions of size 1. The number of rows replaces a leading -1.
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
