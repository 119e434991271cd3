//! Compares a configuration with its model, and maps their tensors to each other.

mod check;
mod iteration;
mod plans;
mod ragged;
mod sequence;

use std::sync::Arc;

use galatea_config::{InputSpec, ModelSpec, OutputSpec};
use galatea_infer::Status;

use self::check::{SignatureCheck, VariableSize};
use self::plans::scalar_shape;
use crate::configured::{input_dims, output_dims};
use crate::interface::SessionInterface;

pub(crate) use self::plans::{
    BatchInputPlan, InputLayout, InputPlan, ModelSignature, OutputPlan, ScatterPlan,
};

/// Compares a configuration with a model that something else than a session executes.
///
/// # Errors
///
/// `InvalidArgument` for a configuration that the model contradicts.
pub fn check_interface(spec: &ModelSpec, interface: &SessionInterface) -> Result<(), Status> {
    ModelSignature::new(spec, interface).map(drop)
}

impl ModelSignature {
    /// Compares a configuration with a loaded model.
    pub(crate) fn new(spec: &ModelSpec, interface: &SessionInterface) -> Result<Self, Status> {
        let check = SignatureCheck { spec, interface };
        let controls: Vec<InputPlan> = spec
            .sequence_controls()
            .iter()
            .map(|control| check.control(control))
            .collect::<Result<_, _>>()?;
        check.input_count()?;
        let mut inputs: Vec<InputPlan> =
            spec.inputs.iter().map(|input| check.input(input)).collect::<Result<_, _>>()?;
        inputs.extend(controls);
        for state in spec.sequence_states() {
            inputs.push(check.state_input(state)?);
        }
        let batch_inputs = spec.batch_inputs.iter().map(|input| check.batch_input(input));
        let batch_inputs = batch_inputs.collect::<Result<_, _>>()?;
        let mut outputs = check.outputs()?;
        check.continuation(&mut outputs)?;
        check.padded_states(&mut inputs, &mut outputs)?;
        Ok(Self {
            model_name: Arc::from(spec.name.as_str()),
            batched: spec.max_batch_size > 0,
            decoupled: spec.decoupled,
            inputs,
            batch_inputs,
            outputs,
        })
    }
}

impl SignatureCheck<'_> {
    fn input(&self, input: &InputSpec) -> Result<InputPlan, Status> {
        let (index, tensor) = self.find_input(&input.name)?;
        if input.optional && self.spec.max_batch_size > 0 {
            return self.refuse(&format!(
                "optional input '{}' is not supported for models that support batching",
                input.name
            ));
        }
        self.datatype("input", &input.name, input.datatype, tensor)?;
        let layout = if input.allow_ragged_batch {
            self.ragged_input(input, tensor)?
        } else {
            self.dims(&input.name, input_dims(input), tensor, VariableSize::MayBeFixed)?;
            InputLayout::of_rank(tensor.dims.len())
        };
        let name = input.name.clone();
        let datatype = input.datatype;
        Ok(InputPlan { name, datatype, index, layout, is_state: false, is_padded: false })
    }

    /// The configured outputs, and the outputs that are only states.
    fn outputs(&self) -> Result<Vec<OutputPlan>, Status> {
        let outputs = self.spec.outputs.iter().map(|output| self.output(output));
        let mut outputs: Vec<OutputPlan> = outputs.collect::<Result<_, _>>()?;
        for state in self.spec.sequence_states() {
            let plan = self.state_output(state)?;
            match outputs.iter_mut().find(|visible| visible.name == plan.name) {
                Some(visible) => {
                    visible.is_state = true;
                    visible.grows_in = plan.grows_in;
                }
                None => outputs.push(plan),
            }
        }
        outputs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(outputs)
    }

    fn output(&self, output: &OutputSpec) -> Result<OutputPlan, Status> {
        let (index, tensor) = self.find_output(&output.name)?;
        self.datatype("output", &output.name, output.datatype, tensor)?;
        let dims = output_dims(output);
        let scatter = self.scatter(&output.name, dims);
        if scatter.is_none() {
            self.dims(&output.name, dims, tensor, VariableSize::MustStayVariable)?;
        }
        let is_scalar = tensor.dims.is_empty() && scatter.is_none();
        let scalar_shape = is_scalar.then(|| scalar_shape(dims)).transpose()?;
        Ok(OutputPlan {
            name: Arc::from(output.name.as_str()),
            datatype: output.datatype,
            index,
            scalar_shape,
            is_visible: true,
            is_state: false,
            grows_in: None,
            padded_input: None,
            is_continuation: false,
            scatter,
        })
    }
}
