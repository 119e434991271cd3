//! Tensor shapes from C.

use galatea_infer::Status;
use galatea_tensor::Shape;

/// Converts C's arguments to a tensor's shape.
///
/// # Errors
///
/// `InvalidArgument`; the message contains the tensor's name.
///
/// # Safety
///
/// `shape` must be null or valid for reads of `dims_count` numbers.
pub(crate) unsafe fn shape_from_c(
    shape: *const i64,
    dims_count: u32,
    tensor: &str,
) -> Result<Shape, Status> {
    let count = usize::try_from(dims_count)
        .map_err(|_| Status::invalid_argument("dims_count is too large"))?;
    // SAFETY: guaranteed by the caller.
    let dims = unsafe { galatea_c_objects::pointer::slice(shape, count, "shape")? };
    Shape::new(dims)
        .map_err(|error| Status::invalid_argument(format!("tensor '{tensor}': {error}")))
}
