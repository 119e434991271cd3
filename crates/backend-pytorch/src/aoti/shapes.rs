//! The comparison of a batch with the shapes that a model was compiled for.

use galatea_infer::{PendingRequest, Status};
use galatea_runtime::SessionInterface;

use crate::package::{CompiledInput, mismatch};

/// The inputs of a compiled model and their names.
pub(crate) struct CompiledShapes {
    model: String,
    /// The names of the inputs in the configuration, in the model's order.
    names: Vec<String>,
    compiled: Vec<CompiledInput>,
}

impl CompiledShapes {
    pub(super) fn new(
        model: String,
        interface: &SessionInterface,
        compiled: Vec<CompiledInput>,
    ) -> Self {
        let names = interface.inputs.iter().map(|input| input.name.clone()).collect();
        Self { model, names, compiled }
    }

    /// The model's name.
    pub(super) fn model(&self) -> &str {
        &self.model
    }

    /// Refuses inputs that the model wasn't compiled for. `shapes` are those of all inputs in the
    /// model's order.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` with the input and both shapes.
    pub(super) fn check(&self, shapes: &[&[i64]]) -> Result<(), Status> {
        let Some((index, reason)) = mismatch(&self.compiled, shapes.iter().copied()) else {
            return Ok(());
        };
        let name = self.names.get(index).map_or("", String::as_str);
        let shape = shapes.get(index).copied().unwrap_or_default();
        Err(Status::invalid_argument(format!(
            "input '{name}' of model '{}' has shape {shape:?}: {reason}",
            self.model
        )))
    }

    /// Refuses requests that the model wasn't compiled for if it executes them together.
    ///
    /// # Errors
    ///
    /// Same as for [`Self::check`].
    pub(super) fn check_batch(&self, requests: &[PendingRequest]) -> Result<(), Status> {
        let shapes: Vec<Vec<i64>> =
            self.names.iter().map(|name| joint_shape(name, requests)).collect();
        let shapes: Vec<&[i64]> = shapes.iter().map(Vec::as_slice).collect();
        self.check(&shapes)
    }
}

/// The shape of an input whose rows are those of all requests. Requests of a batch have equal
/// shapes otherwise.
fn joint_shape(name: &str, requests: &[PendingRequest]) -> Vec<i64> {
    let inputs = requests.iter().flat_map(|pending| &pending.request().inputs);
    let shapes = inputs.filter(|input| input.name == name).map(|input| input.shape.dims());
    let mut joint: Option<Vec<i64>> = None;
    for dims in shapes {
        match &mut joint {
            None => joint = Some(dims.to_vec()),
            Some(joint) => {
                if let (Some(rows), Some(more)) = (joint.first_mut(), dims.first()) {
                    *rows = rows.saturating_add(*more);
                }
            }
        }
    }
    joint.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use galatea_infer::{InferenceRequest, InputTensor};
    use galatea_tensor::{Buffer, DataType, Shape};

    use super::*;

    fn request(inputs: &[(&str, &[i64])]) -> PendingRequest {
        let input = |&(name, dims): &(&str, &[i64])| InputTensor {
            name: name.into(),
            datatype: DataType::Fp32,
            shape: Shape::new(dims).unwrap(),
            data: Buffer::empty(),
        };
        let inputs = inputs.iter().map(input).collect();
        PendingRequest::new_padding(InferenceRequest { inputs, ..InferenceRequest::default() })
    }

    #[test]
    fn the_rows_of_a_batch_are_added() {
        let first = request(&[("b", &[7]), ("a", &[2, 3])]);
        let batch = [first, request(&[("a", &[4, 3])])];
        assert_eq!(joint_shape("a", &batch), [6, 3]);
        assert_eq!(joint_shape("b", &batch), [7]);
        assert_eq!(joint_shape("c", &batch), [0_i64; 0]);
    }
}
