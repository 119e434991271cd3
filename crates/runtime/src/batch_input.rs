//! Batch inputs: tensors that the server computes from a batch (`batch_input`).
//!
//! Each tensor describes the shapes of one input in the batch's requests, including the batch
//! dimension. The computation only needs the shapes and doesn't involve the library. The names are
//! those in Triton's user guide on ragged batching.

use galatea_config::BatchInputKind;
use galatea_tensor::{DataType, Shape};
use smallvec::SmallVec;

/// The size of an INT32 or FP32 element in bytes.
const ELEMENT_SIZE: usize = 4;

/// Encodes a number as an element; `None` if the type can't represent the number.
type Encoder = fn(u64) -> Option<[u8; ELEMENT_SIZE]>;

/// The reason why the tensor can't be computed for a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BatchInputError {
    /// A shape has no batch dimension.
    NoBatchDimension,
    /// The shapes have different numbers of dimensions.
    DifferentRanks,
    /// The type can't represent a number.
    TooLarge,
    /// The type is neither INT32 nor FP32.
    Datatype(DataType),
    /// The memory and the tensor differ in size.
    Memory,
}

impl std::fmt::Display for BatchInputError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoBatchDimension => f.write_str("describes a shape without dimensions"),
            Self::DifferentRanks => {
                f.write_str("describes shapes with different numbers of dimensions")
            }
            Self::TooLarge => f.write_str("would hold a number that is too large for its datatype"),
            Self::Datatype(datatype) => write!(f, "can't have the datatype {datatype}"),
            Self::Memory => f.write_str("has another size than its shape says"),
        }
    }
}

/// The shape of the tensor that describes a batch of requests with the shapes `shapes`.
pub(crate) fn tensor_shape(
    kind: BatchInputKind,
    shapes: &[&Shape],
) -> Result<Shape, BatchInputError> {
    use BatchInputKind as Kind;
    let requests = count(shapes.len())?;
    let mut dims: SmallVec<[u64; 2]> = SmallVec::new();
    match kind {
        Kind::ElementCount | Kind::AccumulatedElementCount => dims.push(requests),
        Kind::AccumulatedElementCountWithZero => dims.push(requests.saturating_add(1)),
        Kind::MaxElementCountAsShape => {
            dims.push(shapes.iter().map(|shape| shape.element_count()).max().unwrap_or(0));
        }
        Kind::ItemShape => {
            let rank = item_rank(shapes)?;
            dims.extend([rows(shapes)?, rank]);
        }
        Kind::ItemShapeFlatten => {
            let mut total = 0_u64;
            for shape in shapes {
                let (rows, item) = rows_and_item(shape)?;
                let values = rows.checked_mul(count(item.len())?);
                total =
                    values.and_then(|n| total.checked_add(n)).ok_or(BatchInputError::TooLarge)?;
            }
            dims.push(total);
        }
    }
    let dims: Result<SmallVec<[i64; 2]>, _> = dims.into_iter().map(i64::try_from).collect();
    let dims = dims.map_err(|_| BatchInputError::TooLarge)?;
    Shape::new(&dims).map_err(|_| BatchInputError::TooLarge)
}

/// Writes the tensor's elements. `memory` must have the size that [`tensor_shape`] determines.
pub(crate) fn write_elements(
    kind: BatchInputKind,
    datatype: DataType,
    shapes: &[&Shape],
    memory: &mut [u8],
) -> Result<(), BatchInputError> {
    use BatchInputKind as Kind;
    let mut elements = ElementWriter { encode: encoder(datatype)?, rest: memory };
    match kind {
        Kind::ElementCount => {
            shapes.iter().try_for_each(|shape| elements.push(shape.element_count()))?;
        }
        Kind::AccumulatedElementCount => push_accumulated(&mut elements, shapes)?,
        Kind::AccumulatedElementCountWithZero => {
            elements.push(0)?;
            push_accumulated(&mut elements, shapes)?;
        }
        // Only the shape matters, but the model must not see bytes from an earlier batch.
        Kind::MaxElementCountAsShape => std::mem::take(&mut elements.rest).fill(0),
        Kind::ItemShape | Kind::ItemShapeFlatten => push_items(&mut elements, shapes)?,
    }
    if elements.rest.is_empty() { Ok(()) } else { Err(BatchInputError::Memory) }
}

fn push_accumulated(
    elements: &mut ElementWriter<'_>,
    shapes: &[&Shape],
) -> Result<(), BatchInputError> {
    let mut total = 0_u64;
    for shape in shapes {
        total = total.checked_add(shape.element_count()).ok_or(BatchInputError::TooLarge)?;
        elements.push(total)?;
    }
    Ok(())
}

/// Pushes the shape of each batch element, without the batch dimension.
fn push_items(elements: &mut ElementWriter<'_>, shapes: &[&Shape]) -> Result<(), BatchInputError> {
    for shape in shapes {
        let (rows, item) = rows_and_item(shape)?;
        // Without other dimensions there is nothing to push, however large the batch is.
        let rows = if item.is_empty() { 0 } else { rows };
        for _ in 0..rows {
            for &dim in item {
                elements.push(u64::try_from(dim).map_err(|_| BatchInputError::TooLarge)?)?;
            }
        }
    }
    Ok(())
}

/// The size of the batch dimension, which is the first one, and the other dimensions.
fn rows_and_item(shape: &Shape) -> Result<(u64, &[i64]), BatchInputError> {
    let (&rows, item) = shape.dims().split_first().ok_or(BatchInputError::NoBatchDimension)?;
    Ok((u64::try_from(rows).map_err(|_| BatchInputError::TooLarge)?, item))
}

fn rows(shapes: &[&Shape]) -> Result<u64, BatchInputError> {
    let mut total = 0_u64;
    for shape in shapes {
        let (rows, _) = rows_and_item(shape)?;
        total = total.checked_add(rows).ok_or(BatchInputError::TooLarge)?;
    }
    Ok(total)
}

/// The number of dimensions of each batch element.
fn item_rank(shapes: &[&Shape]) -> Result<u64, BatchInputError> {
    let Some(first) = shapes.first() else { return Ok(0) };
    if shapes.iter().any(|shape| shape.rank() != first.rank()) {
        return Err(BatchInputError::DifferentRanks);
    }
    count(first.rank().checked_sub(1).ok_or(BatchInputError::NoBatchDimension)?)
}

fn count(length: usize) -> Result<u64, BatchInputError> {
    u64::try_from(length).map_err(|_| BatchInputError::TooLarge)
}

/// Writes elements one after another.
struct ElementWriter<'a> {
    encode: Encoder,
    rest: &'a mut [u8],
}

impl ElementWriter<'_> {
    fn push(&mut self, value: u64) -> Result<(), BatchInputError> {
        let bytes = (self.encode)(value).ok_or(BatchInputError::TooLarge)?;
        let rest = std::mem::take(&mut self.rest);
        let (target, rest) =
            rest.split_first_chunk_mut::<ELEMENT_SIZE>().ok_or(BatchInputError::Memory)?;
        *target = bytes;
        self.rest = rest;
        Ok(())
    }
}

fn encoder(datatype: DataType) -> Result<Encoder, BatchInputError> {
    match datatype {
        DataType::Int32 => Ok(int32),
        DataType::Fp32 => Ok(fp32),
        other => Err(BatchInputError::Datatype(other)),
    }
}

fn int32(value: u64) -> Option<[u8; ELEMENT_SIZE]> {
    i32::try_from(value).ok().map(i32::to_ne_bytes)
}

/// The nearest single-precision number.
fn fp32(value: u64) -> Option<[u8; ELEMENT_SIZE]> {
    // Both halves are exact, so only the sum is rounded.
    let high = u16::try_from(value >> 16).ok()?;
    let low = u16::try_from(value & 0xffff).ok()?;
    Some((f32::from(high) * 65_536.0 + f32::from(low)).to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes(dims: &[&[i64]]) -> Vec<Shape> {
        dims.iter().map(|dims| Shape::new(dims).unwrap()).collect()
    }

    fn describe(
        kind: BatchInputKind,
        datatype: DataType,
        dims: &[&[i64]],
    ) -> Result<(Vec<i64>, Vec<u8>), BatchInputError> {
        let shapes = shapes(dims);
        let shapes: Vec<&Shape> = shapes.iter().collect();
        let shape = tensor_shape(kind, &shapes)?;
        // All previous contents must be overwritten.
        let mut memory = vec![0xaa; 4 * usize::try_from(shape.element_count()).unwrap()];
        write_elements(kind, datatype, &shapes, &mut memory)?;
        Ok((shape.dims().to_vec(), memory))
    }

    /// Checks the shape and the values with both datatypes.
    fn check(kind: BatchInputKind, dims: &[&[i64]], expected_dims: &[i64], expected: &[i32]) {
        let integers = expected.iter().flat_map(|value| value.to_ne_bytes()).collect();
        let floats = expected.iter().flat_map(|&value| (value as f32).to_ne_bytes()).collect();
        let described = describe(kind, DataType::Int32, dims);
        assert_eq!(described, Ok((expected_dims.to_vec(), integers)), "{kind:?}");
        let described = describe(kind, DataType::Fp32, dims);
        assert_eq!(described, Ok((expected_dims.to_vec(), floats)), "{kind:?}");
    }

    #[test]
    fn items_of_one_dimension() {
        use BatchInputKind as Kind;
        let batch: &[&[i64]] = &[&[1, 2], &[1, 4], &[1, 1], &[1, 3]];
        check(Kind::ElementCount, batch, &[4], &[2, 4, 1, 3]);
        check(Kind::AccumulatedElementCount, batch, &[4], &[2, 6, 7, 10]);
        check(Kind::AccumulatedElementCountWithZero, batch, &[5], &[0, 2, 6, 7, 10]);
        check(Kind::MaxElementCountAsShape, batch, &[4], &[0, 0, 0, 0]);
        check(Kind::ItemShape, batch, &[4, 1], &[2, 4, 1, 3]);
        check(Kind::ItemShapeFlatten, batch, &[4], &[2, 4, 1, 3]);
    }

    #[test]
    fn several_dimensions_and_batch_elements() {
        use BatchInputKind as Kind;
        let batch: &[&[i64]] = &[&[2, 1, 2], &[1, 1, 2], &[1, 2, 2]];
        check(Kind::ElementCount, batch, &[3], &[4, 2, 4]);
        check(Kind::AccumulatedElementCount, batch, &[3], &[4, 6, 10]);
        check(Kind::AccumulatedElementCountWithZero, batch, &[4], &[0, 4, 6, 10]);
        check(Kind::MaxElementCountAsShape, batch, &[4], &[0, 0, 0, 0]);
        check(Kind::ItemShape, batch, &[4, 2], &[1, 2, 1, 2, 1, 2, 2, 2]);
        check(Kind::ItemShapeFlatten, batch, &[8], &[1, 2, 1, 2, 1, 2, 2, 2]);
    }

    #[test]
    fn requests_without_elements() {
        use BatchInputKind as Kind;
        let batch: &[&[i64]] = &[&[1, 0], &[1, 3], &[1, 0]];
        check(Kind::AccumulatedElementCountWithZero, batch, &[4], &[0, 0, 3, 3]);
        check(Kind::MaxElementCountAsShape, &[&[1, 0]], &[0], &[]);
        check(Kind::ItemShape, batch, &[3, 1], &[0, 3, 0]);
        check(Kind::ItemShape, &[&[2], &[1]], &[3, 0], &[]);
        check(Kind::ItemShapeFlatten, &[&[2], &[1]], &[0], &[]);
    }

    #[test]
    fn unsuitable_shapes_are_refused() {
        use BatchInputKind as Kind;
        let fails = |kind, dims: &[&[i64]], expected| {
            assert_eq!(describe(kind, DataType::Int32, dims), Err(expected));
        };
        fails(Kind::ItemShape, &[&[]], BatchInputError::NoBatchDimension);
        fails(Kind::ItemShapeFlatten, &[&[]], BatchInputError::NoBatchDimension);
        fails(Kind::ItemShape, &[&[1, 2], &[1, 2, 3]], BatchInputError::DifferentRanks);
        fails(Kind::ElementCount, &[&[1, 1 << 31]], BatchInputError::TooLarge);
        fails(
            Kind::AccumulatedElementCount,
            &[&[i64::MAX], &[i64::MAX]],
            BatchInputError::TooLarge,
        );
        assert_eq!(
            describe(Kind::ElementCount, DataType::Int64, &[&[1, 2]]),
            Err(BatchInputError::Datatype(DataType::Int64))
        );
        let shape = Shape::new(&[1, 2]).unwrap();
        for size in [0, 3, 5, 8] {
            let mut memory = vec![0; size];
            let described =
                write_elements(Kind::ElementCount, DataType::Int32, &[&shape], &mut memory);
            assert_eq!(described, Err(BatchInputError::Memory), "{size}");
        }
    }

    #[test]
    fn floats_are_rounded_once() {
        for value in [0, 1, 65_535, 65_536, 16_777_215, 16_777_217, 16_777_219, u32::MAX] {
            let expected = (value as f32).to_ne_bytes();
            assert_eq!(fp32(u64::from(value)), Some(expected), "{value}");
        }
        assert_eq!(fp32(1 << 32), None);
        assert_eq!(int32(1 << 31), None);
    }
}
