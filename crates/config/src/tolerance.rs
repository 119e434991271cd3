//! Removes meaningless configuration elements that Triton tolerates.
//!
//! Triton never reads such an element, or reads it only with the first request. A repository that
//! Triton serves must also load here, so the element is left out and the log gets a remark. The
//! configuration that clients see keeps the element.

use std::collections::BTreeSet;

use galatea_protocol::inference::model_config::SchedulingChoice;
use galatea_protocol::inference::model_sequence_batching::StrategyChoice;
use galatea_protocol::inference::model_version_policy::PolicyChoice;
use galatea_protocol::inference::{ModelConfig, ModelSequenceBatching};

use galatea_config_message::Diagnostic;

/// Leaves out the elements that these diagnostics concern.
pub(crate) fn leave_out(config: &mut ModelConfig, diagnostics: &[Diagnostic]) {
    let elements: BTreeSet<ToleratedElement> =
        diagnostics.iter().filter_map(|one| ToleratedElement::at(&one.path)).collect();
    // Go from last to first, so that the remaining indices stay valid.
    elements.into_iter().rev().for_each(|element| element.remove(config));
}

/// Returns true if the element that a diagnostic concerns is left out. Some elements just have no
/// effect.
pub(crate) fn is_left_out(diagnostic: &Diagnostic) -> bool {
    ToleratedElement::at(&diagnostic.path).is_some()
}

/// An element of a configuration. Nested elements are ordered after the elements that contain them.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ToleratedElement {
    Input(usize),
    Output(usize),
    BatchInput(usize),
    BatchOutput(usize),
    WarmupSample(usize),
    Version(usize),
    State(usize),
    ControlInput(usize),
    /// This control of a control input, and those after it.
    Controls(usize, usize),
    /// The type of a control whose values imply another type.
    ControlType(usize),
    SlotUtilization,
}

impl ToleratedElement {
    /// The element at a path.
    fn at(path: &str) -> Option<Self> {
        let (field, indices) = split(path);
        let first = indices.first().copied();
        match field.as_str() {
            "sequence_batching.control_input.control.data_type" => first.map(Self::ControlType),
            "sequence_batching.control_input.control" => match indices.as_slice() {
                [input, control] => Some(Self::Controls(*input, *control)),
                _ => first.map(Self::ControlInput),
            },
            "sequence_batching.direct.minimum_slot_utilization" => Some(Self::SlotUtilization),
            field if field.starts_with("sequence_batching.control_input.") => {
                first.map(Self::ControlInput)
            }
            field if field.starts_with("sequence_batching.state.") => first.map(Self::State),
            field => match field.split('.').next()? {
                "input" => first.map(Self::Input),
                "output" => first.map(Self::Output),
                "batch_input" => first.map(Self::BatchInput),
                "batch_output" => first.map(Self::BatchOutput),
                "model_warmup" => first.map(Self::WarmupSample),
                "version_policy" => first.map(Self::Version),
                _ => None,
            },
        }
    }

    fn remove(self, config: &mut ModelConfig) {
        match self {
            Self::Input(index) => remove_at(&mut config.input, index),
            Self::Output(index) => remove_at(&mut config.output, index),
            Self::BatchInput(index) => remove_at(&mut config.batch_input, index),
            Self::BatchOutput(index) => remove_at(&mut config.batch_output, index),
            Self::WarmupSample(index) => remove_at(&mut config.model_warmup, index),
            Self::Version(index) => remove_version(config, index),
            Self::State(_)
            | Self::ControlInput(_)
            | Self::Controls(..)
            | Self::ControlType(_)
            | Self::SlotUtilization => {
                if let Some(SchedulingChoice::SequenceBatching(batching)) =
                    &mut config.scheduling_choice
                {
                    self.remove_from_sequences(batching);
                }
            }
        }
    }

    fn remove_from_sequences(self, batching: &mut ModelSequenceBatching) {
        match self {
            Self::State(index) => remove_at(&mut batching.state, index),
            Self::ControlInput(index) => remove_at(&mut batching.control_input, index),
            Self::Controls(index, first) => {
                let input = batching.control_input.get_mut(index);
                input.into_iter().for_each(|input| input.control.truncate(first));
            }
            Self::ControlType(index) => {
                let input = batching.control_input.get_mut(index);
                let controls = input.into_iter().flat_map(|input| &mut input.control);
                controls.for_each(|control| control.data_type = 0);
            }
            Self::SlotUtilization => {
                if let Some(StrategyChoice::Direct(direct)) = &mut batching.strategy_choice {
                    direct.minimum_slot_utilization = 0.0;
                }
            }
            Self::Input(_)
            | Self::Output(_)
            | Self::BatchInput(_)
            | Self::BatchOutput(_)
            | Self::WarmupSample(_)
            | Self::Version(_) => {}
        }
    }
}

/// Splits a path into the path without indices, and the indices. Map keys are left out.
fn split(path: &str) -> (String, Vec<usize>) {
    let (mut fields, mut indices) = (Vec::new(), Vec::new());
    // A key may contain a dot.
    for part in path.split("[\"").next().unwrap_or_default().split('.') {
        let (name, index) = part.split_once('[').unwrap_or((part, ""));
        fields.push(name);
        indices.extend(index.strip_suffix(']').and_then(|index| index.parse::<usize>().ok()));
    }
    (fields.join("."), indices)
}

fn remove_version(config: &mut ModelConfig, index: usize) {
    let policy = config.version_policy.as_mut().and_then(|policy| policy.policy_choice.as_mut());
    if let Some(PolicyChoice::Specific(specific)) = policy {
        remove_at(&mut specific.versions, index);
    }
}

fn remove_at<T>(list: &mut Vec<T>, index: usize) {
    if index < list.len() {
        list.remove(index);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::read_config;
    use crate::{SchedulingChoice, SupportedFeatures};

    /// Checks the specification and the number of remarks.
    fn check(text: &str, expected: &str) {
        let mut draft = read_config("f", &format!("backend: 'b' {text}")).unwrap();
        draft.resolve_name_and_backend("m", &[]).unwrap();
        let spec = draft.into_validated_spec(&SupportedFeatures::default()).unwrap();
        let names = |names: Vec<&str>| names.join(",");
        let inputs = names(spec.inputs.iter().map(|input| input.name.as_str()).collect());
        let batch = spec.batch_inputs.len() + spec.batch_outputs.len();
        let (controls, states) = match &spec.scheduling {
            SchedulingChoice::Sequence(batching) => {
                (batching.controls.len(), batching.states.len())
            }
            _ => (0, 0),
        };
        let actual = format!(
            "inputs {inputs}; {batch} batch, {controls} controls, {states} states, {} samples; {}",
            spec.warmup.len(),
            spec.ignored_setting_warnings().len()
        );
        assert_eq!(actual, expected, "{text}: {:?}", spec.ignored_setting_warnings());
    }

    const INPUT: &str = "input { name: 'I' data_type: TYPE_FP32 dims: -1 }";

    #[test]
    fn an_element_without_a_meaning_is_left_out() {
        let twice = format!("{INPUT} {INPUT} {INPUT}");
        check(&twice, "inputs I; 0 batch, 0 controls, 0 states, 0 samples; 2");
        let batch = format!(
            "{INPUT} batch_input {{ data_type: TYPE_FP32 source_input: 'I' }} batch_input {{ \
             data_type: TYPE_FP32 source_input: 'I' target_name: 'N' }}"
        );
        check(&batch, "inputs I; 1 batch, 0 controls, 0 states, 0 samples; 1");
        let sample = format!(
            "{INPUT} model_warmup {{ name: 's' batch_size: 2 inputs {{ key: 'I' value {{ \
             data_type: TYPE_FP32 dims: 1 zero_data: true }} }} }}"
        );
        check(&sample, "inputs I; 0 batch, 0 controls, 0 states, 0 samples; 1");
        check(
            "version_policy { specific { versions: [ -1, 1 ] } }",
            "inputs ; 0 batch, 0 controls, 0 states, 0 samples; 1",
        );
    }

    #[test]
    fn controls_and_states_without_a_meaning_are_left_out() {
        let boolean = "int32_false_true: [ 0, 1 ]";
        let controls = format!(
            "{INPUT} sequence_batching {{ control_input {{ name: 'N' }} \
             control_input {{ name: 'A' control {{ {boolean} data_type: TYPE_FP32 }} \
             control {{ kind: CONTROL_SEQUENCE_END {boolean} }} }} \
             control_input {{ name: 'I' control {{ kind: CONTROL_SEQUENCE_READY {boolean} }} }} }}"
        );
        check(&controls, "inputs I; 0 batch, 1 controls, 0 states, 0 samples; 4");
        check(
            "sequence_batching { state { } state { input_name: 'S' output_name: 'O' \
             data_type: TYPE_FP32 dims: 1 } direct { minimum_slot_utilization: nan } }",
            "inputs ; 0 batch, 0 controls, 1 states, 0 samples; 5",
        );
    }

    #[test]
    fn clients_see_the_configuration_as_it_was_written() {
        let text = format!("backend: 'b' {INPUT} {INPUT}");
        let mut draft = read_config("f", &text).unwrap();
        draft.resolve_name_and_backend("m", &[]).unwrap();
        let spec = draft.into_validated_spec(&SupportedFeatures::default()).unwrap();
        assert_eq!(spec.to_json().matches("\"name\":\"I\"").count(), 2);
    }
}
