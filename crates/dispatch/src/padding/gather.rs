//! Padding of one input across all requests in a batch.
//!
//! The requests receive slices of one allocation, in order. A backend that joins them finds them
//! adjacent and copies nothing.

use bytes::Bytes;
use galatea_config::PaddedInput;
use galatea_gate::ledger::MemoryCharge;
use galatea_infer::{InputTensor, PendingRequest};
use galatea_tensor::{Buffer, Shape};

/// The total number of bytes that this input needs when it is padded to the given length in every
/// request that has it.
pub(super) fn byte_count(padded: &PaddedInput, length: u32, requests: &[PendingRequest]) -> usize {
    let inputs = requests.iter().filter_map(|pending| pending.request().input(&padded.name));
    let bytes = inputs.filter_map(|input| {
        let (shape, _) = padded_shape(padded, length, input)?;
        usize::try_from(shape.byte_size(input.datatype)?).ok()
    });
    bytes.fold(0, usize::saturating_add)
}

/// Pads this input to the given length in every request that has it, in charged memory.
pub(super) fn pad(
    padded: &PaddedInput,
    length: u32,
    requests: &mut [PendingRequest],
    charge: MemoryCharge,
) {
    let mut joined = Vec::with_capacity(charge.bytes());
    let mut parts = Vec::with_capacity(requests.len());
    for pending in requests.iter() {
        let input = pending.request().input(&padded.name);
        let part = input.and_then(|input| append(padded, length, input, &mut joined));
        parts.push(part);
    }
    let joined = Bytes::from_owner(charge.attach_to(joined));
    for (pending, part) in requests.iter_mut().zip(parts) {
        let Some((shape, range)) = part else { continue };
        let inputs = pending.inputs_mut();
        if let Some(input) = inputs.iter_mut().find(|input| input.name == padded.name) {
            input.shape = shape;
            input.data = Buffer::from_bytes(joined.slice(range))
                .with_retained_bytes(joined.len())
                .mark_charged();
        }
    }
}

/// Appends an input's padded elements. Returns the padded shape, and the range of the elements.
fn append(
    padded: &PaddedInput,
    length: u32,
    input: &InputTensor,
    joined: &mut Vec<u8>,
) -> Option<(Shape, std::ops::Range<usize>)> {
    let bytes = input.data.host_bytes()?;
    let (shape, own) = padded_shape(padded, length, input)?;
    let dims = shape.dims();
    let inner = element_count(dims.get(padded.axis + 1..)?)?;
    let own_bytes =
        usize::try_from(own).ok()?.checked_mul(inner)?.checked_mul(padded.element.len())?;
    let missing = usize::try_from(i64::from(length) - own).ok()?.checked_mul(inner)?;
    let outer = element_count(dims.get(..padded.axis)?)?;
    let start = joined.len();
    for number in 0..outer {
        let from = number.checked_mul(own_bytes)?;
        joined.extend_from_slice(bytes.get(from..from.checked_add(own_bytes)?)?);
        fill(joined, &padded.element, missing);
    }
    Some((shape, start..joined.len()))
}

/// The padded shape of an input, and its own length.
fn padded_shape(padded: &PaddedInput, length: u32, input: &InputTensor) -> Option<(Shape, i64)> {
    let mut dims = input.shape.dims().to_vec();
    let own = std::mem::replace(dims.get_mut(padded.axis)?, i64::from(length));
    Some((Shape::new(&dims).ok()?, own))
}

fn fill(joined: &mut Vec<u8>, element: &[u8], count: usize) {
    if element.iter().all(|byte| *byte == 0) {
        joined.resize(joined.len() + count * element.len(), 0);
    } else {
        (0..count).for_each(|_| joined.extend_from_slice(element));
    }
}

fn element_count(dims: &[i64]) -> Option<usize> {
    dims.iter().try_fold(1_usize, |product, dim| product.checked_mul(usize::try_from(*dim).ok()?))
}
