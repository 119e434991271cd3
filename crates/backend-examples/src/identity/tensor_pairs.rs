//! Pairs of an output and the input that it repeats.

use std::sync::Arc;

use galatea_config::{ModelSpec, OutputSpec};
use galatea_tensor::DataType;

/// An output and the input that it repeats.
#[derive(Clone, Debug)]
pub(crate) struct TensorPair {
    pub(crate) input: String,
    pub(crate) output: Arc<str>,
    pub(crate) datatype: DataType,
    /// The input's shape as the backend sees it, without the batch dimension.
    pub(crate) dims: Vec<i64>,
    /// True if a batch dimension precedes `dims`.
    pub(crate) batched: bool,
}

/// The pairs, sorted by output name, which is Triton's order of outputs.
pub(crate) fn tensor_pairs(spec: &ModelSpec) -> Result<Vec<TensorPair>, String> {
    if spec.inputs.len() != spec.outputs.len() {
        return Err(String::from("model configuration must have equal input/output pairs"));
    }
    for input in &spec.inputs {
        if !input.name.starts_with("INPUT") {
            let name = &input.name;
            return Err(format!(
                "expected input name to follow INPUT<index> pattern, got '{name}'"
            ));
        }
    }
    let pairs = spec.outputs.iter().map(|output| tensor_pair(spec, output));
    let mut pairs = pairs.collect::<Result<Vec<TensorPair>, String>>()?;
    pairs.sort_by(|a, b| a.output.cmp(&b.output));
    Ok(pairs)
}

fn tensor_pair(spec: &ModelSpec, output: &OutputSpec) -> Result<TensorPair, String> {
    let Some(index) = output.name.strip_prefix("OUTPUT") else {
        let name = &output.name;
        return Err(format!("expected output name to follow OUTPUT<index> pattern, got '{name}'"));
    };
    let Some(input) = spec.input(&format!("INPUT{index}")) else {
        return Err(format!(
            "expected input and output indices to match, got '{}' without 'INPUT{index}'",
            output.name
        ));
    };
    if input.datatype != output.datatype {
        return Err(format!(
            "expected input and output datatype to match, got {} and {}",
            input.datatype.config_name(),
            output.datatype.config_name()
        ));
    }
    let input_dims = input.reshape.as_ref().unwrap_or(&input.dims);
    let output_dims = output.reshape.as_ref().unwrap_or(&output.dims);
    if input_dims != output_dims {
        return Err(format!(
            "expected input and output shape to match, got {input_dims:?} and {output_dims:?}"
        ));
    }
    Ok(TensorPair {
        input: input.name.clone(),
        output: Arc::from(output.name.as_str()),
        datatype: input.datatype,
        dims: input_dims.clone(),
        batched: spec.max_batch_size > 0,
    })
}
