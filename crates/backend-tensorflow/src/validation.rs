//! Compares a configuration with its model, in Triton's order and with Triton's error texts.

use std::collections::BTreeSet;

use galatea_config::ModelSpec;
use galatea_infer::Status;
use galatea_runtime::configured::{
    DisplayDims, added_input_count, full_dims, input_dims, is_batch_output, output_dims,
};
use galatea_tensor::DataType;

use crate::graph::NodeNames;
use crate::saved_model::{Signature, SignatureTensor};

/// The maximum number of dimensions. TensorFlow ends the process if a tensor has more dimensions.
pub(crate) const RANK_MAX: usize = 254;

/// Checks that TensorFlow supports tensors with the configuration's dimensions.
pub(crate) fn check_ranks(spec: &ModelSpec) -> Result<(), Status> {
    let batch = usize::from(spec.max_batch_size > 0);
    let inputs = spec.inputs.iter().map(|one| (&one.name, &one.dims, &one.reshape));
    let outputs = spec.outputs.iter().map(|one| (&one.name, &one.dims, &one.reshape));
    let states = spec.sequence_states().iter().map(|one| (&one.input_name, &one.dims, &None));
    for (name, dims, reshape) in inputs.chain(outputs).chain(states) {
        let rank = reshape.as_ref().unwrap_or(dims).len() + batch;
        if rank > RANK_MAX {
            let reason = format!(
                "tensor '{name}' has {rank} dimensions, but TensorFlow supports at most {RANK_MAX}"
            );
            return Err(refusal(spec, &reason));
        }
    }
    Ok(())
}

/// Compares a configuration with a graph, of which only the node names are known.
pub(crate) fn check_graph(spec: &ModelSpec, names: &NodeNames) -> Result<(), Status> {
    let (expected, most) = (spec.inputs.len(), names.inputs.len());
    if most < expected {
        return Err(refusal(
            spec,
            &format!("configuration expects {expected} inputs, model provides at most {most}"),
        ));
    }
    if let Some(control) =
        spec.sequence_controls().iter().find(|one| !names.inputs.contains(&one.name))
    {
        return Err(missing_control(&control.name));
    }
    for input in &spec.inputs {
        allowed(&input.name, "input", &names.inputs)?;
    }
    for output in &spec.outputs {
        allowed(&output.name, "output", &names.outputs)?;
    }
    Ok(())
}

/// Compares a configuration with the signature of a `SavedModel`.
pub(crate) fn check_signature(spec: &ModelSpec, signature: &Signature) -> Result<(), Status> {
    for control in spec.sequence_controls() {
        let tensor = find(&signature.inputs, &control.name);
        let tensor = tensor.ok_or_else(|| missing_control(&control.name))?;
        check_control(spec, tensor, control.datatype)?;
    }
    let names = names(&signature.inputs);
    for input in &spec.inputs {
        allowed(&input.name, "input", &names)?;
    }
    check_input_count(spec, signature)?;
    for input in &spec.inputs {
        let Some(tensor) = find(&signature.inputs, &input.name) else { continue };
        if input.allow_ragged_batch {
            check_ragged(spec, tensor)?;
        } else {
            check_dims(spec, tensor, input_dims(input), VariableSize::MayBeFixed)?;
        }
        check_datatype(spec, "input", tensor, input.datatype)?;
    }
    check_outputs(spec, signature)
}

fn check_input_count(spec: &ModelSpec, signature: &Signature) -> Result<(), Status> {
    let expected = spec.inputs.len() + added_input_count(spec);
    let provided = signature.inputs.len();
    if provided == expected {
        return Ok(());
    }
    Err(refusal(
        spec,
        &format!("configuration expects {expected} inputs, model provides {provided}"),
    ))
}

fn check_outputs(spec: &ModelSpec, signature: &Signature) -> Result<(), Status> {
    let names = names(&signature.outputs);
    for output in &spec.outputs {
        allowed(&output.name, "output", &names)?;
        let Some(tensor) = find(&signature.outputs, &output.name) else { continue };
        check_fetched(spec, tensor)?;
        if !is_batch_output(spec, &output.name) {
            check_dims(spec, tensor, output_dims(output), VariableSize::MustStayVariable)?;
        }
        check_datatype(spec, "output", tensor, output.datatype)?;
    }
    for state in spec.sequence_states() {
        find(&signature.outputs, &state.output_name)
            .map_or(Ok(()), |tensor| check_fetched(spec, tensor))?;
    }
    Ok(())
}

/// Checks that runs can fetch an output.
fn check_fetched(spec: &ModelSpec, tensor: &SignatureTensor) -> Result<(), Status> {
    if !tensor.graph_name.is_empty() {
        return Ok(());
    }
    Err(Status::internal(format!(
        "unable to process output '{}' for '{}', a sparse or composite tensor",
        tensor.name, spec.name
    )))
}

/// The sizes that a configuration may specify for a variable size in the model.
#[derive(Copy, Clone, PartialEq, Eq)]
enum VariableSize {
    MayBeFixed,
    MustStayVariable,
}

/// Compares the dimensions of a tensor whose rank is known.
fn check_dims(
    spec: &ModelSpec,
    tensor: &SignatureTensor,
    dims: &[i64],
    variable_size: VariableSize,
) -> Result<(), Status> {
    if tensor.dims.is_empty() {
        return Ok(());
    }
    compare_dims(spec, tensor, dims, variable_size).map_err(Status::invalid_argument)
}

fn compare_dims(
    spec: &ModelSpec,
    tensor: &SignatureTensor,
    dims: &[i64],
    variable_size: VariableSize,
) -> Result<(), String> {
    let (model, name, shown) = (&spec.name, &tensor.name, DisplayDims(&tensor.dims));
    let batched = spec.max_batch_size > 0;
    if batched && tensor.dims.first() != Some(&-1) {
        return Err(format!(
            "model '{model}', tensor '{name}': for the model to support batching the shape should \
             have at least 1 dimension and the first dimension must be -1; but shape expected by \
             the model is {shown}"
        ));
    }
    let full = full_dims(spec, dims);
    let fits = |(model, configured): (&i64, &i64)| {
        model == configured || (*model == -1 && variable_size == VariableSize::MayBeFixed)
    };
    if full.len() == tensor.dims.len() && tensor.dims.iter().zip(&full).all(fits) {
        return Ok(());
    }
    let reason = if batched {
        "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor \
         shape, making complete shape"
    } else {
        "shape"
    };
    Err(format!(
        "model '{model}', tensor '{name}': the model expects {} dimensions (shape {shown}) but the \
         model configuration specifies {} dimensions ({reason} {})",
        tensor.dims.len(),
        full.len(),
        DisplayDims(&full)
    ))
}

fn check_control(
    spec: &ModelSpec,
    tensor: &SignatureTensor,
    datatype: DataType,
) -> Result<(), Status> {
    let role = format!("sequence control '{}': ", tensor.name);
    compare_dims(spec, tensor, &[1], VariableSize::MustStayVariable)
        .map_err(|reason| refusal(spec, &format!("{role}{reason}")))?;
    if tensor.datatype == datatype {
        return Ok(());
    }
    Err(refusal(
        spec,
        &format!(
            "{role}the model expects {} but the model configuration specifies data-type {}",
            model_datatype(tensor),
            datatype.config_name()
        ),
    ))
}

fn check_ragged(spec: &ModelSpec, tensor: &SignatureTensor) -> Result<(), Status> {
    if tensor.dims.is_empty() || tensor.dims == [-1] {
        return Ok(());
    }
    Err(refusal(
        spec,
        &format!(
            "configuration expects model provides input with shape [-1]  for ragged input '{}', \
             model provides {}",
            tensor.name,
            DisplayDims(&tensor.dims)
        ),
    ))
}

fn check_datatype(
    spec: &ModelSpec,
    role: &str,
    tensor: &SignatureTensor,
    datatype: DataType,
) -> Result<(), Status> {
    if tensor.datatype == datatype {
        return Ok(());
    }
    Err(refusal(
        spec,
        &format!(
            "configuration expects datatype {} for {role} '{}', model provides {}",
            datatype.config_name(),
            tensor.name,
            model_datatype(tensor)
        ),
    ))
}

/// A model type under Triton's name; here Triton calls strings `TYPE_BYTES`.
fn model_datatype(tensor: &SignatureTensor) -> &'static str {
    match tensor.datatype {
        DataType::Bytes => "TYPE_BYTES",
        other => other.config_name(),
    }
}

fn find<'a>(tensors: &'a [SignatureTensor], name: &str) -> Option<&'a SignatureTensor> {
    tensors.iter().find(|tensor| tensor.name == name)
}

fn names(tensors: &[SignatureTensor]) -> BTreeSet<String> {
    tensors.iter().map(|tensor| tensor.name.clone()).collect()
}

fn allowed(name: &str, role: &str, names: &BTreeSet<String>) -> Result<(), Status> {
    if names.contains(name) {
        return Ok(());
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Err(Status::invalid_argument(format!(
        "unexpected inference {role} '{name}', allowed {role}s are: {}",
        names.join(", ")
    )))
}

fn refusal(spec: &ModelSpec, reason: &str) -> Status {
    Status::invalid_argument(format!("unable to load model '{}', {reason}", spec.name))
}

fn missing_control(name: &str) -> Status {
    Status::internal(format!(
        "configuration specified sequence control '{name}', but model does not provide that input"
    ))
}

#[cfg(test)]
mod tests;
