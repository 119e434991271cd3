//! Completes a configuration from the model.

use galatea_config::ConfigDraft;
use galatea_infer::Status;
use galatea_tensor::DataType;

use crate::api::{Session, TensorInfo, ValueType};
use crate::signature::not_a_tensor;

/// Returns true if the configuration needs no completion, so the model need not be opened.
pub(crate) fn is_complete(draft: &ConfigDraft) -> bool {
    inputs_are_given(draft) && !draft.message().output.is_empty()
}

/// Returns true if the configuration lists the inputs. Batch inputs describe certain inputs, which
/// the model can't supply.
fn inputs_are_given(draft: &ConfigDraft) -> bool {
    !draft.message().input.is_empty() || !draft.message().batch_input.is_empty()
}

/// Adds what the draft omits.
pub(crate) fn complete(
    draft: &mut ConfigDraft,
    session: &Session,
    default_max_batch_size: i32,
) -> Result<(), Status> {
    let required = session.inputs().get(..session.required_inputs()).unwrap_or_default();
    complete_batch_size(draft, required, session.outputs(), default_max_batch_size)?;
    let batch_dims = usize::from(draft.max_batch_size() > 0);
    if !inputs_are_given(draft) {
        let reserved = draft.reserved_input_names();
        for tensor in in_triton_order(required).filter(|tensor| !reserved.contains(&tensor.name)) {
            let (datatype, dims) = description(tensor, batch_dims)?;
            draft.add_input(&tensor.name, datatype, dims);
        }
    }
    if draft.message().output.is_empty() {
        let reserved = draft.reserved_output_names();
        let outputs = in_triton_order(session.outputs());
        for tensor in outputs.filter(|tensor| !reserved.contains(&tensor.name)) {
            let (datatype, dims) = description(tensor, batch_dims)?;
            draft.add_output(&tensor.name, datatype, dims);
        }
    }
    Ok(())
}

/// The model's tensors in reverse order. Clients see this order. Triton's is that of a hash map,
/// which for a few tensors is the reverse of their insertion order.
fn in_triton_order(tensors: &[TensorInfo]) -> impl Iterator<Item = &TensorInfo> {
    tensors.iter().rev()
}

/// A model supports batching if the first dimension of every tensor is variable.
fn complete_batch_size(
    draft: &mut ConfigDraft,
    inputs: &[TensorInfo],
    outputs: &[TensorInfo],
    default_max_batch_size: i32,
) -> Result<(), Status> {
    let can_batch = inputs.iter().chain(outputs).all(|tensor| tensor.dims.first() == Some(&-1));
    if !can_batch {
        if draft.max_batch_size() == 0 {
            return Ok(());
        }
        return Err(Status::invalid_argument(format!(
            "autofill failed for model '{}': model does not support batching while non-zero \
             max_batch_size is specified",
            draft.name()
        )));
    }
    if draft.max_batch_size() == 0 {
        draft.set_max_batch_size(default_max_batch_size);
    }
    if draft.max_batch_size() > 1 && !draft.scheduling_is_set() {
        draft.enable_dynamic_batching();
    }
    Ok(())
}

fn description(tensor: &TensorInfo, batch_dims: usize) -> Result<(DataType, &[i64]), Status> {
    let element = match tensor.value_type {
        ValueType::Tensor(element) => element,
        ValueType::Other(kind) => return Err(not_a_tensor(&tensor.name, kind)),
    };
    let datatype = element.datatype().ok_or_else(|| {
        Status::unsupported(format!("tensor '{}' has {}", tensor.name, element.config_name()))
    })?;
    Ok((datatype, tensor.dims.get(batch_dims..).unwrap_or_default()))
}
