//! The tensors of a configuration, as its model sees them.
//!
//! Triton's backends use different rules to compare these tensors with a model, but the tensors
//! themselves are the same.

use galatea_config::{BatchInputKind, BatchInputSpec, InputSpec, ModelSpec, OutputSpec};
use galatea_tensor::DataType;

/// A model tensor, as the configuration describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredTensor {
    /// The name.
    pub name: String,
    /// The element type.
    pub datatype: DataType,
    /// The sizes as the model sees them, including the batch size; -1 means variable.
    pub dims: Vec<i64>,
    /// The tensor's role in the configuration.
    pub role: TensorRole,
}

/// A tensor's role in a configuration.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TensorRole {
    /// A request input or output.
    Request,
    /// A control of the sequence batcher.
    Control,
    /// A state of the sequence batcher.
    State,
    /// An input that the server computes from a batch.
    BatchInput,
}

/// The model's inputs: request inputs, controls, states and batch inputs.
#[must_use]
pub fn configured_inputs(spec: &ModelSpec) -> Vec<ConfiguredTensor> {
    let tensor = |name: &String, datatype, dims, role| ConfiguredTensor {
        name: name.clone(),
        datatype,
        dims,
        role,
    };
    let mut all = Vec::new();
    for input in &spec.inputs {
        let is_ragged = input.allow_ragged_batch;
        let dims = if is_ragged { vec![-1] } else { full_dims(spec, input_dims(input)) };
        all.push(tensor(&input.name, input.datatype, dims, TensorRole::Request));
    }
    for control in spec.sequence_controls() {
        let dims = full_dims(spec, &[1]);
        all.push(tensor(&control.name, control.datatype, dims, TensorRole::Control));
    }
    for state in spec.sequence_states() {
        let dims = full_dims(spec, &state.dims);
        all.push(tensor(&state.input_name, state.datatype, dims, TensorRole::State));
    }
    for input in &spec.batch_inputs {
        for name in &input.target_names {
            let dims = batch_input_dims(spec, input);
            all.push(tensor(name, input.datatype, dims, TensorRole::BatchInput));
        }
    }
    all
}

/// The model's outputs: request outputs, and states that aren't request outputs.
#[must_use]
pub fn configured_outputs(spec: &ModelSpec) -> Vec<ConfiguredTensor> {
    let of_requests = spec.outputs.iter().map(|output| ConfiguredTensor {
        name: output.name.clone(),
        datatype: output.datatype,
        dims: full_dims(spec, output_dims(output)),
        role: TensorRole::Request,
    });
    let hidden =
        spec.sequence_states().iter().filter(|state| spec.output(&state.output_name).is_none());
    let states = hidden.map(|state| ConfiguredTensor {
        name: state.output_name.clone(),
        datatype: state.datatype,
        dims: full_dims(spec, &state.dims),
        role: TensorRole::State,
    });
    of_requests.chain(states).collect()
}

/// The sizes of a tensor, preceded by the batch size if the model supports batching; -1 means
/// variable.
#[must_use]
pub fn full_dims(spec: &ModelSpec, dims: &[i64]) -> Vec<i64> {
    let batch = (spec.max_batch_size > 0).then_some(-1);
    batch.into_iter().chain(dims.iter().copied()).collect()
}

/// The sizes of a request input, without the batch size.
#[must_use]
pub fn input_dims(input: &InputSpec) -> &[i64] {
    input.reshape.as_ref().unwrap_or(&input.dims)
}

/// The sizes of a request output, without the batch size.
#[must_use]
pub fn output_dims(output: &OutputSpec) -> &[i64] {
    output.reshape.as_ref().unwrap_or(&output.dims)
}

/// The sizes of an input that the server computes from a batch. They include the batch size.
#[must_use]
pub fn batch_input_dims(spec: &ModelSpec, input: &BatchInputSpec) -> Vec<i64> {
    match input.kind {
        BatchInputKind::ItemShape => {
            // The rank excludes the batch dimension.
            let rank = spec.input(&input.source_input).map(|source| input_dims(source).len());
            vec![-1, rank.and_then(|rank| i64::try_from(rank).ok()).unwrap_or(-1)]
        }
        BatchInputKind::ElementCount
        | BatchInputKind::AccumulatedElementCount
        | BatchInputKind::AccumulatedElementCountWithZero
        | BatchInputKind::MaxElementCountAsShape
        | BatchInputKind::ItemShapeFlatten => vec![-1],
    }
}

/// The number of inputs that the server adds to the request inputs: controls, states and batch
/// inputs.
#[must_use]
pub fn added_input_count(spec: &ModelSpec) -> usize {
    let targets = spec.batch_inputs.iter().map(|input| input.target_names.len());
    spec.sequence_controls().len() + spec.sequence_states().len() + targets.sum::<usize>()
}

/// Returns true if an output's elements belong to all requests of a batch together
/// (`batch_output`).
#[must_use]
pub fn is_batch_output(spec: &ModelSpec, output: &str) -> bool {
    spec.batch_outputs.iter().flat_map(|one| &one.target_names).any(|target| target == output)
}

/// Displays sizes as Triton does: `[-1,3]`.
pub struct DisplayDims<'a>(pub &'a [i64]);

impl std::fmt::Display for DisplayDims<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let dims: Vec<String> = self.0.iter().map(i64::to_string).collect();
        write!(f, "[{}]", dims.join(","))
    }
}

#[cfg(test)]
mod tests {
    use galatea_config::SupportedFeatures;
    use galatea_pbtxt::parse_config_draft;

    use super::*;

    #[test]
    fn controls_states_and_batch_inputs_are_tensors_of_the_model() {
        let mut draft = parse_config_draft(
            "config.pbtxt",
            "backend: 'x' max_batch_size: 4
             input { name: 'a' data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 2, 2 ] } }
             output { name: 'b' data_type: TYPE_FP32 dims: 1 }
             sequence_batching {
               control_input { name: 'c' control { kind: CONTROL_SEQUENCE_START
                 int32_false_true: [ 0, 1 ] } }
               state { input_name: 's' output_name: 't' data_type: TYPE_INT64 dims: 3 } }
             batch_input { kind: BATCH_ELEMENT_COUNT target_name: 'n' data_type: TYPE_FP32
               source_input: 'a' }",
        )
        .unwrap();
        draft.resolve_name_and_backend("m", &[]).unwrap();
        let spec = draft.into_validated_spec(&SupportedFeatures::default()).unwrap();
        let of = |tensors: Vec<ConfiguredTensor>| -> Vec<(String, Vec<i64>, TensorRole)> {
            tensors.into_iter().map(|one| (one.name, one.dims, one.role)).collect()
        };
        let expected = [
            ("a", vec![-1, 2, 2], TensorRole::Request),
            ("c", vec![-1, 1], TensorRole::Control),
            ("s", vec![-1, 3], TensorRole::State),
            ("n", vec![-1], TensorRole::BatchInput),
        ];
        let expected = expected.map(|(name, dims, role)| (name.to_owned(), dims, role));
        assert_eq!(of(configured_inputs(&spec)), expected);
        let expected =
            [("b", vec![-1, 1], TensorRole::Request), ("t", vec![-1, 3], TensorRole::State)];
        let expected = expected.map(|(name, dims, role)| (name.to_owned(), dims, role));
        assert_eq!(of(configured_outputs(&spec)), expected);
    }
}
