//! Checks that each tensor of a model has one role: input, control, state or batch input.

use std::collections::BTreeMap;

use galatea_protocol::inference::ModelConfig;

use super::sequence_batching;
use galatea_config_message::{BoundedText, Diagnostic, Diagnostics, TritonDetectionStage, bounded};

/// The role of a tensor.
#[derive(Copy, Clone, PartialEq, Eq)]
enum TensorRole {
    Input,
    Control,
    StateInput,
    BatchInput,
    StateOutput,
    BatchOutput,
}

impl TensorRole {
    const fn name(self) -> &'static str {
        match self {
            Self::Input => "an input",
            Self::Control => "a sequence batching control tensor",
            Self::StateInput => "the input of a state",
            Self::BatchInput => "the target of a batch input",
            Self::StateOutput => "the output of a state",
            Self::BatchOutput => "the target of a batch output",
        }
    }
}

/// A use of a name, with its path.
struct NameUse<'a> {
    role: TensorRole,
    name: &'a str,
    path: BoundedText,
}

pub(super) fn check(config: &ModelConfig, diagnostics: &mut Diagnostics) {
    check_unique(config, &inputs(config), diagnostics);
    check_unique(config, &outputs(config), diagnostics);
}

/// Reports each use of a name after its first one.
fn check_unique(config: &ModelConfig, uses: &[NameUse<'_>], diagnostics: &mut Diagnostics) {
    let mut first_uses: BTreeMap<&str, &NameUse<'_>> = BTreeMap::new();
    for one in uses {
        // Missing names and duplicate inputs are reported by the tensor checks.
        let Some(earlier) = first_uses.get(one.name).copied() else {
            first_uses.insert(one.name, one);
            continue;
        };
        let roles = (one.role, earlier.role);
        if one.name.is_empty() || roles == (TensorRole::Input, TensorRole::Input) {
            continue;
        }
        diagnostics.push(|| duplicate_name(config, one, earlier));
    }
}

fn duplicate_name(config: &ModelConfig, one: &NameUse<'_>, earlier: &NameUse<'_>) -> Diagnostic {
    let model = &config.name;
    let name = one.name.escape_debug();
    let text = match (one.role, earlier.role) {
        (TensorRole::Control, TensorRole::Control) => bounded!(
            "sequence batching control tensor '{name}' is specified for multiple control kinds \
             for {model}"
        ),
        (TensorRole::BatchOutput, TensorRole::BatchOutput) => {
            bounded!("target output name '{name}' can only be specified once for {model}")
        }
        (role, other) if role == other => {
            bounded!("'{name}' is {} twice for {model}", role.name())
        }
        (role, other) => {
            bounded!("'{name}' can not be both {} and {} for {model}", other.name(), role.name())
        }
    };
    let element = |path: &str| path.split_once('.').map(|(element, _)| element.to_owned());
    let stage = match (one.role, earlier.role) {
        (TensorRole::Control, TensorRole::Control) => TritonDetectionStage::Poll,
        (TensorRole::BatchOutput, TensorRole::BatchOutput)
            if element(&one.path) == element(&earlier.path) =>
        {
            TritonDetectionStage::Load
        }
        _ => TritonDetectionStage::Never,
    };
    Diagnostic { stage, ..Diagnostic::about(one.path.clone(), text) }
}

fn inputs(config: &ModelConfig) -> Vec<NameUse<'_>> {
    let mut uses = Vec::new();
    for (index, input) in config.input.iter().enumerate() {
        let path = bounded!("input[{index}].name");
        uses.push(NameUse { role: TensorRole::Input, name: &input.name, path });
    }
    if let Some(batching) = sequence_batching(config) {
        for (index, control) in batching.control_input.iter().enumerate() {
            let path = bounded!("sequence_batching.control_input[{index}].name");
            uses.push(NameUse { role: TensorRole::Control, name: &control.name, path });
        }
        for (index, state) in batching.state.iter().enumerate() {
            let path = bounded!("sequence_batching.state[{index}].input_name");
            uses.push(NameUse { role: TensorRole::StateInput, name: &state.input_name, path });
        }
    }
    for (index, input) in config.batch_input.iter().enumerate() {
        for (target, name) in input.target_name.iter().enumerate() {
            let path = bounded!("batch_input[{index}].target_name[{target}]");
            uses.push(NameUse { role: TensorRole::BatchInput, name, path });
        }
    }
    uses
}

/// The outputs, except those for clients, because a state's output may also be a client output.
fn outputs(config: &ModelConfig) -> Vec<NameUse<'_>> {
    let mut uses = Vec::new();
    if let Some(batching) = sequence_batching(config) {
        for (index, state) in batching.state.iter().enumerate() {
            let path = bounded!("sequence_batching.state[{index}].output_name");
            uses.push(NameUse { role: TensorRole::StateOutput, name: &state.output_name, path });
        }
    }
    for (index, output) in config.batch_output.iter().enumerate() {
        for (target, name) in output.target_name.iter().enumerate() {
            let path = bounded!("batch_output[{index}].target_name[{target}]");
            uses.push(NameUse { role: TensorRole::BatchOutput, name, path });
        }
    }
    uses
}
