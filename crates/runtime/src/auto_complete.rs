//! Completes a configuration from the model.

use galatea_config::ConfigDraft;
use galatea_infer::Status;
use galatea_tensor::DataType;

use crate::interface::{BatchingSupport, ElementKind, SessionInterface, TensorInfo};

/// Returns true if the configuration is complete, so that the model need not be opened.
#[must_use]
pub fn is_config_complete(draft: &ConfigDraft) -> bool {
    inputs_are_given(draft) && !draft.message().output.is_empty()
}

/// Returns true if the configuration lists the inputs. Batch inputs refer to specific inputs, which
/// can't be derived from the model.
fn inputs_are_given(draft: &ConfigDraft) -> bool {
    !draft.message().input.is_empty() || !draft.message().batch_input.is_empty()
}

/// Adds missing settings, with the model's tensors in the model's order. Clients see this order.
///
/// # Errors
///
/// `InvalidArgument` if the draft requests batching but the model doesn't support it, or the
/// refusal of a tensor that requests can't contain.
pub fn complete_config(
    draft: &mut ConfigDraft,
    interface: &SessionInterface,
    batching: BatchingSupport,
    default_max_batch_size: i32,
) -> Result<(), Status> {
    complete_batch_size(draft, batching, default_max_batch_size)?;
    let batch_dims = usize::from(draft.max_batch_size() > 0);
    if !inputs_are_given(draft) {
        let reserved = draft.hidden_input_names();
        let required = interface.required_tensors().iter();
        for tensor in required.filter(|tensor| !reserved.contains(&tensor.name)) {
            let (datatype, dims) = description(tensor, batch_dims)?;
            draft.add_input(&tensor.name, datatype, dims);
        }
    }
    if draft.message().output.is_empty() {
        let reserved = draft.hidden_output_names();
        let outputs = interface.outputs.iter();
        for tensor in outputs.filter(|tensor| !reserved.contains(&tensor.name)) {
            let (datatype, dims) = description(tensor, batch_dims)?;
            draft.add_output(&tensor.name, datatype, dims);
        }
    }
    Ok(())
}

fn complete_batch_size(
    draft: &mut ConfigDraft,
    batching: BatchingSupport,
    default_max_batch_size: i32,
) -> Result<(), Status> {
    match batching {
        BatchingSupport::Possible => {}
        BatchingSupport::NotStated => return Ok(()),
        BatchingSupport::Impossible if draft.max_batch_size() == 0 => return Ok(()),
        BatchingSupport::Impossible => {
            return Err(Status::invalid_argument(format!(
                "autofill failed for model '{}': model does not support batching while non-zero \
             max_batch_size is specified",
                draft.name()
            )));
        }
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
    let datatype = match &tensor.element {
        ElementKind::Known(datatype) => *datatype,
        ElementKind::Unknown(words) => {
            return Err(Status::unsupported(format!("tensor '{}' has {words}", tensor.name)));
        }
        ElementKind::NotATensor(refusal) => return Err(refusal.clone()),
    };
    Ok((datatype, tensor.dims.get(batch_dims..).unwrap_or_default()))
}
