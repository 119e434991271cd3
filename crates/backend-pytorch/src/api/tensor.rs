//! Tensors: inputs in a request's memory, and handles to tensors in the library's memory.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr;
use std::slice;
use std::sync::Arc;

use galatea_infer::Status;
use galatea_runtime::ByteRegion;
use galatea_tensor::{DataType, Shape};
use smallvec::SmallVec;

use super::functions::{RawTensor, TorchStatus};
use super::library::Library;
use crate::element;

/// The library's number for the CPU device type.
pub(super) const CPU: i32 = 0;

/// The index of the only device of that type.
const CPU_INDEX: i32 = 0;

/// A tensor's sizes or strides.
pub(super) type TensorSizes = SmallVec<[i64; 6]>;

/// A tensor over the caller's memory, which lives at least as long as `'data`.
pub(crate) struct BorrowedTensor<'data> {
    number: i32,
    dims: TensorSizes,
    data: ByteRegion<'data>,
}

impl<'data> BorrowedTensor<'data> {
    /// Creates a tensor whose elements are `data`. The elements are not copied.
    pub(crate) fn new(
        datatype: DataType,
        shape: &Shape,
        data: ByteRegion<'data>,
    ) -> Result<Self, Status> {
        let expected = shape.byte_size(datatype).and_then(|size| usize::try_from(size).ok());
        let aligned = datatype.byte_size().is_some_and(|size| data.is_aligned(size));
        match element::number(datatype) {
            Some(number) if aligned && expected == Some(data.byte_size()) => {
                Ok(Self { number, dims: SmallVec::from_slice(shape.dims()), data })
            }
            Some(_) | None => Err(Status::internal(format!(
                "{} bytes are no aligned tensor of {datatype} with shape {shape}",
                data.byte_size()
            ))),
        }
    }

    pub(crate) fn dims(&self) -> &[i64] {
        &self.dims
    }

    pub(super) fn region(&self) -> Range<usize> {
        self.data.addresses()
    }

    /// Creates the library's tensor, which must not outlive the data.
    pub(super) fn handle(&self, library: &Arc<Library>) -> Result<TensorHandle, Status> {
        let Self { number, dims, data } = self;
        let strides = contiguous_strides(dims);
        // An empty region may have any address, even an unaligned one.
        let address = if data.byte_size() == 0 {
            ptr::dangling_mut::<u64>().cast::<c_void>()
        } else {
            data.start().cast_mut().cast::<c_void>()
        };
        TensorHandle::create(library, |out| {
            // SAFETY: the memory holds exactly the elements of the shape and is aligned for them.
            // The library takes a pointer to mutable memory but doesn't write to a run's inputs.
            // TensorSizes and strides are copied.
            unsafe {
                (library.functions().tensor_from_blob)(
                    address,
                    rank(dims),
                    dims.as_ptr(),
                    strides.as_ptr(),
                    0,
                    *number,
                    CPU,
                    CPU_INDEX,
                    out,
                )
            }
        })
    }
}

/// A library tensor, which the handle owns.
pub(super) struct TensorHandle {
    raw: *mut RawTensor,
    library: Arc<Library>,
}

// SAFETY: tensors are not bound to a thread, and count references atomically.
unsafe impl Send for TensorHandle {}

impl TensorHandle {
    /// A handle for an object that the library created for the caller; `None` for null.
    ///
    /// # Safety
    ///
    /// The caller must own the object, or the pointer must be null.
    pub(super) unsafe fn of(library: &Arc<Library>, raw: *mut RawTensor) -> Option<Self> {
        (!raw.is_null()).then(|| Self { raw, library: library.clone() })
    }

    fn create(
        library: &Arc<Library>,
        create: impl FnOnce(*mut *mut RawTensor) -> TorchStatus,
    ) -> Result<Self, Status> {
        let mut raw = ptr::null_mut();
        let status = create(&raw mut raw);
        // SAFETY: a constructor stores null or an object that is the caller's.
        let handle = unsafe { Self::of(library, raw) };
        handle.filter(|_| status == 0).ok_or_else(|| Status::internal("PyTorch made no tensor"))
    }

    pub(super) const fn as_ptr(&self) -> *mut RawTensor {
        self.raw
    }

    pub(super) const fn library(&self) -> &Arc<Library> {
        &self.library
    }

    /// Creates another handle for the same tensor.
    pub(super) fn another(&self) -> Result<Self, Status> {
        Self::create(&self.library, |out| {
            // SAFETY: the tensor is alive, and the out pointer is valid.
            unsafe { (self.library.functions().new_handle)(self.raw, out) }
        })
    }

    /// Releases ownership of the object without freeing it.
    pub(super) fn into_raw(self) -> *mut RawTensor {
        let raw = self.raw;
        let mut this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the value is not used again, and its other field is dropped once, here.
        unsafe { ptr::drop_in_place(&raw mut this.library) };
        raw
    }

    /// Queries the library about this tensor.
    pub(super) fn ask<T: Copy>(
        &self,
        initial: T,
        question: unsafe extern "C" fn(*mut RawTensor, *mut T) -> TorchStatus,
    ) -> Result<T, Status> {
        let mut answer = initial;
        // SAFETY: the tensor is alive, and the out pointer is valid.
        let status = unsafe { question(self.raw, &raw mut answer) };
        if status == 0 { Ok(answer) } else { Err(Status::internal("PyTorch can't read an output")) }
    }

    pub(super) fn list(
        &self,
        question: unsafe extern "C" fn(*mut RawTensor, *mut *mut i64) -> TorchStatus,
    ) -> Result<TensorSizes, Status> {
        let rank = usize::try_from(self.ask(0, self.library.functions().dim)?).unwrap_or(0);
        let numbers = self.ask(ptr::null_mut(), question)?;
        if numbers.is_null() || rank == 0 {
            return Ok(TensorSizes::new());
        }
        // SAFETY: the tensor has as many sizes and strides as dimensions, and keeps them.
        Ok(TensorSizes::from_slice(unsafe { slice::from_raw_parts(numbers, rank) }))
    }

    /// The same elements in row-major order.
    pub(super) fn contiguous(self, number: i32, dims: &[i64]) -> Result<Self, Status> {
        let functions = self.library.functions();
        let expected = contiguous_strides(dims);
        let strides = self.list(functions.strides)?;
        let is_empty = dims.contains(&0);
        let same = dims.iter().zip(strides.iter().zip(&expected));
        if is_empty || same.into_iter().all(|(&size, (one, other))| size == 1 || one == other) {
            return Ok(self);
        }
        let copy = Self::create(&self.library, |out| {
            // SAFETY: sizes and strides are copied, and the out pointer is valid.
            unsafe {
                let make = functions.empty_strided;
                make(rank(dims), dims.as_ptr(), expected.as_ptr(), number, CPU, CPU_INDEX, out)
            }
        })?;
        // SAFETY: both tensors are alive and have the same sizes.
        let status = unsafe { (functions.copy)(copy.raw, self.raw, 0) };
        if status == 0 { Ok(copy) } else { Err(Status::internal("PyTorch can't copy an output")) }
    }
}

impl Drop for TensorHandle {
    fn drop(&mut self) {
        // SAFETY: the handle owns the object, and only this frees it. A failure can't be handled
        // here.
        let _ = unsafe { (self.library.functions().delete_tensor)(self.raw) };
    }
}

/// The distances between elements in row-major order.
fn contiguous_strides(dims: &[i64]) -> TensorSizes {
    let mut strides = TensorSizes::from_elem(1, dims.len());
    let mut stride = 1_i64;
    for (place, &size) in strides.iter_mut().zip(dims).rev() {
        *place = stride;
        stride = stride.saturating_mul(size.max(1));
    }
    strides
}

fn rank(dims: &[i64]) -> i64 {
    i64::try_from(dims.len()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_are_those_of_rows() {
        assert_eq!(contiguous_strides(&[2, 3, 4]).as_slice(), [12, 4, 1]);
        assert_eq!(contiguous_strides(&[2, 0, 4]).as_slice(), [4, 4, 1]);
        assert!(contiguous_strides(&[]).is_empty());
    }
}
