//! Compares a configuration with its model by the rules of Triton's backend, with the same error
//! texts.
//!
//! The rules are more lenient than those of the crate `runtime`: a configuration may specify a
//! fixed size for an output whose size is variable in the model. The interface that `runtime` sees
//! therefore has the configuration's dimensions.

use galatea_config::{InstanceKind, ModelSpec};
use galatea_infer::Status;
use galatea_runtime::configured::{
    DisplayDims, added_input_count, full_dims, input_dims, is_batch_output, output_dims,
};
use galatea_runtime::{ElementKind, SessionInterface, TensorInfo};
use galatea_tensor::DataType;

use crate::api::VARIABLE_RANK;

/// A configuration and the model that it is compared with.
pub(crate) struct Comparison<'a>(pub(crate) &'a ModelSpec);

/// The rule for sizes that a configuration leaves variable.
#[derive(Copy, Clone, PartialEq, Eq)]
enum SizeRule {
    /// A variable size matches any size, because an input's size is checked again in each request.
    Inputs,
    /// A variable size matches only another variable size.
    Outputs,
}

impl Comparison<'_> {
    /// Refuses instances that are not on the CPU.
    pub(crate) fn instances(&self) -> Result<(), Status> {
        if self.0.instance_groups.iter().all(|group| group.kind == InstanceKind::Cpu) {
            return Ok(());
        }
        Err(Status::invalid_argument(format!(
            "unable to load model '{}', Triton OpenVINO backend supports only Kind CPU and AUTO",
            self.0.name
        )))
    }

    /// Compares the inputs with the model's, and replaces the dimensions of the model's inputs.
    pub(crate) fn inputs(&self, interface: &mut SessionInterface) -> Result<(), Status> {
        self.input_count(interface.inputs.len())?;
        for input in &self.0.inputs {
            self.datatype(input.datatype, "input", &input.name)?;
            if input.allow_ragged_batch {
                continue;
            }
            // A name that the model lacks is refused later, with the same text.
            let mut tensors = interface.inputs.iter_mut();
            if let Some(tensor) = tensors.find(|tensor| tensor.name == input.name) {
                self.dims(tensor, input_dims(input), SizeRule::Inputs)?;
            }
        }
        Ok(())
    }

    /// Does the same for outputs.
    pub(crate) fn outputs(&self, interface: &mut SessionInterface) -> Result<(), Status> {
        for output in &self.0.outputs {
            self.datatype(output.datatype, "output", &output.name)?;
            if is_batch_output(self.0, &output.name) {
                continue;
            }
            let mut tensors = interface.outputs.iter_mut();
            if let Some(tensor) = tensors.find(|tensor| tensor.name == output.name) {
                self.dims(tensor, output_dims(output), SizeRule::Outputs)?;
            }
        }
        Ok(())
    }

    /// Also counts the inputs that the server adds, which Triton's backend doesn't have.
    fn input_count(&self, provided: usize) -> Result<(), Status> {
        let expected = self.0.inputs.len() + added_input_count(self.0);
        if expected == provided {
            return Ok(());
        }
        Err(Status::invalid_argument(format!(
            "unable to load model '{}', configuration expects {expected} inputs, model provides \
             {provided}",
            self.0.name
        )))
    }

    fn datatype(&self, datatype: DataType, side: &str, name: &str) -> Result<(), Status> {
        if datatype != DataType::Bytes {
            return Ok(());
        }
        Err(Status::internal(format!(
            "unsupported datatype {} for {side} '{name}' for model '{}'",
            datatype.config_name(),
            self.0.name
        )))
    }

    fn dims(&self, tensor: &mut TensorInfo, dims: &[i64], sizes: SizeRule) -> Result<(), Status> {
        let (model, name) = (&self.0.name, &tensor.name);
        if matches!(&tensor.element, ElementKind::Unknown(text) if text == VARIABLE_RANK) {
            return Err(Status::unsupported(format!("tensor '{name}' has {VARIABLE_RANK}")));
        }
        let batch = i64::from(self.0.max_batch_size);
        let is_batched = batch > 0;
        let is_scalar = tensor.dims.is_empty();
        if is_batched && is_scalar {
            return Err(Status::invalid_argument(format!(
                "model '{model}', tensor '{name}': for the model to support batching the shape \
                 should have at least 1 dimension"
            )));
        }
        // Clients see a scalar as one element.
        if is_scalar && dims.iter().all(|&dim| dim == 1) {
            return Ok(());
        }
        let full: Vec<i64> = is_batched.then_some(batch).into_iter().chain(dims.to_vec()).collect();
        let matches = |(index, (&own, &configured)): (usize, (&i64, &i64))| {
            let is_open =
                is_batched && sizes == SizeRule::Inputs && (index == 0 || configured == -1);
            is_open || own == -1 || own == configured
        };
        let mut pairs = tensor.dims.iter().zip(&full).enumerate();
        if tensor.dims.len() == full.len() && pairs.all(matches) {
            tensor.dims = full_dims(self.0, dims);
            return Ok(());
        }
        // Triton sets the model's batch size to the maximum before it compares outputs.
        let mut own = tensor.dims.clone();
        if let Some(first) = own.first_mut()
            && is_batched
            && sizes == SizeRule::Outputs
            && *first == -1
        {
            *first = batch;
        }
        let what = if is_batched {
            "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor \
             shape, making complete shape"
        } else {
            "shape"
        };
        Err(Status::invalid_argument(format!(
            "model '{model}', tensor '{name}': the model expects {} dimensions (shape {}) but the \
             model configuration specifies {} dimensions ({what} {})",
            tensor.dims.len(),
            DisplayDims(&own),
            full.len(),
            DisplayDims(&full)
        )))
    }
}

#[cfg(test)]
mod tests {
    use galatea_config::SupportedFeatures;
    use galatea_pbtxt::parse_config_draft;

    use super::*;

    fn spec(text: &str) -> ModelSpec {
        let mut draft = parse_config_draft("config.pbtxt", text).unwrap();
        draft.resolve_name_and_backend("m", &["model.xml".to_owned()]).unwrap();
        draft.into_validated_spec(&SupportedFeatures::default()).unwrap()
    }

    fn interface(input: &[i64], output: &[i64]) -> SessionInterface {
        let tensor = |name: &str, dims: &[i64]| TensorInfo {
            name: name.to_owned(),
            element: ElementKind::Known(DataType::Fp32),
            dims: dims.to_vec(),
        };
        let (inputs, outputs) = (vec![tensor("x", input)], vec![tensor("y", output)]);
        SessionInterface { inputs, required_inputs: 1, outputs }
    }

    /// The dimensions that the server's code sees, or the refusal.
    fn compared(batch: u32, dims: [&str; 2], model: [&[i64]; 2]) -> Result<[Vec<i64>; 2], String> {
        let spec = spec(&format!(
            "max_batch_size: {batch} \
             input {{ name: 'x' data_type: TYPE_FP32 dims: [ {} ] }} \
             output {{ name: 'y' data_type: TYPE_FP32 dims: [ {} ] }}",
            dims[0], dims[1]
        ));
        let mut interface = interface(model[0], model[1]);
        let comparison = Comparison(&spec);
        comparison
            .inputs(&mut interface)
            .and_then(|()| comparison.outputs(&mut interface))
            .map_err(|status| status.message().to_owned())?;
        Ok([interface.inputs[0].dims.clone(), interface.outputs[0].dims.clone()])
    }

    #[test]
    fn the_configuration_decides_on_variable_sizes() {
        for (batch, dims, model, expected) in [
            (0, ["2", "3"], [&[-1][..], &[-1][..]], [vec![2], vec![3]]),
            (0, ["-1", "-1"], [&[-1], &[-1]], [vec![-1], vec![-1]]),
            (8, ["2", "3"], [&[1, 2], &[-1, -1]], [vec![-1, 2], vec![-1, 3]]),
            (8, ["-1", "3"], [&[1, 2], &[8, 3]], [vec![-1, -1], vec![-1, 3]]),
            (0, ["1", "1"], [&[], &[]], [vec![], vec![]]),
        ] {
            assert_eq!(compared(batch, dims, model), Ok(expected), "{batch} {dims:?} {model:?}");
        }
    }

    #[test]
    fn contradictions_are_refused_in_tritons_words() {
        let batched = "an initial batch dimension because max_batch_size > 0 followed by the \
                       explicit tensor shape, making complete shape";
        for (batch, dims, model, expected) in [
            (
                0,
                ["-1", "3"],
                [&[2][..], &[3][..]],
                "tensor 'x': the model expects 1 dimensions (shape [2]) but the model configuration \
                 specifies 1 dimensions (shape [-1])"
                    .to_owned(),
            ),
            (
                8,
                ["2", "3"],
                [&[1, 5], &[-1, 3]],
                format!(
                    "tensor 'x': the model expects 2 dimensions (shape [1,5]) but the model \
                     configuration specifies 2 dimensions ({batched} [8,2])"
                ),
            ),
            (
                8,
                ["2", "3"],
                [&[1, 2], &[1, 3]],
                format!(
                    "tensor 'y': the model expects 2 dimensions (shape [1,3]) but the model \
                     configuration specifies 2 dimensions ({batched} [8,3])"
                ),
            ),
            (
                8,
                ["2", "-1"],
                [&[-1, 2], &[-1, 3]],
                format!(
                    "tensor 'y': the model expects 2 dimensions (shape [8,3]) but the model \
                     configuration specifies 2 dimensions ({batched} [8,-1])"
                ),
            ),
            (
                8,
                ["2", "3"],
                [&[], &[-1, 3]],
                "tensor 'x': for the model to support batching the shape should have at least 1 \
                 dimension"
                    .to_owned(),
            ),
        ] {
            assert_eq!(compared(batch, dims, model), Err(format!("model 'm', {expected}")));
        }
    }

    #[test]
    fn inputs_are_counted_and_strings_and_other_kinds_refused() {
        let refused = |text: &str| {
            let spec = spec(text);
            let (comparison, mut interface) = (Comparison(&spec), interface(&[-1], &[-1]));
            let checked = comparison.instances().and_then(|()| comparison.inputs(&mut interface));
            checked.unwrap_err().message().to_owned()
        };
        let input = "input { name: 'x' data_type: TYPE_FP32 dims: [ 1 ] }";
        let output = "output { name: 'y' data_type: TYPE_FP32 dims: [ 1 ] }";
        let two = format!("{input} {} {output}", input.replace('x', "z"));
        assert_eq!(
            refused(&two),
            "unable to load model 'm', configuration expects 2 inputs, model provides 1"
        );
        assert_eq!(
            refused(&format!("{} {output}", input.replace("FP32", "STRING"))),
            "unsupported datatype TYPE_STRING for input 'x' for model 'm'"
        );
        assert_eq!(
            refused(&format!("{input} {output} instance_group {{ kind: KIND_MODEL }}")),
            "unable to load model 'm', Triton OpenVINO backend supports only Kind CPU and AUTO"
        );
    }
}
