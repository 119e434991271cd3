//! A model's validated tensors and settings.

use std::sync::Arc;
use std::time::Duration;

use galatea_config::{InitialState, ModelSpec, OutputSpec, SchedulingChoice, StateSpec};
use galatea_tensor::DataType;

use crate::checks::integer_parameter;

/// The input that contains the number of tokens to produce.
pub(crate) const COUNT: &str = "COUNT";

const TOKEN: &str = "TOKEN";
const LIVE: &str = "LIVE";
const DELAY: &str = "DELAY_MICROSECONDS";

/// A loaded model's tensors and settings.
#[derive(Debug)]
pub(crate) struct Interface {
    pub(crate) model_name: Arc<str>,
    pub(crate) decoupled: bool,
    /// True if tensors have a batch dimension.
    pub(crate) batched: bool,
    pub(crate) outputs: Vec<(Arc<str>, OutputKind)>,
    /// The implicit state that counts a request's tokens.
    pub(crate) state: Option<StateNames>,
    /// The duration of an execution.
    pub(crate) delay: Duration,
}

/// The contents of an output.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum OutputKind {
    /// The tokens.
    Token,
    /// The number of requests in the execution.
    Live,
    /// The implicit state, which is the number of tokens so far.
    State,
}

/// The names of the implicit state's input and output.
#[derive(Clone, Debug)]
pub(crate) struct StateNames {
    pub(crate) input: String,
    pub(crate) output: String,
}

impl Interface {
    /// Validates a configuration. An error names the invalid field.
    pub(crate) fn new(spec: &ModelSpec) -> Result<Self, String> {
        check_scheduling(spec)?;
        check_inputs(spec)?;
        let state = state_names(spec.sequence_states())?;
        let outputs = spec.outputs.iter().map(|output| {
            let kind = output_kind(output, state.as_ref())?;
            Ok((Arc::from(output.name.as_str()), kind))
        });
        let outputs = outputs.collect::<Result<Vec<(Arc<str>, OutputKind)>, String>>()?;
        if !outputs.iter().any(|(_, kind)| *kind == OutputKind::Token) {
            return Err(format!("output: there must be an output '{TOKEN}'"));
        }
        Ok(Self {
            model_name: Arc::from(spec.name.as_str()),
            decoupled: spec.decoupled,
            batched: spec.max_batch_size > 0,
            outputs,
            state,
            delay: Duration::from_micros(integer_parameter(spec, DELAY)?),
        })
    }
}

fn check_scheduling(spec: &ModelSpec) -> Result<(), String> {
    match &spec.scheduling {
        SchedulingChoice::Sequence(batching) if batching.iterative => Ok(()),
        SchedulingChoice::Sequence(_)
        | SchedulingChoice::Default
        | SchedulingChoice::Dynamic(_)
        | SchedulingChoice::Ensemble(_) => Err(String::from(
            "sequence_batching.iterative_sequence: the backend 'token_counter' executes each \
             request several times, so this must be true",
        )),
    }
}

fn check_inputs(spec: &ModelSpec) -> Result<(), String> {
    let [input] = spec.inputs.as_slice() else {
        let names: Vec<&str> = spec.inputs.iter().map(|input| input.name.as_str()).collect();
        return Err(format!("input: expected '{COUNT}' alone, got [{}]", names.join(", ")));
    };
    if input.name != COUNT {
        return Err(format!("input: expected '{COUNT}', got '{}'", input.name));
    }
    let dims = input.reshape.as_ref().unwrap_or(&input.dims);
    if input.datatype != DataType::Int32 || *dims != [1] {
        return Err(format!("input '{COUNT}': expected TYPE_INT32 with dims [1]"));
    }
    if input.optional {
        return Err(format!("input '{COUNT}': optional must be false"));
    }
    Ok(())
}

fn state_names(states: &[StateSpec]) -> Result<Option<StateNames>, String> {
    let state = match states {
        [] => return Ok(None),
        [state] => state,
        [_, ..] => return Err(String::from("sequence_batching.state: there may be one at most")),
    };
    let name = &state.input_name;
    if state.datatype != DataType::Int32 || state.dims != [1] {
        return Err(format!("sequence_batching.state '{name}': expected TYPE_INT32 with dims [1]"));
    }
    if matches!(state.initial, InitialState::File { .. }) {
        return Err(format!(
            "sequence_batching.state '{name}': counting begins with zero, not with the data of a \
             file"
        ));
    }
    Ok(Some(StateNames { input: name.clone(), output: state.output_name.clone() }))
}

fn output_kind(output: &OutputSpec, state: Option<&StateNames>) -> Result<OutputKind, String> {
    let name = output.name.as_str();
    let (kind, expected) = match name {
        TOKEN => (OutputKind::Token, [-1]),
        LIVE => (OutputKind::Live, [1]),
        _ if state.is_some_and(|state| state.output == name) => (OutputKind::State, [1]),
        _ => {
            return Err(format!(
                "output: expected '{TOKEN}', '{LIVE}' or the output of a state, got '{name}'"
            ));
        }
    };
    if output.datatype != DataType::Int32 || output.dims != expected || output.reshape.is_some() {
        return Err(format!("output '{name}': expected TYPE_INT32 with dims {expected:?}"));
    }
    Ok(kind)
}
