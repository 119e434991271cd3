//! That each tensor of a model is one thing: brought by requests, a control, a
//! state, or made from the shapes of a batch.

use std::collections::BTreeMap;

use galatea_protocol::inference::ModelConfig;

use super::sequence_batching;
use crate::diagnostic::Diagnostic;

/// What a tensor of the model is, as diagnostics call it.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Role {
    Input,
    Control,
    StateInput,
    BatchInput,
    StateOutput,
    BatchOutput,
}

impl Role {
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

/// A use of a name, and where it stands.
struct Use<'a> {
    role: Role,
    name: &'a str,
    path: String,
}

pub(super) fn check(config: &ModelConfig, found: &mut Vec<Diagnostic>) {
    check_side(config, &inputs(config), found);
    check_side(config, &outputs(config), found);
}

/// Reports each use of a name after its first one.
fn check_side(config: &ModelConfig, uses: &[Use<'_>], found: &mut Vec<Diagnostic>) {
    let mut taken: BTreeMap<&str, Role> = BTreeMap::new();
    for one in uses {
        // A missing name is reported where the tensor is checked, and so is an
        // input that is there twice.
        let Some(earlier) = taken.get(one.name).copied() else {
            taken.insert(one.name, one.role);
            continue;
        };
        if one.name.is_empty() || (one.role, earlier) == (Role::Input, Role::Input) {
            continue;
        }
        found.push(clash(config, one, earlier));
    }
}

fn clash(config: &ModelConfig, one: &Use<'_>, earlier: Role) -> Diagnostic {
    let model = &config.name;
    let name = one.name.escape_debug();
    let text = match (one.role, earlier) {
        (Role::Control, Role::Control) => format!(
            "sequence batching control tensor '{name}' is specified for multiple control kinds \
             for {model}"
        ),
        (Role::BatchOutput, Role::BatchOutput) => {
            format!("target output name '{name}' can only be specified once for {model}")
        }
        (role, other) if role == other => {
            format!("'{name}' is {} twice for {model}", role.name())
        }
        (role, other) => {
            format!("'{name}' can not be both {} and {} for {model}", other.name(), role.name())
        }
    };
    Diagnostic::about(one.path.clone(), text)
}

fn inputs(config: &ModelConfig) -> Vec<Use<'_>> {
    let mut uses = Vec::new();
    for (index, input) in config.input.iter().enumerate() {
        let path = format!("input[{index}].name");
        uses.push(Use { role: Role::Input, name: &input.name, path });
    }
    if let Some(batching) = sequence_batching(config) {
        for (index, control) in batching.control_input.iter().enumerate() {
            let path = format!("sequence_batching.control_input[{index}].name");
            uses.push(Use { role: Role::Control, name: &control.name, path });
        }
        for (index, state) in batching.state.iter().enumerate() {
            let path = format!("sequence_batching.state[{index}].input_name");
            uses.push(Use { role: Role::StateInput, name: &state.input_name, path });
        }
    }
    for (index, input) in config.batch_input.iter().enumerate() {
        for (target, name) in input.target_name.iter().enumerate() {
            let path = format!("batch_input[{index}].target_name[{target}]");
            uses.push(Use { role: Role::BatchInput, name, path });
        }
    }
    uses
}

/// A state's output may be an output for clients too, so those are not here.
fn outputs(config: &ModelConfig) -> Vec<Use<'_>> {
    let mut uses = Vec::new();
    if let Some(batching) = sequence_batching(config) {
        for (index, state) in batching.state.iter().enumerate() {
            let path = format!("sequence_batching.state[{index}].output_name");
            uses.push(Use { role: Role::StateOutput, name: &state.output_name, path });
        }
    }
    for (index, output) in config.batch_output.iter().enumerate() {
        for (target, name) in output.target_name.iter().enumerate() {
            let path = format!("batch_output[{index}].target_name[{target}]");
            uses.push(Use { role: Role::BatchOutput, name, path });
        }
    }
    uses
}
