//! From the requests of a batch to the tensors of a run.
//!
//! Admission has checked every request, and the scheduler joins only requests
//! with equal shapes and equal sets of inputs. That is checked again here as
//! far as memory safety and the splitting of the outputs depend on it.

use galatea_infer::{InputTensor, PendingRequest, Status};
use galatea_tensor::Shape;
use smallvec::SmallVec;

use crate::api::{Arena, Session, Value, is_aligned};
use crate::signature::{InputPlan, Signature};

/// One input of every request of a batch.
type Parts<'a> = SmallVec<[&'a InputTensor; 8]>;

/// The size of the whole batch; 1 for a model without batches.
pub(super) fn total_batch_size(
    signature: &Signature,
    requests: &[PendingRequest],
) -> Result<u64, Status> {
    let total = requests.iter().map(|pending| u64::from(pending.batch_size())).sum();
    if total == 0 || (!signature.batched && requests.len() != 1) {
        return Err(Status::internal(format!(
            "{} requests with {total} batch elements can't be executed together by model '{}'",
            requests.len(),
            signature.model_name
        )));
    }
    Ok(total)
}

/// The run's inputs, each with the session's number for it.
pub(super) fn gather<'data>(
    session: &Session,
    signature: &Signature,
    requests: &'data [PendingRequest],
    total: u64,
    arenas: &'data mut [Arena],
) -> Result<SmallVec<[(usize, Value<'data>); 8]>, Status> {
    let mut values = SmallVec::new();
    for (plan, arena) in signature.inputs.iter().zip(arenas) {
        let Some(parts) = parts(plan, requests)? else { continue };
        let shape = joint_shape(plan, &parts, requests, signature.batched.then_some(total))?;
        let environment = session.environment();
        let value = match plan.datatype.byte_size() {
            None => Value::strings(environment, &shape, &host_parts(plan, &parts)?)?,
            Some(size) => {
                let data = contiguous(plan, &parts, &shape, size, arena)?;
                Value::borrowed(environment, plan.datatype, &shape, data)?
            }
        };
        values.push((plan.index, value));
    }
    Ok(values)
}

/// The input of every request, or `None` if all of them left it out.
fn parts<'data>(
    plan: &InputPlan,
    requests: &'data [PendingRequest],
) -> Result<Option<Parts<'data>>, Status> {
    let found = requests.iter().filter_map(|pending| pending.request().input(&plan.name));
    let parts: Parts<'data> = found.collect();
    if parts.is_empty() {
        return Ok(None);
    }
    if parts.len() != requests.len() {
        return Err(mismatch(plan, "is missing in some requests of a batch"));
    }
    Ok(Some(parts))
}

/// The shape of the parts put together; `total` is the batch's size if there
/// are batches.
fn joint_shape(
    plan: &InputPlan,
    parts: &Parts<'_>,
    requests: &[PendingRequest],
    total: Option<u64>,
) -> Result<Shape, Status> {
    let Some(first) = parts.first() else { return Err(mismatch(plan, "is missing")) };
    if parts.iter().any(|part| part.datatype != plan.datatype) {
        return Err(mismatch(plan, "has the wrong datatype"));
    }
    let Some(total) = total else {
        return if plan.scalar { new_shape(plan, &[]) } else { Ok(first.shape.clone()) };
    };
    let rest = first.shape.dims().get(1..);
    for (part, pending) in parts.iter().zip(requests) {
        let dims = part.shape.dims();
        if dims.first() != Some(&i64::from(pending.batch_size())) || dims.get(1..) != rest {
            return Err(mismatch(plan, "has different shapes in a batch"));
        }
    }
    let total = i64::try_from(total).map_err(|_| mismatch(plan, "has too large a batch"))?;
    let rest = rest.unwrap_or_default().iter().copied();
    let dims: SmallVec<[i64; 8]> = std::iter::once(total).chain(rest).collect();
    new_shape(plan, &dims)
}

fn new_shape(plan: &InputPlan, dims: &[i64]) -> Result<Shape, Status> {
    Shape::new(dims).map_err(|error| mismatch(plan, &error.to_string()))
}

/// The bytes of all parts, one behind the other: where they are if there is
/// one part at an address that suits its elements, in the arena otherwise.
fn contiguous<'data>(
    plan: &InputPlan,
    parts: &Parts<'data>,
    shape: &Shape,
    element_size: usize,
    arena: &'data mut Arena,
) -> Result<&'data [u8], Status> {
    let host = host_parts(plan, parts)?;
    if let [only] = host.as_slice()
        && is_aligned(only, element_size)
    {
        return Ok(only);
    }
    let byte_size = shape
        .byte_size(plan.datatype)
        .and_then(|size| usize::try_from(size).ok())
        .ok_or_else(|| mismatch(plan, "is too large"))?;
    let mut rest = arena.bytes(byte_size);
    let wrong_size = || mismatch(plan, "has another size than its shape says");
    for (part, tensor) in host.iter().zip(parts) {
        if tensor.shape.byte_size(plan.datatype) != u64::try_from(part.len()).ok() {
            return Err(wrong_size());
        }
        let (place, behind) = rest.split_at_mut_checked(part.len()).ok_or_else(wrong_size)?;
        place.copy_from_slice(part);
        rest = behind;
    }
    // What is left over would be the bytes of an earlier batch.
    if !rest.is_empty() {
        return Err(wrong_size());
    }
    Ok(arena.bytes(byte_size))
}

/// The bytes of each part, which must be where the CPU can read them.
fn host_parts<'data>(
    plan: &InputPlan,
    parts: &Parts<'data>,
) -> Result<SmallVec<[&'data [u8]; 8]>, Status> {
    let host = |part: &&'data InputTensor| part.data.host().map(|bytes| &bytes[..]);
    parts
        .iter()
        .map(|part| host(part).ok_or_else(|| mismatch(plan, "is not in CPU memory")))
        .collect()
}

fn mismatch(plan: &InputPlan, reason: &str) -> Status {
    Status::internal(format!("input '{}' {reason}", plan.name))
}
