//! Completes the configuration of a `SavedModel` by Triton's rules.

use galatea_config::ConfigDraft;
use galatea_infer::Status;

use crate::saved_model::{Signature, SignatureTensor};

/// Adds missing settings. Returns a warning if the batch size was chosen here.
///
/// # Errors
///
/// Triton's error for a configuration that contradicts itself or the model, or that doesn't specify
/// the shape of a scalar.
pub(crate) fn complete(
    draft: &mut ConfigDraft,
    signature: &Signature,
    default_max_batch_size: i32,
) -> Result<Option<String>, Status> {
    let batches = complete_batch_size(draft, signature, default_max_batch_size)?;
    let completion = Completion { model: draft.name().to_owned(), batches: batches.is_some() };
    completion.inputs(draft, &signature.inputs)?;
    completion.outputs(draft, &signature.outputs)?;
    Ok(batches.flatten())
}

/// Completes the batch size. Returns `None` if the model's tensors have no batch dimension, and
/// otherwise a warning if the batch size was chosen here.
fn complete_batch_size(
    draft: &mut ConfigDraft,
    signature: &Signature,
    default_max_batch_size: i32,
) -> Result<Option<Option<String>>, Status> {
    let (name, given) = (draft.name().to_owned(), draft.max_batch_size());
    let mut tensors = signature.inputs.iter().chain(&signature.outputs);
    let has_variable_rows = tensors.all(|tensor| matches!(tensor.dims.first(), None | Some(-1)));
    if !has_variable_rows && given > 0 {
        return Err(Status::internal(format!(
            "unable to autofill for '{name}', configuration specified max-batch {given} but model \
             signature does not support batching"
        )));
    }
    let batches = has_variable_rows && has_batches(draft, signature)? && default_max_batch_size > 0;
    let mut warning = None;
    if given == 0 && batches {
        draft.set_max_batch_size(default_max_batch_size);
        warning = Some(format!(
            "model '{name}' gets max_batch_size {default_max_batch_size}, because it supports \
             batches and its configuration gives no size"
        ));
    }
    if draft.max_batch_size() > 1 {
        draft.enable_dynamic_batching();
    }
    Ok(batches.then_some(warning))
}

/// Returns true if the tensors that the configuration lists have one dimension less than the
/// model's. A model with only variable sizes doesn't necessarily support batching.
fn has_batches(draft: &ConfigDraft, signature: &Signature) -> Result<bool, Status> {
    let message = draft.message();
    if message.input.is_empty() && message.output.is_empty() {
        return Ok(true);
    }
    if message.input.iter().any(|input| input.allow_ragged_batch) {
        // A ragged input indicates batching, and Triton then looks at no other tensor. The preceding
        // tensors have been compared, but can only affect the result by causing an error.
        return Ok(true);
    }
    let inputs = draft.inputs();
    let outputs = draft.outputs();
    let listed = |drafts: Vec<galatea_config::TensorDraft>, tensors: &[SignatureTensor]| {
        let pairs = drafts.into_iter().filter_map(|draft| {
            let tensor = tensors.iter().find(|tensor| tensor.name == draft.name)?;
            let given = draft.reshape.unwrap_or(draft.dims).len();
            (!tensor.dims.is_empty()).then_some((given, tensor.dims.len()))
        });
        pairs.collect::<Vec<(usize, usize)>>()
    };
    let mut ranks = listed(inputs, &signature.inputs);
    ranks.extend(listed(outputs, &signature.outputs));
    let mut weak_hint = false;
    let mut hint = None;
    for (given, rank) in ranks {
        if given == 0 {
            weak_hint |= hint.is_none();
            continue;
        }
        let is_batched = given.checked_add(1) == Some(rank);
        if hint.is_some_and(|earlier| earlier != is_batched) {
            return Err(Status::internal(format!(
                "unable to autofill for '{}', model tensor configurations are contradicting each \
                 other in terms of whether batching is supported",
                draft.name()
            )));
        }
        hint = Some(is_batched);
    }
    Ok(hint.unwrap_or(weak_hint))
}

/// Completes the tensors.
struct Completion {
    model: String,
    /// True if the first dimension of the model's tensors is the batch dimension.
    batches: bool,
}

impl Completion {
    fn inputs(&self, draft: &mut ConfigDraft, tensors: &[SignatureTensor]) -> Result<(), Status> {
        let listed = draft.inputs();
        let reserved = draft.hidden_input_names();
        for tensor in tensors {
            let given = listed.iter().find(|input| input.name == tensor.name);
            if given.is_none() && reserved.contains(&tensor.name) {
                continue;
            }
            if given.is_none_or(|input| input.dims.is_empty()) && tensor.dims.is_empty() {
                return Err(Status::invalid_argument(format!(
                    "Unable to autofill for '{}': the rank of model tensor '{}' is 0 and \
                     dimensions are not defined",
                    self.model, tensor.name
                )));
            }
            if given.is_some() {
                draft.fill_in_input(&tensor.name, tensor.datatype, self.dims(tensor));
            } else {
                draft.add_input(&tensor.name, tensor.datatype, self.dims(tensor));
            }
        }
        Ok(())
    }

    fn outputs(&self, draft: &mut ConfigDraft, tensors: &[SignatureTensor]) -> Result<(), Status> {
        if draft.message().output.is_empty() {
            let reserved = draft.hidden_output_names();
            for tensor in tensors.iter().filter(|tensor| !reserved.contains(&tensor.name)) {
                if tensor.dims.is_empty() {
                    return Err(Status::invalid_argument(format!(
                        "Unable to autofill for '{}': the rank of model tensor '{}' is 0 which is \
                         not supported",
                        self.model, tensor.name
                    )));
                }
                draft.add_output(&tensor.name, tensor.datatype, self.dims(tensor));
            }
            return Ok(());
        }
        // A scalar's shape remains missing, which the configuration check reports.
        let listed = draft.outputs();
        let has_dims = |tensor: &SignatureTensor| {
            let mut same = listed.iter().filter(|output| output.name == tensor.name);
            !tensor.dims.is_empty() || same.any(|output| !output.dims.is_empty())
        };
        for tensor in tensors.iter().filter(|tensor| has_dims(tensor)) {
            draft.fill_in_output(&tensor.name, tensor.datatype, self.dims(tensor));
        }
        Ok(())
    }

    /// The dimensions without the batch dimension.
    fn dims<'a>(&self, tensor: &'a SignatureTensor) -> &'a [i64] {
        tensor.dims.get(usize::from(self.batches)..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
