//! The tensors that a configuration exchanges with its model.
//!
//! Models of PyTorch hardly describe their tensors, so the configuration does.

use galatea_config::{BatchInputKind, ModelSpec};
use galatea_tensor::DataType;

/// A tensor of the model, as the configuration describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfiguredTensor {
    /// The name.
    pub(crate) name: String,
    /// The type of the elements.
    pub(crate) datatype: DataType,
    /// The sizes as the model sees them, including the batch's; -1 is variable.
    pub(crate) dims: Vec<i64>,
    /// The tensor's part in the configuration.
    pub(crate) role: Role,
}

/// A tensor's part in the configuration.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// An input or output of requests.
    Request,
    /// A control of the sequence batcher.
    Control,
    /// A state of the sequence batcher.
    State,
    /// An input that the server computes from a batch.
    BatchInput,
}

/// The model's inputs: those of requests, the controls, the states, and the batch inputs.
pub(crate) fn configured_inputs(spec: &ModelSpec) -> Vec<ConfiguredTensor> {
    let full = |dims: &[i64]| full_dims(spec, dims);
    let tensor = |name: &String, datatype, dims, role| ConfiguredTensor {
        name: name.clone(),
        datatype,
        dims,
        role,
    };
    let of_requests = spec.inputs.iter().map(|input| {
        let dims = input.reshape.as_ref().unwrap_or(&input.dims);
        let dims = if input.allow_ragged_batch { vec![-1] } else { full(dims) };
        tensor(&input.name, input.datatype, dims, Role::Request)
    });
    let controls = spec
        .sequence_controls()
        .iter()
        .map(|control| tensor(&control.name, control.datatype, full(&[1]), Role::Control));
    let states = spec
        .sequence_states()
        .iter()
        .map(|state| tensor(&state.input_name, state.datatype, full(&state.dims), Role::State));
    let mut all: Vec<ConfiguredTensor> = of_requests.chain(controls).chain(states).collect();
    for batch_input in &spec.batch_inputs {
        let dims = match batch_input.kind {
            BatchInputKind::ItemShape => vec![-1, -1],
            BatchInputKind::ElementCount
            | BatchInputKind::AccumulatedElementCount
            | BatchInputKind::AccumulatedElementCountWithZero
            | BatchInputKind::MaxElementCountAsShape
            | BatchInputKind::ItemShapeFlatten => vec![-1],
        };
        all.extend(
            batch_input
                .target_names
                .iter()
                .map(|name| tensor(name, batch_input.datatype, dims.clone(), Role::BatchInput)),
        );
    }
    all
}

/// The model's outputs: those of requests, and the states that aren't among them.
pub(crate) fn configured_outputs(spec: &ModelSpec) -> Vec<ConfiguredTensor> {
    let of_requests = spec.outputs.iter().map(|output| ConfiguredTensor {
        name: output.name.clone(),
        datatype: output.datatype,
        dims: full_dims(spec, output.reshape.as_ref().unwrap_or(&output.dims)),
        role: Role::Request,
    });
    let hidden =
        spec.sequence_states().iter().filter(|state| spec.output(&state.output_name).is_none());
    let states = hidden.map(|state| ConfiguredTensor {
        name: state.output_name.clone(),
        datatype: state.datatype,
        dims: full_dims(spec, &state.dims),
        role: Role::State,
    });
    of_requests.chain(states).collect()
}

fn full_dims(spec: &ModelSpec, dims: &[i64]) -> Vec<i64> {
    let batch = (spec.max_batch_size > 0).then_some(-1);
    batch.into_iter().chain(dims.iter().copied()).collect()
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
            "backend: 'pytorch' max_batch_size: 4
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
        let of = |tensors: Vec<ConfiguredTensor>| -> Vec<(String, Vec<i64>, Role)> {
            tensors.into_iter().map(|one| (one.name, one.dims, one.role)).collect()
        };
        let expected = [
            ("a", vec![-1, 2, 2], Role::Request),
            ("c", vec![-1, 1], Role::Control),
            ("s", vec![-1, 3], Role::State),
            ("n", vec![-1], Role::BatchInput),
        ];
        let expected = expected.map(|(name, dims, role)| (name.to_owned(), dims, role));
        assert_eq!(of(configured_inputs(&spec)), expected);
        let expected = [("b", vec![-1, 1], Role::Request), ("t", vec![-1, 3], Role::State)];
        let expected = expected.map(|(name, dims, role)| (name.to_owned(), dims, role));
        assert_eq!(of(configured_outputs(&spec)), expected);
    }
}
