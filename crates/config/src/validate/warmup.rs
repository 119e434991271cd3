//! Checks warmup samples, without their files.

use std::collections::BTreeSet;

use galatea_protocol::inference::model_config::SchedulingChoice;
use galatea_protocol::inference::model_warmup::Input;
use galatea_protocol::inference::{DataType, ModelConfig, ModelWarmup};

use galatea_config_message::nearest_name;
use galatea_config_message::{BoundedText, Diagnostic, Diagnostics, bounded};

/// The maximum number of executions of `model_warmup` samples, per instance.
///
/// Samples warm up a backend within tens of executions.
const WARMUP_EXECUTIONS_MAX: u32 = 1 << 16;

/// The maximum number of requests in a sample: all of them occupy memory at the same time.
const REQUESTS_MAX: u32 = 1 << 16;

pub(super) fn check(config: &ModelConfig, diagnostics: &mut Diagnostics) {
    // Ensemble samples are refused elsewhere.
    if matches!(config.scheduling_choice, Some(SchedulingChoice::EnsembleScheduling(_))) {
        return;
    }
    let known = input_names(config);
    let mut executions: u32 = 0;
    for (index, sample) in config.model_warmup.iter().enumerate() {
        // As in Triton, a sample without requests is skipped.
        if sample.batch_size > 0 {
            let path = bounded!("model_warmup[{index}]");
            check_sample(config, &known, sample, &path, diagnostics);
            executions = executions.saturating_add(sample.count.max(1));
            if executions > WARMUP_EXECUTIONS_MAX {
                let most = WARMUP_EXECUTIONS_MAX;
                let text = bounded!("warmup samples are executed more than {most} times");
                return diagnostics.push(|| Diagnostic::about(bounded!("{path}.count"), text));
            }
        }
    }
}

fn check_sample(
    config: &ModelConfig,
    known: &BTreeSet<&str>,
    sample: &ModelWarmup,
    path: &str,
    diagnostics: &mut Diagnostics,
) {
    let largest = u32::try_from(config.max_batch_size).unwrap_or(0).max(1);
    if sample.batch_size > largest {
        let text = bounded!(
            "warmup sample '{}' has batch size {}, but model '{}' executes at most {largest} at \
             once",
            sample.name,
            sample.batch_size,
            config.name
        );
        diagnostics.push(|| Diagnostic::new_tolerated(bounded!("{path}.batch_size"), text));
    } else if sample.batch_size > REQUESTS_MAX {
        let text = bounded!(
            "warmup sample '{}' has batch size {}, at most {REQUESTS_MAX} are allowed",
            sample.name,
            sample.batch_size
        );
        diagnostics.push(|| Diagnostic::new_tolerated(bounded!("{path}.batch_size"), text));
    }
    for (name, input) in &sample.inputs {
        check_input(
            config,
            known,
            name,
            input,
            &bounded!("{path}.inputs[\"{name}\"]"),
            diagnostics,
        );
    }
}

fn check_input(
    config: &ModelConfig,
    known: &BTreeSet<&str>,
    name: &str,
    input: &Input,
    path: &str,
    diagnostics: &mut Diagnostics,
) {
    let mut report = |field: &str, text: BoundedText| {
        diagnostics.push(|| Diagnostic::about(bounded!("{path}{field}"), text));
    };
    if input.data_type() == DataType::TypeInvalid {
        report(
            ".data_type",
            bounded!("warmup setting expects input '{name}' to have data_type set"),
        );
    }
    match input.dims.iter().find(|&&dim| dim < 0) {
        Some(-1) => {
            let text = bounded!(
                "warmup setting expects all variable-size dimensions are specified for input \
                 '{name}'"
            );
            report(".dims", text);
        }
        Some(_) => {
            let shape = if input.data_type() == DataType::TypeString { "in shape " } else { "" };
            let dims: Vec<String> = input.dims.iter().map(i64::to_string).collect();
            let dims = dims.join(",");
            let text = bounded!("tensor '{name}' contains an invalid dimension {shape}[{dims}]");
            report(".dims", text);
        }
        None => {}
    }
    if input.input_data_type.is_none() {
        // Triton finds this mistake while it prepares a request.
        let text = bounded!(
            "[request id: <id_unknown>] warmup setting expects input '{name}' to have \
             input_data_type set"
        );
        report("", text);
    }
    if !known.contains(name) {
        let text =
            bounded!("warmup setting has input '{name}', which model '{}' hasn't", config.name);
        let path = BoundedText::truncated(path);
        diagnostics.push(|| {
            let suggestion = nearest_name(name, known.iter().copied());
            Diagnostic { suggestion, ..Diagnostic::new_tolerated(path, text) }
        });
    }
}

/// The inputs of a sample: the request inputs and the sequence batcher's inputs.
fn input_names(config: &ModelConfig) -> BTreeSet<&str> {
    let own = config.input.iter().map(|input| input.name.as_str());
    let Some(batching) = super::sequence_batching(config) else { return own.collect() };
    let controls = batching.control_input.iter().map(|control| control.name.as_str());
    let states = batching.state.iter().map(|state| state.input_name.as_str());
    own.chain(controls).chain(states).collect()
}
