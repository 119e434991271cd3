//! Joins the requests of a batch into the input tensors of a run.
//!
//! Admission has checked every request. The scheduler only batches requests with the same inputs,
//! whose shapes are equal unless they are ragged. This module repeats the checks that memory safety
//! and output splitting depend on.

use bytes::Bytes;
use galatea_infer::{InputTensor, PendingRequest, Status};
use galatea_tensor::{Buffer, DataType, Shape};
use smallvec::SmallVec;

use super::copier::Copier;
use super::staging::{DeviceArena, Part};
use crate::arena::Arena;
use crate::batch_input::{BatchInputError, tensor_shape, write_elements};
use crate::region::{ByteRegion, DeviceBytes};
use crate::session::Session;
use crate::signature::{BatchInputPlan, InputLayout, InputPlan, ModelSignature};

/// One input of every request of a batch.
type InputParts<'a> = SmallVec<[InputPart<'a>; 8]>;

/// One request's part of an input, with its data for the instance's host policy.
struct InputPart<'a> {
    tensor: &'a InputTensor,
    data: &'a Buffer,
}

impl<'a> InputPart<'a> {
    fn new(tensor: &'a InputTensor, host_policy: &str) -> Self {
        Self { tensor, data: tensor.data.for_host_policy(host_policy) }
    }

    /// The location of the data, if an instance can use the data there.
    fn place(&self) -> Option<Part<'a>> {
        Part::of(self.data)
    }
}

/// The inputs of a run, each with its index in the session.
type RunInputs<'data, S> = SmallVec<[(usize, <S as Session>::Tensor<'data>); 8]>;

/// The memory in which an instance gathers inputs that are not contiguous.
pub(super) struct InputArenas {
    /// The memory for each request input.
    inputs: Vec<InputArena>,
    /// The memory for each batch input.
    batch_inputs: Vec<InputArena>,
}

/// The memory for one input. Only the part on the instance's processor is used. Batch inputs are
/// computed in host memory.
#[derive(Default)]
struct InputArena {
    host: Arena,
    device: DeviceArena,
}

impl InputArenas {
    pub(super) fn new(signature: &ModelSignature) -> Self {
        Self {
            inputs: signature.inputs.iter().map(|_| InputArena::default()).collect(),
            batch_inputs: signature.batch_inputs.iter().map(|_| InputArena::default()).collect(),
        }
    }
}

/// The size of the batch; 1 for a model without batching.
pub(super) fn total_batch_size(
    signature: &ModelSignature,
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

/// Creates the run's inputs.
pub(super) fn gather<'data, S: Session>(
    session: &S,
    copier: Copier<'_>,
    signature: &ModelSignature,
    requests: &'data [PendingRequest],
    total: u64,
    host_policy: &str,
    arenas: &'data mut InputArenas,
) -> Result<RunInputs<'data, S>, Status> {
    let mut values = RunInputs::<'data, S>::new();
    for (plan, arena) in signature.inputs.iter().zip(&mut arenas.inputs) {
        let Some(parts) = parts(plan, requests, host_policy)? else { continue };
        let shape = joint_shape(plan, &parts, requests, signature.batched.then_some(total))?;
        let value = match plan.datatype.byte_size() {
            None => {
                let copies = readable_parts(plan, &parts, copier)?;
                let bytes: SmallVec<[&[u8]; 8]> = copies.iter().map(|bytes| &bytes[..]).collect();
                session.strings(&shape, &bytes)?
            }
            Some(size) => {
                let elements = arena.join(copier, plan, &parts, &shape, size)?;
                elements.bind(session, plan.datatype, &shape)?
            }
        };
        values.push((plan.index, value));
    }
    for (plan, arena) in signature.batch_inputs.iter().zip(&mut arenas.batch_inputs) {
        let (shape, elements) = batch_input(plan, requests, &mut arena.host)?;
        let elements = match copier.stream() {
            None => Elements::Host(ByteRegion::from(elements)),
            Some(stream) => {
                Elements::Device(arena.device.gather(copier, stream, &[Part::Host(elements)])?)
            }
        };
        for &index in &plan.indices {
            values.push((index, elements.bind(session, plan.datatype, &shape)?));
        }
    }
    Ok(values)
}

impl InputArena {
    /// Joins the parts' fixed-size elements on the instance's processor.
    fn join<'data>(
        &'data mut self,
        copier: Copier<'_>,
        plan: &InputPlan,
        parts: &InputParts<'data>,
        shape: &Shape,
        element_size: usize,
    ) -> Result<Elements<'data>, Status> {
        let Some(stream) = copier.stream() else {
            let data = if plan.is_padded && has_different_sizes(parts) {
                copy_padded(plan, &host_parts(plan, parts)?, shape, &mut self.host)?
            } else if parts.iter().any(|part| part.data.host_bytes().is_none()) {
                let copies = readable_parts(plan, parts, copier)?;
                copy_into(plan, copies.iter().map(|bytes| &bytes[..]), shape, &mut self.host)?
            } else {
                contiguous(plan, parts, shape, element_size, &mut self.host)?
            };
            return Ok(Elements::Host(data));
        };
        let wrong_size = || mismatch(plan, "has another size than its shape says");
        let mut placed: SmallVec<[Part<'data>; 8]> = SmallVec::new();
        for part in parts {
            let place = part.place().ok_or_else(|| mismatch(plan, "is not in CPU memory"))?;
            let expected = part.tensor.shape.byte_size(plan.datatype);
            if expected != u64::try_from(place.byte_size()).ok() {
                return Err(wrong_size());
            }
            placed.push(place);
        }
        Ok(Elements::Device(self.device.gather(copier, stream, &placed)?))
    }
}

/// The fixed-size elements of an input on the instance's processor.
#[derive(Copy, Clone)]
enum Elements<'data> {
    Host(ByteRegion<'data>),
    Device(DeviceBytes<'data>),
}

impl<'data> Elements<'data> {
    /// Creates a tensor with these elements.
    fn bind<S: Session>(
        self,
        session: &S,
        datatype: DataType,
        shape: &Shape,
    ) -> Result<S::Tensor<'data>, Status> {
        match self {
            Self::Host(bytes) => session.tensor(datatype, shape, bytes),
            Self::Device(bytes) => session.device_tensor(datatype, shape, bytes),
        }
    }
}

/// The input's part in each request; `None` if all requests omit the input.
fn parts<'data>(
    plan: &InputPlan,
    requests: &'data [PendingRequest],
    host_policy: &str,
) -> Result<Option<InputParts<'data>>, Status> {
    let found = requests.iter().filter_map(|pending| pending.request().input(&plan.name));
    let parts: InputParts<'data> =
        found.map(|tensor| InputPart::new(tensor, host_policy)).collect();
    if parts.is_empty() {
        return Ok(None);
    }
    if parts.len() != requests.len() {
        return Err(mismatch(plan, "is missing in some requests of a batch"));
    }
    Ok(Some(parts))
}

/// The shape of the joined parts. `total` is the batch size if the model supports batching.
fn joint_shape(
    plan: &InputPlan,
    parts: &InputParts<'_>,
    requests: &[PendingRequest],
    total: Option<u64>,
) -> Result<Shape, Status> {
    let Some(first) = parts.first() else { return Err(mismatch(plan, "is missing")) };
    if parts.iter().any(|part| part.tensor.datatype != plan.datatype) {
        return Err(mismatch(plan, "has the wrong datatype"));
    }
    match (plan.layout, total) {
        (InputLayout::Flat, _) => flat_shape(plan, parts),
        (InputLayout::Scalar, _) => new_shape(plan, &[]),
        (InputLayout::Rows, None) => Ok(first.tensor.shape.clone()),
        (InputLayout::Rows, Some(total)) => batch_shape(plan, parts, requests, total),
    }
}

/// The shape with the elements of all parts in one dimension.
fn flat_shape(plan: &InputPlan, parts: &InputParts<'_>) -> Result<Shape, Status> {
    let counts = parts.iter().map(|part| part.tensor.shape.element_count());
    let count = counts.into_iter().try_fold(0_u64, u64::checked_add);
    let count = count.and_then(|count| i64::try_from(count).ok());
    new_shape(plan, &[count.ok_or_else(|| mismatch(plan, "is too large"))?])
}

/// The shape of parts that only differ in the number of rows.
fn batch_shape(
    plan: &InputPlan,
    parts: &InputParts<'_>,
    requests: &[PendingRequest],
    total: u64,
) -> Result<Shape, Status> {
    if plan.is_padded {
        return padded_shape(plan, parts, total);
    }
    let rest = parts.first().and_then(|first| first.tensor.shape.dims().get(1..));
    for (part, pending) in parts.iter().zip(requests) {
        let dims = part.tensor.shape.dims();
        if dims.first() != Some(&i64::from(pending.batch_size())) || dims.get(1..) != rest {
            return Err(mismatch(plan, "has different shapes in a batch"));
        }
    }
    let total = i64::try_from(total).map_err(|_| mismatch(plan, "has too large a batch"))?;
    let rest = rest.unwrap_or_default().iter().copied();
    let dims: SmallVec<[i64; 8]> = std::iter::once(total).chain(rest).collect();
    new_shape(plan, &dims)
}

/// The shape of parts that also differ in length: that of the longest part. Each part is one row,
/// because a request of a sequence has one.
fn padded_shape(plan: &InputPlan, parts: &InputParts<'_>, total: u64) -> Result<Shape, Status> {
    let different = || mismatch(plan, "has different shapes in a batch");
    let (mut longest, mut rest) = (0, None);
    for part in parts {
        let dims = part.tensor.shape.dims();
        let [1, length, inner @ ..] = dims else { return Err(different()) };
        if *rest.get_or_insert(inner) != inner {
            return Err(different());
        }
        longest = longest.max(*length);
    }
    let total = i64::try_from(total).map_err(|_| mismatch(plan, "has too large a batch"))?;
    let inner = rest.unwrap_or_default().iter().copied();
    let dims: SmallVec<[i64; 8]> = [total, longest].into_iter().chain(inner).collect();
    new_shape(plan, &dims)
}

fn has_different_sizes(parts: &InputParts<'_>) -> bool {
    let mut sizes = parts.iter().map(|part| part.data.len());
    let first = sizes.next();
    sizes.any(|size| Some(size) != first)
}

fn new_shape(plan: &InputPlan, dims: &[i64]) -> Result<Shape, Status> {
    Shape::new(dims).map_err(|error| mismatch(plan, &error.to_string()))
}

/// The contiguous bytes of all parts. They are used in place if the parts are adjacent and aligned
/// for their elements. Otherwise they are copied into the arena.
///
/// A single part is contiguous. Several parts are adjacent if they are the states of sequences
/// whose last requests were rows of one batch in the same order.
fn contiguous<'data>(
    plan: &InputPlan,
    parts: &InputParts<'data>,
    shape: &Shape,
    element_size: usize,
    arena: &'data mut Arena,
) -> Result<ByteRegion<'data>, Status> {
    let host = host_parts(plan, parts)?;
    let wrong_size = || mismatch(plan, "has another size than its shape says");
    if host.len() > 1 {
        for (part, InputPart { tensor, .. }) in host.iter().zip(parts) {
            if tensor.shape.byte_size(plan.datatype) != u64::try_from(part.len()).ok() {
                return Err(wrong_size());
            }
        }
    }
    let region = match &parts[..] {
        [only] => only.data.host_bytes().map(ByteRegion::from),
        _ => ByteRegion::from_adjacent(&host),
    };
    if let Some(region) = region.filter(|region| region.is_aligned(element_size)) {
        return Ok(region);
    }
    copy_into(plan, host.into_iter(), shape, arena)
}

/// Copies of all parts, one after another in the arena.
fn copy_into<'part, 'data>(
    plan: &InputPlan,
    parts: impl Iterator<Item = &'part [u8]>,
    shape: &Shape,
    arena: &'data mut Arena,
) -> Result<ByteRegion<'data>, Status> {
    let wrong_size = || mismatch(plan, "has another size than its shape says");
    let byte_size = shape
        .byte_size(plan.datatype)
        .and_then(|size| usize::try_from(size).ok())
        .ok_or_else(|| mismatch(plan, "is too large"))?;
    let mut rest = arena.bytes(byte_size);
    for part in parts {
        let (target, after) = rest.split_at_mut_checked(part.len()).ok_or_else(wrong_size)?;
        target.copy_from_slice(part);
        rest = after;
    }
    // The remaining memory would contain bytes from an earlier batch.
    if !rest.is_empty() {
        return Err(wrong_size());
    }
    Ok(arena.region(byte_size))
}

/// Copies of all parts in the arena, each with zeros before it up to the size of a row.
fn copy_padded<'data>(
    plan: &InputPlan,
    parts: &[&[u8]],
    shape: &Shape,
    arena: &'data mut Arena,
) -> Result<ByteRegion<'data>, Status> {
    let byte_size = shape
        .byte_size(plan.datatype)
        .and_then(|size| usize::try_from(size).ok())
        .ok_or_else(|| mismatch(plan, "is too large"))?;
    let row_size = byte_size.checked_div(parts.len()).unwrap_or(0);
    for (part, row) in parts.iter().zip(arena.bytes(byte_size).chunks_exact_mut(row_size.max(1))) {
        let padding = row.len().checked_sub(part.len());
        let (zeros, copy) = padding
            .and_then(|padding| row.split_at_mut_checked(padding))
            .ok_or_else(|| mismatch(plan, "has another size than its shape says"))?;
        zeros.fill(0);
        copy.copy_from_slice(part);
    }
    Ok(arena.region(byte_size))
}

/// The bytes of each part, which must be in CPU memory.
fn host_parts<'data>(
    plan: &InputPlan,
    parts: &InputParts<'data>,
) -> Result<SmallVec<[&'data [u8]; 8]>, Status> {
    let host = |part: &InputPart<'data>| part.data.host_bytes().map(|bytes| &bytes[..]);
    parts
        .iter()
        .map(|part| host(part).ok_or_else(|| mismatch(plan, "is not in CPU memory")))
        .collect()
}

/// The bytes of each part. Parts in GPU memory are copied.
fn readable_parts(
    plan: &InputPlan,
    parts: &InputParts<'_>,
    copier: Copier<'_>,
) -> Result<SmallVec<[Bytes; 8]>, Status> {
    let readable = |part: &InputPart<'_>| match part.place() {
        Some(Part::Device(part)) => copier.to_host(&part.region()?),
        Some(Part::Host(_)) | None => {
            let host = part.data.host_bytes().cloned();
            host.ok_or_else(|| mismatch(plan, "is not in CPU memory"))
        }
    };
    parts.iter().map(readable).collect()
}

fn mismatch(plan: &InputPlan, reason: &str) -> Status {
    Status::internal(format!("input '{}' {reason}", plan.name))
}

/// The shape and the elements of a batch input.
fn batch_input<'data>(
    plan: &BatchInputPlan,
    requests: &[PendingRequest],
    arena: &'data mut Arena,
) -> Result<(Shape, &'data [u8]), Status> {
    let failed =
        |error: BatchInputError| Status::internal(format!("batch input '{}' {error}", plan.name));
    let source = &plan.source_input;
    let inputs = requests.iter().filter_map(|pending| pending.request().input(source));
    let shapes: SmallVec<[&Shape; 8]> = inputs.map(|input| &input.shape).collect();
    if shapes.len() != requests.len() {
        return Err(Status::invalid_argument(format!(
            "batch input '{}' describes input '{source}', which a request leaves out",
            plan.name
        )));
    }
    let shape = tensor_shape(plan.kind, &shapes).map_err(failed)?;
    let byte_size = shape.byte_size(plan.datatype).and_then(|size| usize::try_from(size).ok());
    let byte_size = byte_size.ok_or_else(|| failed(BatchInputError::TooLarge))?;
    write_elements(plan.kind, plan.datatype, &shapes, arena.bytes(byte_size)).map_err(failed)?;
    Ok((shape, arena.bytes(byte_size)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW_BYTES: usize = 8;

    fn plan() -> InputPlan {
        InputPlan {
            name: String::from("STATE"),
            datatype: DataType::Fp32,
            index: 0,
            layout: InputLayout::Rows,
            is_state: true,
            is_padded: false,
        }
    }

    /// A row of two elements with these bytes.
    fn row(data: Bytes) -> InputTensor {
        let shape = Shape::new(&[1, 2]).unwrap();
        let data = Buffer::from_bytes(data);
        InputTensor { name: String::from("STATE"), datatype: DataType::Fp32, shape, data }
    }

    /// The memory of a joined batch.
    #[derive(Debug, PartialEq, Eq)]
    enum BatchMemory {
        /// The memory of the rows themselves, which starts at this address. Nothing is copied.
        InPlace(usize),
        /// The arena's memory.
        Gathered,
    }

    fn join(rows: &[InputTensor]) -> BatchMemory {
        let mut arena = Arena::default();
        let start = start(rows, &mut arena).unwrap();
        let is_at = |row: &InputTensor| row.data.host_bytes().unwrap().as_ptr().addr() == start;
        if let Some(index) = rows.iter().position(is_at) {
            return BatchMemory::InPlace(index);
        }
        let expected = rows.iter().flat_map(|row| row.data.host_bytes().unwrap().to_vec());
        let gathered = arena.bytes(rows.len() * ROW_BYTES);
        assert_eq!(start, gathered.as_ptr().addr());
        assert_eq!(gathered.to_vec(), expected.collect::<Vec<u8>>());
        BatchMemory::Gathered
    }

    /// The address of the joined batch.
    fn start(rows: &[InputTensor], arena: &mut Arena) -> Result<usize, Status> {
        let shape = Shape::new(&[i64::try_from(rows.len()).unwrap(), 2]).unwrap();
        let parts: InputParts<'_> = rows.iter().map(|row| InputPart::new(row, "cpu")).collect();
        let region = contiguous(&plan(), &parts, &shape, 4, arena)?;
        assert_eq!(region.byte_size(), rows.len() * ROW_BYTES);
        Ok(region.start().addr())
    }

    /// Rows of one tensor, in the form in which sequences receive their states.
    fn rows_of_one_tensor(count: usize) -> Vec<InputTensor> {
        let count = u8::try_from(count * ROW_BYTES).unwrap();
        let tensor = Bytes::from((0..count).collect::<Vec<u8>>());
        let ranges = (0..tensor.len()).step_by(ROW_BYTES).map(|start| start..start + ROW_BYTES);
        ranges.map(|range| row(tensor.slice(range))).collect()
    }

    #[test]
    fn adjacent_states_are_not_copied() {
        let rows = rows_of_one_tensor(4);
        assert_eq!(join(&rows), BatchMemory::InPlace(0));
        assert_eq!(join(&rows[1..3]), BatchMemory::InPlace(0));
        assert_eq!(join(&rows[3..]), BatchMemory::InPlace(0));
    }

    #[test]
    fn an_instance_gets_the_data_for_its_host_policy() {
        let mut row = row(Bytes::from_static(&[1; ROW_BYTES]));
        let own = Buffer::from_bytes(Bytes::from_static(&[2; ROW_BYTES]));
        row.data = row.data.with_host_policy_buffers(vec![(String::from("far"), own)]);
        for (policy, expected) in [("cpu", 1), ("far", 2)] {
            let parts: InputParts<'_> = [InputPart::new(&row, policy)].into_iter().collect();
            let host = host_parts(&plan(), &parts).unwrap();
            assert_eq!(host[..], [&[expected; ROW_BYTES][..]]);
        }
    }

    #[test]
    fn other_batches_are_gathered() {
        let rows = rows_of_one_tensor(3);
        let of = |order: &[usize]| -> Vec<InputTensor> {
            order.iter().map(|&index| rows[index].clone()).collect()
        };
        for order in [&[1, 0][..], &[0, 2], &[0, 0], &[0, 1, 1], &[2, 1, 0]] {
            assert_eq!(join(&of(order)), BatchMemory::Gathered, "{order:?}");
        }
        // The second sequence has just started, so its state is in other memory.
        let mut mixed = of(&[0, 1, 2]);
        mixed[1] = row(Bytes::from(vec![9; ROW_BYTES]));
        assert_eq!(join(&mixed), BatchMemory::Gathered);
    }

    #[test]
    fn misaligned_rows_are_gathered() {
        let bytes = Bytes::from(vec![3; 3 * ROW_BYTES]);
        let start = bytes.as_ptr().align_offset(4) + 1;
        let rows = [start, start + ROW_BYTES].map(|at| row(bytes.slice(at..at + ROW_BYTES)));
        assert_eq!(join(&rows), BatchMemory::Gathered);
        assert_eq!(join(&rows[..1]), BatchMemory::Gathered);
    }

    /// The parts' sizes are wrong, but their sum is correct.
    #[test]
    fn adjacent_parts_of_wrong_sizes_are_refused() {
        let bytes = Bytes::from(vec![0; 2 * ROW_BYTES]);
        let rows = [row(bytes.slice(..4)), row(bytes.slice(4..))];
        assert_eq!(
            start(&rows, &mut Arena::default()).unwrap_err().message(),
            "input 'STATE' has another size than its shape says"
        );
    }
}
