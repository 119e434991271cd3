//! Checks batch inputs and batch outputs.

use galatea_protocol::inference::{
    BatchInput, BatchOutput, DataType, ModelConfig, batch_input, batch_output,
};

use super::tensors::ANY;
use galatea_config_message::nearest_name;
use galatea_config_message::{BoundedText, Diagnostic, Diagnostics, bounded};

pub(super) fn check(config: &ModelConfig, diagnostics: &mut Diagnostics) {
    for (index, input) in config.batch_input.iter().enumerate() {
        check_input(config, input, &bounded!("batch_input[{index}]"), diagnostics);
    }
    for (index, output) in config.batch_output.iter().enumerate() {
        check_output(config, output, &bounded!("batch_output[{index}]"), diagnostics);
    }
}

fn check_input(
    config: &ModelConfig,
    input: &BatchInput,
    path: &str,
    diagnostics: &mut Diagnostics,
) {
    // The parsers accept no other number; the conversion reports any that occur.
    let Ok(kind) = batch_input::Kind::try_from(input.kind) else { return };
    let subject = bounded!("batch input kind '{}'", kind.as_str_name());
    check_sources(config, &subject, &input.source_input, path, diagnostics);
    if !matches!(input.data_type(), DataType::TypeInt32 | DataType::TypeFp32) {
        let text =
            bounded!("batch input data type must be TYPE_INT32 or TYPE_FP32 for {}", config.name);
        diagnostics.push(|| Diagnostic::about(bounded!("{path}.data_type"), text));
    }
    check_targets(config, "batch input", &input.target_name, path, diagnostics);
    match kind {
        batch_input::Kind::BatchItemShape | batch_input::Kind::BatchItemShapeFlatten
            if config.max_batch_size == 0 =>
        {
            let text = bounded!(
                "{subject} needs a model with batches, 'max_batch_size' is 0 for {}",
                config.name
            );
            diagnostics.push(|| Diagnostic::new_tolerated(bounded!("{path}.kind"), text));
        }
        batch_input::Kind::BatchElementCount
        | batch_input::Kind::BatchAccumulatedElementCount
        | batch_input::Kind::BatchAccumulatedElementCountWithZero
        | batch_input::Kind::BatchMaxElementCountAsShape
        | batch_input::Kind::BatchItemShape
        | batch_input::Kind::BatchItemShapeFlatten => {}
    }
}

fn check_output(
    config: &ModelConfig,
    output: &BatchOutput,
    path: &str,
    diagnostics: &mut Diagnostics,
) {
    let Ok(kind) = batch_output::Kind::try_from(output.kind) else { return };
    let subject = bounded!("batch output kind '{}'", kind.as_str_name());
    check_sources(config, &subject, &output.source_input, path, diagnostics);
    check_targets(config, "batch output", &output.target_name, path, diagnostics);
    for (index, target) in output.target_name.iter().enumerate() {
        let path = bounded!("{path}.target_name[{index}]");
        if config.output.iter().any(|output| output.name == *target) {
            check_rank(config, target, &output.source_input, path, diagnostics);
        } else {
            let names = config.output.iter().map(|output| output.name.as_str());
            let shown = target.escape_debug();
            let text = bounded!("unknown target output name '{shown}' for {}", config.name);
            diagnostics.push(|| Diagnostic {
                suggestion: nearest_name(target, names),
                ..Diagnostic::about(path, text)
            });
        }
    }
}

fn check_sources(
    config: &ModelConfig,
    subject: &str,
    sources: &[String],
    path: &str,
    diagnostics: &mut Diagnostics,
) {
    if sources.len() != 1 {
        let text =
            bounded!("{subject} expects 1 source input, got {} for {}", sources.len(), config.name);
        diagnostics.push(|| Diagnostic::about(bounded!("{path}.source_input"), text));
    }
    for (index, source) in sources.iter().enumerate() {
        if config.input.iter().all(|input| input.name != *source) {
            let names = config.input.iter().map(|input| input.name.as_str());
            let shown = source.escape_debug();
            let text = bounded!("unknown source input name '{shown}' for {}", config.name);
            diagnostics.push(|| Diagnostic {
                suggestion: nearest_name(source, names),
                ..Diagnostic::about(bounded!("{path}.source_input[{index}]"), text)
            });
        }
    }
}

fn check_targets(
    config: &ModelConfig,
    subject: &str,
    targets: &[String],
    path: &str,
    diagnostics: &mut Diagnostics,
) {
    if targets.is_empty() || targets.iter().any(String::is_empty) {
        let text = bounded!("{subject} must specify 'target_name' for {}", config.name);
        diagnostics.push(|| Diagnostic::new_tolerated(bounded!("{path}.target_name"), text));
    }
}

/// Checks the rank: a variable output dimension has the size of the same input dimension.
fn check_rank(
    config: &ModelConfig,
    target: &str,
    sources: &[String],
    path: BoundedText,
    diagnostics: &mut Diagnostics,
) {
    let output = config.output.iter().find(|output| output.name == target);
    let input = config.input.iter().find(|input| sources.contains(&input.name));
    let (Some(output), Some(input)) = (output, input) else { return };
    let shape = output.reshape.as_ref().map_or(&output.dims, |reshape| &reshape.shape);
    let rank = input.reshape.as_ref().map_or(&input.dims, |reshape| &reshape.shape).len();
    if shape.iter().rposition(|dim| *dim == ANY).is_some_and(|last| last >= rank) {
        let text = bounded!(
            "target output '{}' has a variable-size dimension that source input '{}' does not \
             have for {}",
            target.escape_debug(),
            input.name.escape_debug(),
            config.name
        );
        diagnostics.push(|| Diagnostic::new_tolerated(path, text));
    }
}
