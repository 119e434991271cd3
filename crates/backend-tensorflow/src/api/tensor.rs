//! Tensors, which own their memory.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use bytes::Bytes;
use galatea_infer::Status;
use galatea_runtime::ByteRegion;
use galatea_tensor::{DataType, Shape};

use super::functions::{Deallocator, RawTensor};
use super::library::{ALIGNMENT, Library};
use super::status::missing;
use super::string_array::StringArray;
use crate::element;
use crate::graph::InputSharing;
use crate::validation::RANK_MAX;

/// The minimum size of an input that is used in place although a variable may keep it. A smaller
/// input is copied, because it would keep the memory of the whole request alive.
const KEPT_BYTES_MIN: usize = 1 << 16;

/// A library tensor. Its memory belongs to the library. If the tensor is an input that is used in
/// place, the memory belongs to a request, and the tensor is one of its owners.
pub(crate) struct TfTensor {
    raw: NonNull<RawTensor>,
    pub(super) library: Arc<Library>,
}

// SAFETY: tensors are not bound to a thread, and any thread may delete them.
unsafe impl Send for TfTensor {}

impl TfTensor {
    /// Creates a tensor with the elements in `data`. The elements stay in place if the graph
    /// permits it, and if their memory can be owned and is aligned as the library requires.
    /// Otherwise they are copied once.
    pub(crate) fn of_elements(
        library: &Arc<Library>,
        datatype: DataType,
        shape: &Shape,
        data: ByteRegion<'_>,
        sharing: InputSharing,
    ) -> Result<Self, Status> {
        let byte_size = data.byte_size();
        let expected = shape.byte_size(datatype).and_then(|size| usize::try_from(size).ok());
        let number = element::number(datatype).filter(|_| expected == Some(byte_size));
        let number = number.ok_or_else(|| {
            Status::internal(format!("{byte_size} bytes are no {datatype} of shape {shape}"))
        })?;
        let permitted = match sharing {
            InputSharing::InPlace => byte_size > 0,
            InputSharing::LargeInPlace => byte_size >= KEPT_BYTES_MIN,
            InputSharing::Copied => false,
        };
        let fits = permitted && data.is_aligned(ALIGNMENT);
        match fits.then(|| data.owner()).flatten() {
            Some(owner) => Self::in_place(library, number, shape, owner),
            None => Self::copied(library, number, shape, data),
        }
    }

    /// Creates a string tensor with copies of the elements in all `parts`.
    pub(crate) fn of_strings(
        library: &Arc<Library>,
        shape: &Shape,
        parts: &[&[u8]],
    ) -> Result<Self, Status> {
        rank_of(shape)?;
        let array = StringArray::new(library, shape, parts)?;
        let number = element::STRING;
        let (data, byte_size) = (array.as_ptr().cast::<c_void>(), array.byte_size());
        let argument = Box::into_raw(Box::new(array)).cast::<c_void>();
        // SAFETY: the array has exactly the shape's strings at this address, aligned as the library
        // requires, and lives until the deallocator drops it.
        unsafe { Self::over(library, number, shape, (data, byte_size), (free_strings, argument)) }
    }

    /// Creates a tensor over bytes and makes the tensor one of their owners.
    fn in_place(
        library: &Arc<Library>,
        number: c_int,
        shape: &Shape,
        owner: Bytes,
    ) -> Result<Self, Status> {
        rank_of(shape)?;
        let (data, byte_size) = (owner.as_ptr().cast_mut().cast::<c_void>(), owner.len());
        let argument = Box::into_raw(Box::new(owner)).cast::<c_void>();
        // SAFETY: the bytes are exactly the shape's elements, aligned as the library requires. They
        // never change, and live until the deallocator drops them. The library takes a mutable
        // pointer, but only operators write to memory that it didn't allocate that `GraphFacts`
        // finds. The inputs of their graphs are copied.
        unsafe { Self::over(library, number, shape, (data, byte_size), (free_bytes, argument)) }
    }

    /// Creates a tensor over memory that the deallocator frees with its argument.
    ///
    /// # Safety
    ///
    /// The memory must have the specified size, contain the shape's elements, and be valid until
    /// the deallocator is called.
    unsafe fn over(
        library: &Arc<Library>,
        number: c_int,
        shape: &Shape,
        (data, byte_size): (*mut c_void, usize),
        (free, argument): (Deallocator, *mut c_void),
    ) -> Result<Self, Status> {
        let (dims, rank) = (shape.dims().as_ptr(), rank_of(shape)?);
        // SAFETY: required by this function's own contract; the dimensions are copied.
        let raw = unsafe {
            (library.functions().TF_NewTensor)(number, dims, rank, data, byte_size, free, argument)
        };
        // The library refuses only sizes that contradict the shape, and then frees the memory.
        let raw = NonNull::new(raw).ok_or_else(|| missing("tensor"))?;
        Ok(Self { raw, library: library.clone() })
    }

    /// Creates a tensor in the library's memory with a copy of the bytes.
    fn copied(
        library: &Arc<Library>,
        number: c_int,
        shape: &Shape,
        data: ByteRegion<'_>,
    ) -> Result<Self, Status> {
        let (dims, rank, byte_size) = (shape.dims().as_ptr(), rank_of(shape)?, data.byte_size());
        let functions = library.functions();
        // SAFETY: the dimensions are copied, and the size is that of their elements.
        let raw = unsafe { (functions.TF_AllocateTensor)(number, dims, rank, byte_size) };
        let raw = NonNull::new(raw).ok_or_else(|| missing("memory for a tensor"))?;
        let tensor = Self { raw, library: library.clone() };
        if byte_size > 0 {
            let target = tensor.data().filter(|_| tensor.byte_size() >= byte_size);
            let target = target.ok_or_else(|| missing("memory for a tensor"))?;
            // SAFETY: both have this many bytes and don't overlap, because the target is new.
            unsafe { ptr::copy_nonoverlapping(data.start(), target.as_ptr(), byte_size) };
        }
        Ok(tensor)
    }

    /// Takes ownership of a tensor that a run returned.
    ///
    /// # Safety
    ///
    /// `raw` must be null or owned by the caller.
    pub(super) unsafe fn output(raw: *mut RawTensor, library: &Arc<Library>) -> Option<Self> {
        Some(Self { raw: NonNull::new(raw)?, library: library.clone() })
    }

    pub(super) const fn as_ptr(&self) -> *mut RawTensor {
        self.raw.as_ptr()
    }

    /// The library's number for the tensor's type.
    pub(super) fn number(&self) -> c_int {
        // SAFETY: the tensor is alive.
        unsafe { (self.library.functions().TF_TensorType)(self.as_ptr()) }
    }

    pub(super) fn shape(&self) -> Result<Shape, Status> {
        let functions = self.library.functions();
        // SAFETY: the tensor is alive, and each index is less than the number of dimensions.
        let dims: Vec<i64> = unsafe {
            let rank = (functions.TF_NumDims)(self.as_ptr());
            (0..rank).map(|index| (functions.TF_Dim)(self.as_ptr(), index)).collect()
        };
        Shape::new(&dims).map_err(|error| Status::internal(error.to_string()))
    }

    pub(super) fn byte_size(&self) -> usize {
        // SAFETY: the tensor is alive.
        unsafe { (self.library.functions().TF_TensorByteSize)(self.as_ptr()) }
    }

    /// The address of the elements; `None` if the tensor may have no elements.
    pub(super) fn data(&self) -> Option<NonNull<u8>> {
        // SAFETY: the tensor is alive.
        let data = unsafe { (self.library.functions().TF_TensorData)(self.as_ptr()) };
        NonNull::new(data.cast())
    }
}

impl Drop for TfTensor {
    fn drop(&mut self) {
        // SAFETY: the tensor is alive, and only this deletes it.
        unsafe { (self.library.functions().TF_DeleteTensor)(self.as_ptr()) };
    }
}

fn rank_of(shape: &Shape) -> Result<c_int, Status> {
    let rank = Some(shape.rank()).filter(|&rank| rank <= RANK_MAX);
    rank.and_then(|rank| c_int::try_from(rank).ok()).ok_or_else(|| {
        let (rank, most) = (shape.rank(), RANK_MAX);
        Status::invalid_argument(format!(
            "a tensor has {rank} dimensions, but TensorFlow supports at most {most}"
        ))
    })
}

/// Releases the bytes of an input that was used in place.
///
/// # Safety
///
/// The argument is a boxed `Bytes`, and the function is called once.
unsafe extern "C" fn free_bytes(_: *mut c_void, _: usize, argument: *mut c_void) {
    // SAFETY: required by this function's own contract.
    drop(unsafe { Box::from_raw(argument.cast::<Bytes>()) });
}

/// Frees the strings of an input.
///
/// # Safety
///
/// The argument is a boxed `StringArray`, and the function is called once.
unsafe extern "C" fn free_strings(_: *mut c_void, _: usize, argument: *mut c_void) {
    // SAFETY: required by this function's own contract.
    drop(unsafe { Box::from_raw(argument.cast::<StringArray>()) });
}
