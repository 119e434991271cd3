//! A model's input and outputs according to its configuration.

use std::sync::Arc;

use galatea_config::ModelSpec;
use galatea_forest::fil::output_shape;
use galatea_infer::Status;
use galatea_tensor::{DataType, Shape};

use crate::refusal::refused;

/// The input, which contains rows of features.
pub(crate) const INPUT: &str = "input__0";
/// The output with the predictions.
const OUTPUT: &str = "output__0";
/// The optional output with the feature contributions.
const EXPLANATION: &str = "treeshap_output";

/// The input and outputs in the configuration.
#[derive(Debug)]
pub(crate) struct Signature {
    model: String,
    /// The number of values per row; `None` if the configuration leaves a dimension variable.
    row_size: Option<u64>,
    pub(crate) output: OutputPlan,
    pub(crate) explanation: Option<OutputPlan>,
}

/// An output with a fixed number of values per row.
#[derive(Debug)]
pub(crate) struct OutputPlan {
    pub(crate) name: Arc<str>,
    dims: Vec<i64>,
    /// The number of values per row.
    pub(crate) width: usize,
}

impl Signature {
    /// Reads the configuration.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the configuration has inputs or outputs that the backend doesn't
    /// support, or types other than FP32.
    pub(crate) fn new(spec: &ModelSpec) -> Result<Self, Status> {
        let refuse = |reason: String| {
            Status::invalid_argument(format!("unable to load model '{}', {reason}", spec.name))
        };
        let fp32 = |name: &str, datatype: DataType| {
            if datatype == DataType::Fp32 {
                return Ok(());
            }
            let found = datatype.config_name();
            Err(refuse(format!("'{name}' must have the datatype TYPE_FP32, not {found}")))
        };
        let [input] = &spec.inputs[..] else {
            return Err(refuse(format!("the backend 'fil' takes one input, '{INPUT}'")));
        };
        if input.name != INPUT {
            let found = &input.name;
            return Err(refuse(format!(
                "the backend 'fil' takes the input '{INPUT}', not '{found}'"
            )));
        }
        fp32(INPUT, input.datatype)?;
        let (mut output, mut explanation) = (None, None);
        for configured in &spec.outputs {
            let name = configured.name.as_str();
            let place = match name {
                OUTPUT => &mut output,
                EXPLANATION => &mut explanation,
                _ => {
                    return Err(refuse(format!(
                        "the backend 'fil' gives the outputs '{OUTPUT}' and '{EXPLANATION}', not \
                         '{name}'"
                    )));
                }
            };
            fp32(name, configured.datatype)?;
            let dims = configured.reshape.as_ref().unwrap_or(&configured.dims);
            *place = Some(OutputPlan::new(name, dims)?);
        }
        let output = output.ok_or_else(|| refuse(format!("the output '{OUTPUT}' is missing")))?;
        let dims = input.reshape.as_ref().unwrap_or(&input.dims);
        let row = if spec.max_batch_size > 0 { Some(&dims[..]) } else { dims.get(1..) };
        let row_size = row.unwrap_or_default().iter().try_fold(1_u64, |size, &dim| {
            u64::try_from(dim).ok().and_then(|dim| size.checked_mul(dim))
        });
        Ok(Self { model: spec.name.clone(), row_size, output, explanation })
    }

    /// Compares the row size with the model's number of features.
    pub(crate) fn check_features(&self, features: usize) -> Result<(), Status> {
        match self.row_size {
            Some(size) if usize::try_from(size) != Ok(features) => {
                Err(Status::invalid_argument(format!(
                    "unable to load model '{}', '{INPUT}' has {size} values for each row, but the \
                     model takes {features}",
                    self.model
                )))
            }
            // A variable size is checked for each request.
            Some(_) | None => Ok(()),
        }
    }

    /// The configured outputs.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = &OutputPlan> {
        std::iter::once(&self.output).chain(&self.explanation)
    }
}

impl OutputPlan {
    fn new(name: &str, dims: &[i64]) -> Result<Self, Status> {
        let shape = output_shape(dims, 1).map_err(refused)?;
        let values = shape.iter().skip(1).map(|&dim| usize::try_from(dim).unwrap_or(0));
        let width = values.fold(1_usize, usize::saturating_mul);
        Ok(Self { name: Arc::from(name), dims: dims.to_vec(), width })
    }

    /// The shape for this many rows.
    pub(crate) fn shape(&self, rows: usize) -> Result<Shape, Status> {
        let rows = i64::try_from(rows).unwrap_or(i64::MAX);
        let dims = output_shape(&self.dims, rows).map_err(refused)?;
        Shape::new(&dims).map_err(|error| Status::internal(error.to_string()))
    }
}
