//! Batches that contain sequences whose states differ in shape.
//!
//! The scheduler batches requests whose inputs have equal shapes, but the shape of a variable-size
//! state depends on the last request of its sequence. One tensor can't contain states of different
//! shapes, so such a batch is executed in several runs. Triton fails the whole batch.
//!
//! With the parameter `state_padding`, states of different lengths are padded, so they need only
//! one run. The first executions of sequences still have their own run: they read whole inputs,
//! where later executions read a single element, and would make the run long for all its rows.

use galatea_infer::PendingRequest;
use galatea_tensor::Shape;
use smallvec::{SmallVec, smallvec};

use crate::signature::ModelSignature;

/// Requests that one run can execute together.
type RunGroup = Vec<PendingRequest>;

/// Splits a batch into as few groups as possible. Requests keep their order within a group. Most
/// batches form a single group.
pub(super) fn split(
    signature: &ModelSignature,
    requests: Vec<PendingRequest>,
) -> SmallVec<[RunGroup; 1]> {
    let rest = requests.split_first();
    if rest.is_none_or(|(first, rest)| rest.iter().all(|one| same_shapes(signature, first, one))) {
        return smallvec![requests];
    }
    let mut groups: SmallVec<[RunGroup; 1]> = SmallVec::new();
    for pending in requests {
        let fits = |group: &&mut RunGroup| {
            group.first().is_some_and(|first| same_shapes(signature, first, &pending))
        };
        match groups.iter_mut().find(fits) {
            Some(group) => group.push(pending),
            None => groups.push(vec![pending]),
        }
    }
    // Padding is needed only between rows of real requests.
    groups.retain(|group| group.iter().any(|pending| !pending.is_padding()));
    groups
}

fn same_shapes(signature: &ModelSignature, one: &PendingRequest, other: &PendingRequest) -> bool {
    let mut states = signature.inputs.iter().filter(|plan| plan.is_state);
    states.all(|plan| match plan.is_padded {
        true => starts(one) == starts(other),
        false => shape(one, &plan.name) == shape(other, &plan.name),
    })
}

fn starts(pending: &PendingRequest) -> bool {
    pending.sequence().is_some_and(|sequence| sequence.flags.start)
}

fn shape<'a>(pending: &'a PendingRequest, name: &str) -> Option<&'a Shape> {
    pending.request().input(name).map(|input| &input.shape)
}
