//! Inputs and outputs for batches whose requests differ in shape.

use galatea_config::{BatchInputSpec, InputSpec};
use galatea_infer::Status;

use super::check::SignatureCheck;
use super::plans::{BatchInputPlan, InputLayout, ScatterPlan};
use crate::configured::{DisplayDims, batch_input_dims, full_dims};
use crate::interface::TensorInfo;

impl SignatureCheck<'_> {
    /// Checks a ragged input: the model must accept all of a batch's elements in one dimension.
    pub(super) fn ragged_input(
        &self,
        input: &InputSpec,
        tensor: &TensorInfo,
    ) -> Result<InputLayout, Status> {
        let expected = format!(
            "configuration expects model provides input with shape [-1] for ragged input '{}'",
            input.name
        );
        if input.optional {
            return self.refuse(&format!("{expected}, which is not supported for optional input"));
        }
        if tensor.dims != [-1] {
            return self
                .refuse(&format!("{expected}, model provides {}", DisplayDims(&tensor.dims)));
        }
        Ok(InputLayout::Flat)
    }

    pub(super) fn batch_input(&self, input: &BatchInputSpec) -> Result<BatchInputPlan, Status> {
        let BatchInputSpec { kind, target_names, datatype, source_input } = input;
        let expected = batch_input_dims(self.spec, input);
        let mut indices = Vec::with_capacity(target_names.len());
        for name in target_names {
            let (index, tensor) = self.find_added_input("batch input", name)?;
            self.datatype("batch input", name, *datatype, tensor)?;
            self.batch_input_dims(name, &expected, tensor)?;
            indices.push(index);
        }
        Ok(BatchInputPlan {
            kind: *kind,
            datatype: *datatype,
            source_input: source_input.clone(),
            name: target_names.first().cloned().unwrap_or_default(),
            indices,
        })
    }

    /// Checks a batch input's dimensions. A fixed size in the model may be valid for some batches,
    /// so the library checks each batch.
    fn batch_input_dims(
        &self,
        name: &str,
        expected: &[i64],
        tensor: &TensorInfo,
    ) -> Result<(), Status> {
        let fits = |(model, configured): (&i64, &i64)| {
            model == configured || *model == -1 || *configured == -1
        };
        if tensor.dims.len() == expected.len() && tensor.dims.iter().zip(expected).all(fits) {
            return Ok(());
        }
        self.refuse(&format!(
            "batch input '{name}' in model has dims {} but dims {} is expected",
            DisplayDims(&tensor.dims),
            DisplayDims(expected)
        ))
    }

    /// The input whose shapes split the output `name`, if there is one.
    pub(super) fn scatter(&self, name: &str, dims: &[i64]) -> Option<ScatterPlan> {
        let is_target = |names: &[String]| names.iter().any(|target| target == name);
        let mut batch_outputs = self.spec.batch_outputs.iter();
        let batch_output = batch_outputs.find(|one| is_target(&one.target_names))?;
        let source_input = batch_output.source_input.clone();
        Some(ScatterPlan { source_input, dims: full_dims(self.spec, dims) })
    }
}
