//! Which input each output repeats.

use std::sync::Arc;

use galatea_config::ModelSpec;
use galatea_infer::Status;
use galatea_tensor::DataType;

/// An output and its input.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) input: String,
    pub(crate) output: Arc<str>,
    pub(crate) datatype: DataType,
    /// What the backend sees as the input's shape, without the batch
    /// dimension.
    pub(crate) dims: Vec<i64>,
    /// Whether there is a batch dimension before them.
    pub(crate) batched: bool,
}

/// The pairs, in the order of the outputs' names: so Triton answers.
pub(crate) fn of(spec: &ModelSpec) -> Result<Vec<Pair>, Status> {
    let refuse =
        |reason: String| Err(Status::invalid_argument(format!("model '{}': {reason}", spec.name)));
    if spec.inputs.len() != spec.outputs.len() {
        return refuse(String::from("model configuration must have equal input/output pairs"));
    }
    for input in &spec.inputs {
        if !input.name.starts_with("INPUT") {
            let name = &input.name;
            return refuse(format!(
                "expected input name to follow INPUT<index> pattern, got '{name}'"
            ));
        }
    }
    let mut pairs = Vec::with_capacity(spec.outputs.len());
    for output in &spec.outputs {
        let Some(index) = output.name.strip_prefix("OUTPUT") else {
            let name = &output.name;
            return refuse(format!(
                "expected output name to follow OUTPUT<index> pattern, got '{name}'"
            ));
        };
        let Some(input) = spec.input(&format!("INPUT{index}")) else {
            return refuse(format!(
                "expected input and output indices to match, got '{}' without 'INPUT{index}'",
                output.name
            ));
        };
        if input.datatype != output.datatype {
            return refuse(format!(
                "expected input and output datatype to match, got {} and {}",
                input.datatype.config_name(),
                output.datatype.config_name()
            ));
        }
        let input_dims = input.reshape.as_ref().unwrap_or(&input.dims);
        let output_dims = output.reshape.as_ref().unwrap_or(&output.dims);
        if input_dims != output_dims {
            return refuse(format!(
                "expected input and output shape to match, got {input_dims:?} and {output_dims:?}"
            ));
        }
        pairs.push(Pair {
            input: input.name.clone(),
            output: Arc::from(output.name.as_str()),
            datatype: input.datatype,
            dims: input_dims.clone(),
            batched: spec.max_batch_size > 0,
        });
    }
    pairs.sort_by(|a, b| a.output.cmp(&b.output));
    Ok(pairs)
}
