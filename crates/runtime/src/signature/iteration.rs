//! Requests that a model executes repeatedly, and states of different lengths in one run.
//!
//! Both are parameters of the configuration, which Triton passes to its backends and its backends
//! ignore.

use std::sync::Arc;

use galatea_config::{InstanceKind, ModelSpec, SchedulingChoice, StateSpec};
use galatea_infer::Status;
use galatea_tensor::DataType;

use super::check::{SignatureCheck, VariableSize};
use super::plans::{InputLayout, InputPlan, OutputPlan};

/// Names the output that says whether a request is executed again.
const CONTINUE_OUTPUT: &str = "continue_output";

/// Lets sequences whose states differ in length share a run.
const STATE_PADDING: &str = "state_padding";

impl SignatureCheck<'_> {
    /// Marks the output that says whether a request is executed again.
    pub(super) fn continuation(&self, outputs: &mut Vec<OutputPlan>) -> Result<(), Status> {
        let Some(name) = self.spec.parameters.get(CONTINUE_OUTPUT) else { return Ok(()) };
        if !is_iterative(self.spec) {
            return self.refuse(&format!(
                "parameter '{CONTINUE_OUTPUT}' needs 'iterative_sequence: true' in \
                 'sequence_batching'"
            ));
        }
        let (index, tensor) = self.find_output(name)?;
        self.datatype("output", name, DataType::Bool, tensor)?;
        self.dims(name, &[1], tensor, VariableSize::MayBeFixed)?;
        if let Some(visible) = outputs.iter_mut().find(|output| *output.name == **name) {
            visible.is_continuation = true;
            return Ok(());
        }
        outputs.push(OutputPlan {
            name: Arc::from(name.as_str()),
            datatype: DataType::Bool,
            index,
            scalar_shape: None,
            is_visible: false,
            is_state: false,
            grows_in: None,
            padded_input: None,
            is_continuation: true,
            scatter: None,
        });
        Ok(())
    }

    /// Marks the states that are padded to a common length.
    pub(super) fn padded_states(
        &self,
        inputs: &mut [InputPlan],
        outputs: &mut [OutputPlan],
    ) -> Result<(), Status> {
        let Some(side) = self.spec.parameters.get(STATE_PADDING) else { return Ok(()) };
        if side != "start" {
            return self
                .refuse(&format!("parameter '{STATE_PADDING}' is '{side}', which is not 'start'"));
        }
        let on_gpu = |kind: InstanceKind| kind == InstanceKind::Gpu;
        if !self.batched() || self.spec.instance_groups.iter().any(|group| on_gpu(group.kind)) {
            return self.refuse(&format!(
                "parameter '{STATE_PADDING}' needs a 'max_batch_size' above 0 and instances on \
                 CPUs"
            ));
        }
        let states = self.spec.sequence_states();
        let padded: Vec<&StateSpec> = states.iter().filter(|state| is_list(state)).collect();
        if padded.is_empty() {
            return self.refuse(&format!(
                "parameter '{STATE_PADDING}' needs a state of numbers or Booleans whose first \
                 dimension, and no other, is -1"
            ));
        }
        for state in padded {
            for input in inputs.iter_mut().filter(|input| input.name == state.input_name) {
                input.is_padded = input.layout == InputLayout::Rows;
            }
            for output in outputs.iter_mut().filter(|output| *output.name == *state.output_name) {
                output.padded_input = Some(Arc::from(state.input_name.as_str()));
            }
        }
        Ok(())
    }
}

/// Returns true if the state is a list: only its first dimension is variable, so that a shorter
/// state is padded with contiguous bytes.
fn is_list(state: &StateSpec) -> bool {
    let is_variable = |dim: &i64| *dim == -1;
    let variable = state.dims.iter().filter(|dim| is_variable(dim)).count();
    state.datatype.byte_size().is_some()
        && variable == 1
        && state.dims.first().is_some_and(is_variable)
}

const fn is_iterative(spec: &ModelSpec) -> bool {
    match &spec.scheduling {
        SchedulingChoice::Sequence(batching) => batching.iterative,
        SchedulingChoice::Default
        | SchedulingChoice::Dynamic(_)
        | SchedulingChoice::Ensemble(_) => false,
    }
}
