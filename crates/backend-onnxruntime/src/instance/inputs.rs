//! From the requests of a batch to the tensors of a run.
//!
//! Admission has checked every request, and the scheduler joins only requests
//! with equal shapes, except of ragged inputs, and equal sets of inputs. That
//! is checked again here as far as memory safety and the splitting of the
//! outputs depend on it.

use galatea_infer::{InputTensor, PendingRequest, Status};
use galatea_tensor::{Buffer, Shape};
use smallvec::SmallVec;

use crate::api::{Arena, Region, Session, Value};
use crate::batch_input::{self, BatchInputError};
use crate::signature::{BatchInputPlan, InputLayout, InputPlan, Signature};

/// One input of every request of a batch.
type Parts<'a> = SmallVec<[Part<'a>; 8]>;

/// A request's part of an input, with the elements that it has for this instance.
struct Part<'a> {
    tensor: &'a InputTensor,
    data: &'a Buffer,
}

impl<'a> Part<'a> {
    fn new(tensor: &'a InputTensor, host_policy: &str) -> Self {
        Self { tensor, data: tensor.data.for_host_policy(host_policy) }
    }
}

/// Each value of a run with the session's number for its input.
type Values<'data> = SmallVec<[(usize, Value<'data>); 8]>;

/// Where an instance puts what does not lie together.
pub(super) struct Arenas {
    /// One for each input that requests bring.
    inputs: Vec<Arena>,
    /// One for each tensor that is made of shapes.
    batch_inputs: Vec<Arena>,
}

impl Arenas {
    pub(super) fn new(signature: &Signature) -> Self {
        Self {
            inputs: signature.inputs.iter().map(|_| Arena::default()).collect(),
            batch_inputs: signature.batch_inputs.iter().map(|_| Arena::default()).collect(),
        }
    }
}

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
    host_policy: &str,
    arenas: &'data mut Arenas,
) -> Result<Values<'data>, Status> {
    let mut values = Values::new();
    let environment = session.environment();
    for (plan, arena) in signature.inputs.iter().zip(&mut arenas.inputs) {
        let Some(parts) = parts(plan, requests, host_policy)? else { continue };
        let shape = joint_shape(plan, &parts, requests, signature.batched.then_some(total))?;
        let value = match plan.datatype.byte_size() {
            None => Value::strings(environment, &shape, &host_parts(plan, &parts)?)?,
            Some(size) => {
                let data = contiguous(plan, &parts, &shape, size, arena)?;
                Value::borrowed(environment, plan.datatype, &shape, data)?
            }
        };
        values.push((plan.index, value));
    }
    for (plan, arena) in signature.batch_inputs.iter().zip(&mut arenas.batch_inputs) {
        let (shape, elements) = describe(plan, requests, arena)?;
        for &index in &plan.indices {
            let elements = Region::from(elements);
            let value = Value::borrowed(environment, plan.datatype, &shape, elements)?;
            values.push((index, value));
        }
    }
    Ok(values)
}

/// The input of every request, or `None` if all of them left it out.
fn parts<'data>(
    plan: &InputPlan,
    requests: &'data [PendingRequest],
    host_policy: &str,
) -> Result<Option<Parts<'data>>, Status> {
    let found = requests.iter().filter_map(|pending| pending.request().input(&plan.name));
    let parts: Parts<'data> = found.map(|tensor| Part::new(tensor, host_policy)).collect();
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

/// The shape of all elements in one dimension.
fn flat_shape(plan: &InputPlan, parts: &Parts<'_>) -> Result<Shape, Status> {
    let counts = parts.iter().map(|part| part.tensor.shape.element_count());
    let count = counts.into_iter().try_fold(0_u64, u64::checked_add);
    let count = count.and_then(|count| i64::try_from(count).ok());
    new_shape(plan, &[count.ok_or_else(|| mismatch(plan, "is too large"))?])
}

/// The shape of parts that differ in their number of rows at most.
fn batch_shape(
    plan: &InputPlan,
    parts: &Parts<'_>,
    requests: &[PendingRequest],
    total: u64,
) -> Result<Shape, Status> {
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

fn new_shape(plan: &InputPlan, dims: &[i64]) -> Result<Shape, Status> {
    Shape::new(dims).map_err(|error| mismatch(plan, &error.to_string()))
}

/// The bytes of all parts, one behind the other: where they are if they lie so
/// at an address that suits their elements, in the arena otherwise.
///
/// A single part always lies so. Of several, the states of sequences do, whose
/// last requests were rows of one batch in this order.
fn contiguous<'data>(
    plan: &InputPlan,
    parts: &Parts<'data>,
    shape: &Shape,
    element_size: usize,
    arena: &'data mut Arena,
) -> Result<Region<'data>, Status> {
    let host = host_parts(plan, parts)?;
    let wrong_size = || mismatch(plan, "has another size than its shape says");
    if host.len() > 1 {
        for (part, Part { tensor, .. }) in host.iter().zip(parts) {
            if tensor.shape.byte_size(plan.datatype) != u64::try_from(part.len()).ok() {
                return Err(wrong_size());
            }
        }
    }
    if let Some(region) = Region::of_neighbours(&host)
        && region.is_aligned(element_size)
    {
        return Ok(region);
    }
    let byte_size = shape
        .byte_size(plan.datatype)
        .and_then(|size| usize::try_from(size).ok())
        .ok_or_else(|| mismatch(plan, "is too large"))?;
    let mut rest = arena.bytes(byte_size);
    for part in host {
        let (place, behind) = rest.split_at_mut_checked(part.len()).ok_or_else(wrong_size)?;
        place.copy_from_slice(part);
        rest = behind;
    }
    // What is left over would be the bytes of an earlier batch.
    if !rest.is_empty() {
        return Err(wrong_size());
    }
    Ok(Region::from(&*arena.bytes(byte_size)))
}

/// The bytes of each part, which must be where the CPU can read them.
fn host_parts<'data>(
    plan: &InputPlan,
    parts: &Parts<'data>,
) -> Result<SmallVec<[&'data [u8]; 8]>, Status> {
    let host = |part: &Part<'data>| part.data.host().map(|bytes| &bytes[..]);
    parts
        .iter()
        .map(|part| host(part).ok_or_else(|| mismatch(plan, "is not in CPU memory")))
        .collect()
}

fn mismatch(plan: &InputPlan, reason: &str) -> Status {
    Status::internal(format!("input '{}' {reason}", plan.name))
}

/// A tensor made of the requests' shapes, with its elements.
fn describe<'data>(
    plan: &BatchInputPlan,
    requests: &[PendingRequest],
    arena: &'data mut Arena,
) -> Result<(Shape, &'data [u8]), Status> {
    let wrong =
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
    let shape = batch_input::tensor_shape(plan.kind, &shapes).map_err(wrong)?;
    let byte_size = shape.byte_size(plan.datatype).and_then(|size| usize::try_from(size).ok());
    let byte_size = byte_size.ok_or_else(|| wrong(BatchInputError::TooLarge))?;
    batch_input::write_elements(plan.kind, plan.datatype, &shapes, arena.bytes(byte_size))
        .map_err(wrong)?;
    Ok((shape, arena.bytes(byte_size)))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use galatea_tensor::DataType;

    use super::*;

    const ROW_BYTES: usize = 8;

    fn plan() -> InputPlan {
        InputPlan {
            name: String::from("STATE"),
            datatype: DataType::Fp32,
            index: 0,
            layout: InputLayout::Rows,
            is_state: true,
        }
    }

    /// A row of two numbers over these bytes.
    fn row(data: Bytes) -> InputTensor {
        let shape = Shape::new(&[1, 2]).unwrap();
        let data = Buffer::from_bytes(data);
        InputTensor { name: String::from("STATE"), datatype: DataType::Fp32, shape, data }
    }

    /// Where the rows of a batch end up.
    #[derive(Debug, PartialEq, Eq)]
    enum Placed {
        /// Where this row was: nothing was copied.
        InPlaceOf(usize),
        /// In the arena, one behind the other.
        Gathered,
    }

    fn place(rows: &[InputTensor]) -> Placed {
        let mut arena = Arena::default();
        let start = start(rows, &mut arena).unwrap();
        let is_at = |row: &InputTensor| row.data.host().unwrap().as_ptr().addr() == start;
        if let Some(index) = rows.iter().position(is_at) {
            return Placed::InPlaceOf(index);
        }
        let expected = rows.iter().flat_map(|row| row.data.host().unwrap().to_vec());
        let gathered = arena.bytes(rows.len() * ROW_BYTES);
        assert_eq!(start, gathered.as_ptr().addr());
        assert_eq!(gathered.to_vec(), expected.collect::<Vec<u8>>());
        Placed::Gathered
    }

    /// The address that the library is given for a batch of these rows.
    fn start(rows: &[InputTensor], arena: &mut Arena) -> Result<usize, Status> {
        let shape = Shape::new(&[i64::try_from(rows.len()).unwrap(), 2]).unwrap();
        let parts: Parts<'_> = rows.iter().map(|row| Part::new(row, "cpu")).collect();
        let region = contiguous(&plan(), &parts, &shape, 4, arena)?;
        assert_eq!(region.byte_size(), rows.len() * ROW_BYTES);
        Ok(region.start().addr())
    }

    /// The rows of a tensor of the library's, as states are handed on.
    fn rows_of_one_tensor(count: usize) -> Vec<InputTensor> {
        let count = u8::try_from(count * ROW_BYTES).unwrap();
        let tensor = Bytes::from((0..count).collect::<Vec<u8>>());
        let ranges = (0..tensor.len()).step_by(ROW_BYTES).map(|start| start..start + ROW_BYTES);
        ranges.map(|range| row(tensor.slice(range))).collect()
    }

    #[test]
    fn states_that_lie_side_by_side_are_not_copied() {
        let rows = rows_of_one_tensor(4);
        assert_eq!(place(&rows), Placed::InPlaceOf(0));
        assert_eq!(place(&rows[1..3]), Placed::InPlaceOf(0));
        assert_eq!(place(&rows[3..]), Placed::InPlaceOf(0));
    }

    #[test]
    fn an_instance_gets_what_is_for_its_host_policy() {
        let mut row = row(Bytes::from_static(&[1; ROW_BYTES]));
        let own = Buffer::from_bytes(Bytes::from_static(&[2; ROW_BYTES]));
        row.data = row.data.with_host_policies(vec![(String::from("far"), own)]);
        for (policy, expected) in [("cpu", 1), ("far", 2)] {
            let parts: Parts<'_> = [Part::new(&row, policy)].into_iter().collect();
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
            assert_eq!(place(&of(order)), Placed::Gathered, "{order:?}");
        }
        // The second sequence begins, so its state is somewhere else.
        let mut mixed = of(&[0, 1, 2]);
        mixed[1] = row(Bytes::from(vec![9; ROW_BYTES]));
        assert_eq!(place(&mixed), Placed::Gathered);
    }

    #[test]
    fn rows_at_an_odd_address_are_gathered() {
        let bytes = Bytes::from(vec![3; 3 * ROW_BYTES]);
        let start = bytes.as_ptr().align_offset(4) + 1;
        let rows = [start, start + ROW_BYTES].map(|at| row(bytes.slice(at..at + ROW_BYTES)));
        assert_eq!(place(&rows), Placed::Gathered);
        assert_eq!(place(&rows[..1]), Placed::Gathered);
    }

    /// Together these two have as many bytes as they should.
    #[test]
    fn neighbours_of_wrong_sizes_are_refused() {
        let bytes = Bytes::from(vec![0; 2 * ROW_BYTES]);
        let rows = [row(bytes.slice(..4)), row(bytes.slice(4..))];
        assert_eq!(
            start(&rows, &mut Arena::default()).unwrap_err().message(),
            "input 'STATE' has another size than its shape says"
        );
    }
}
