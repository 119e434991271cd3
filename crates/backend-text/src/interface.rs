//! The inputs and outputs that clients see.

use galatea_config::{ConfigDraft, ModelSpec, SchedulingChoice};
use galatea_infer::Status;
use galatea_tensor::DataType;
use galatea_text::{TextDescription, TextTask};

/// The input of a text; for pairs, the second text.
pub(crate) const TEXT: &str = "text";
/// The first text of a pair.
pub(crate) const QUERY: &str = "query";
/// The output of an embedding.
pub(crate) const EMBEDDING: &str = "embedding";
/// The output of the scores.
pub(crate) const SCORES: &str = "scores";
/// The output of the number of tokens.
pub(crate) const TOKEN_COUNT: &str = "num_input_tokens";

/// The default maximum batch size, which is also the maximum number of texts in a request. It is
/// OpenAI's limit for a list of texts. Runs are limited by their tokens, not by this number.
const MAX_BATCH_SIZE: i32 = 2048;

/// The names of the inputs, in the order of the configuration.
pub(crate) const fn input_names(task: &TextTask) -> &'static [&'static str] {
    match task {
        TextTask::Scores { is_pair: true, .. } => &[QUERY, TEXT],
        TextTask::Scores { is_pair: false, .. } | TextTask::Embedding(_) => &[TEXT],
    }
}

/// The name of the output that the network determines.
pub(crate) const fn output_name(task: &TextTask) -> &'static str {
    match task {
        TextTask::Embedding(_) => EMBEDDING,
        TextTask::Scores { .. } => SCORES,
    }
}

/// The number of values of that output for each row; -1 if the files don't state it.
fn output_width(description: &TextDescription) -> i64 {
    let width = match &description.task {
        TextTask::Embedding(task) => {
            let modes = task.pooling.as_ref().map_or(1, |pooling| pooling.modes.len());
            let pooled = || description.hidden_size.map(|size| size.saturating_mul(modes));
            task.dense.last().map(|layer| layer.outputs).or_else(pooled)
        }
        TextTask::Scores { count, .. } => *count,
    };
    width.and_then(|width| i64::try_from(width).ok()).unwrap_or(-1)
}

/// Adds missing settings.
pub(crate) fn complete(draft: &mut ConfigDraft, description: &TextDescription) {
    if draft.max_batch_size() == 0 {
        draft.set_max_batch_size(MAX_BATCH_SIZE);
    }
    if draft.max_batch_size() > 1 && !draft.scheduling_is_set() {
        draft.enable_dynamic_batching();
    }
    if draft.message().input.is_empty() {
        for name in input_names(&description.task) {
            draft.add_input(name, DataType::Bytes, &[1]);
        }
    }
    if draft.message().output.is_empty() {
        let name = output_name(&description.task);
        draft.add_output(name, DataType::Fp32, &[output_width(description)]);
        draft.add_output(TOKEN_COUNT, DataType::Int32, &[1]);
    }
}

/// Compares a configuration with the model. `width` is the number of values for each row.
pub(crate) fn check(spec: &ModelSpec, task: &TextTask, width: usize) -> Result<(), Status> {
    check_scheduling(spec)?;
    let names = input_names(task);
    for name in names {
        if spec.input(name).is_none() {
            return Err(refused(spec, format!("input '{name}' is missing")));
        }
    }
    for input in &spec.inputs {
        let problem = if !names.contains(&&*input.name) {
            Some(format!("the model has no such input: its inputs are {}", list(names)))
        } else if input.datatype != DataType::Bytes {
            Some(String::from("the data type must be TYPE_STRING"))
        } else if input.dims != [1] || input.reshape.is_some() {
            Some(String::from("dims must be [ 1 ], without reshape"))
        } else if input.optional {
            Some(String::from("the input is not optional"))
        } else {
            None
        };
        if let Some(problem) = problem {
            return Err(refused(spec, format!("input '{}': {problem}", input.name)));
        }
    }
    check_outputs(spec, task, width)
}

fn check_outputs(spec: &ModelSpec, task: &TextTask, width: usize) -> Result<(), Status> {
    let width = i64::try_from(width).unwrap_or(i64::MAX);
    for output in &spec.outputs {
        let known = [(output_name(task), DataType::Fp32, width), (TOKEN_COUNT, DataType::Int32, 1)];
        let expected = known.into_iter().find(|(name, ..)| *name == output.name);
        let problem = match expected {
            None => {
                let names = list(&known.map(|(name, ..)| name));
                Some(format!("the model has no such output: its outputs are {names}"))
            }
            Some((_, datatype, _)) if output.datatype != datatype => {
                Some(format!("the data type must be {}", datatype.config_name()))
            }
            Some((.., size)) if output.reshape.is_some() || !fits(&output.dims, size) => {
                Some(format!("dims must be [ {size} ], without reshape"))
            }
            Some(_) => None,
        };
        if let Some(problem) = problem {
            return Err(refused(spec, format!("output '{}': {problem}", output.name)));
        }
    }
    Ok(())
}

fn fits(dims: &[i64], size: i64) -> bool {
    matches!(dims, [dim] if *dim == -1 || *dim == size)
}

/// Refuses settings that have no meaning for texts.
fn check_scheduling(spec: &ModelSpec) -> Result<(), Status> {
    let problem = if spec.max_batch_size == 0 {
        "max_batch_size must be at least 1"
    } else if matches!(spec.scheduling, SchedulingChoice::Sequence(_)) {
        "sequence_batching is not supported"
    } else if spec.decoupled {
        "model_transaction_policy: a text model can't be decoupled"
    } else if spec.own.padding.is_some() {
        "parameter 'batch_padding': the texts of a batch are always padded"
    } else if !spec.batch_inputs.is_empty() {
        "batch_input is not supported"
    } else if !spec.batch_outputs.is_empty() {
        "batch_output is not supported"
    } else {
        return Ok(());
    };
    Err(refused(spec, String::from(problem)))
}

fn list(names: &[&str]) -> String {
    names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(" and ")
}

fn refused(spec: &ModelSpec, problem: String) -> Status {
    Status::invalid_argument(format!("text model '{}': {problem}", spec.name))
}
