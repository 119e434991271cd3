//! Tensors: inputs in a request's memory, and outputs in the library's memory.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use bytes::Bytes;
use galatea_infer::Status;
use galatea_runtime::{ByteRegion, OutputData, OwnedRunOutput, SessionOutputs, overlaps_input};
use galatea_tensor::{DataType, Shape};
use smallvec::SmallVec;

use super::element;
use super::functions::{OvStatus, RawTensor};
use super::handle::Handle;
use super::library::{Api, Library};
use super::shape::OvShape;

/// The status of a call with a parameter that the library's C interface refuses.
const INVALID_PARAMETER: OvStatus = -14;

/// A tensor over the caller's memory, which lives at least as long as `'data`.
pub(crate) struct OvTensor<'data> {
    number: c_int,
    dims: SmallVec<[i64; 6]>,
    memory: ByteRegion<'data>,
}

impl<'data> OvTensor<'data> {
    /// Creates a tensor whose elements are `data`. The elements are not copied.
    pub(crate) fn borrowed(
        datatype: DataType,
        shape: &Shape,
        data: ByteRegion<'data>,
    ) -> Result<Self, Status> {
        let expected = shape.byte_size(datatype).and_then(|size| usize::try_from(size).ok());
        let aligned = datatype.byte_size().is_some_and(|size| data.is_aligned(size));
        let number = element::number(datatype);
        let (Some(number), true) = (number, expected == Some(data.byte_size()) && aligned) else {
            return Err(Status::internal(format!(
                "{} bytes are no aligned tensor of {datatype} with shape {shape}",
                data.byte_size()
            )));
        };
        let dims = SmallVec::from_slice(shape.dims());
        Ok(Self { number, dims, memory: data })
    }

    /// Creates the library's tensor, which must not be used after the data is gone.
    pub(super) fn handle(&self, library: &Library) -> Result<OwnedTensor, Status> {
        let Self { number, dims, memory } = self;
        // An empty region may have any address, even an unaligned one.
        let address = if memory.byte_size() == 0 {
            ptr::dangling_mut::<u64>().cast::<c_void>()
        } else {
            memory.start().cast_mut().cast::<c_void>()
        };
        let functions = library.api().functions();
        // SAFETY: the memory holds exactly the elements of the shape and is aligned for them. The
        // library takes a pointer to mutable memory but never writes to a request's inputs. The
        // shape is copied.
        let raw = unsafe {
            Handle::create(library.api(), functions.ov_tensor_free, "setting tensor data", |out| {
                let create = functions.ov_tensor_create_from_host_ptr;
                create(*number, OvShape::borrowed(dims), address, out)
            })?
        };
        Ok(OwnedTensor { raw })
    }

    /// The size of the elements in bytes.
    pub(super) const fn byte_size(&self) -> usize {
        self.memory.byte_size()
    }

    /// Returns true if the tensors have the same type and shape.
    pub(super) fn is_like(&self, number: c_int, dims: &[i64]) -> bool {
        self.number == number && *self.dims == *dims
    }

    /// A tensor of the same type and shape, with memory of its own, and these properties.
    pub(super) fn like(
        &self,
        library: &Library,
    ) -> Result<(OwnedTensor, c_int, SmallVec<[i64; 6]>), Status> {
        let tensor = OwnedTensor::new(library, self.number, &self.dims)?;
        Ok((tensor, self.number, self.dims.clone()))
    }

    /// Copies the elements to a tensor of the same type and shape, and returns their addresses.
    pub(super) fn copy_to(
        &self,
        library: &Library,
        to: &OwnedTensor,
    ) -> Result<Range<usize>, Status> {
        let size = self.memory.byte_size();
        if size == 0 {
            return Ok(0..0);
        }
        let address = to.address(library.api())?.cast_mut();
        // SAFETY: the other tensor has the shape and the type of this one, so as many bytes, in
        // memory of its own. The caller's memory stays valid during the call.
        unsafe { ptr::copy_nonoverlapping(self.memory.start(), address, size) };
        Ok(address.addr()..address.addr().saturating_add(size))
    }

    pub(super) fn region(&self) -> Range<usize> {
        self.memory.addresses()
    }

    /// The first dimension.
    pub(super) fn rows(&self) -> usize {
        self.dims.first().map_or(0, |&rows| usize::try_from(rows).unwrap_or(0))
    }

    /// A copy, with more rows if the batch is padded.
    pub(super) fn copied(
        &self,
        library: &Library,
        rows: Option<usize>,
    ) -> Result<OwnedTensor, Status> {
        if let Some(rows) = rows {
            return self.padded(library, rows);
        }
        let copy = OwnedTensor::new(library, self.number, &self.dims)?;
        self.copy_to(library, &copy)?;
        Ok(copy)
    }

    /// A copy with this many rows, the last of which contain zeros.
    pub(super) fn padded(&self, library: &Library, rows: usize) -> Result<OwnedTensor, Status> {
        let own = self.memory.byte_size();
        let (dims, whole) = padded_shape(&self.dims, rows, self.number)
            .filter(|(_, whole)| *whole >= own)
            .ok_or_else(|| {
                let shape = &self.dims;
                Status::internal(format!("an input of shape {shape:?} can't have {rows} rows"))
            })?;
        let copy = OwnedTensor::new(library, self.number, &dims)?;
        if whole > 0 {
            let address = copy.address(library.api())?.cast_mut();
            // SAFETY: the new tensor has `whole` bytes by its shape and type, at least as many as
            // are copied, in memory of its own. The caller's memory has `own` bytes and lives
            // during the call.
            unsafe {
                ptr::copy_nonoverlapping(self.memory.start(), address, own);
                ptr::write_bytes(address.add(own), 0, whole - own);
            }
        }
        Ok(copy)
    }
}

/// The dimensions of a tensor with more rows, and its size in bytes; `None` if the tensor has no
/// rows or already has more.
fn padded_shape(dims: &[i64], rows: usize, number: c_int) -> Option<(SmallVec<[i64; 6]>, usize)> {
    let mut dims = SmallVec::from_slice(dims);
    let (first, rows) = (dims.first_mut()?, i64::try_from(rows).ok()?);
    if *first <= 0 || *first > rows {
        return None;
    }
    *first = rows;
    let size = Shape::new(&dims).ok()?.byte_size(element::datatype(number)?)?;
    Some((dims, usize::try_from(size).ok()?))
}

/// The rows of each output that belong to a batch.
#[derive(Copy, Clone)]
pub(super) struct KeptRows {
    /// The number of rows in the batch, which come first.
    pub(super) given: usize,
    /// The number of rows that the model computed.
    pub(super) executed: usize,
}

/// A tensor in the library's memory.
pub(super) struct OwnedTensor {
    raw: Handle<RawTensor>,
}

// SAFETY: tensors are not bound to a thread; any thread may free them.
unsafe impl Send for OwnedTensor {}

impl OwnedTensor {
    /// Allocates memory for elements of this type. A run grows the memory as needed.
    pub(super) fn new(library: &Library, number: c_int, dims: &[i64]) -> Result<Self, Status> {
        let functions = library.api().functions();
        // SAFETY: the shape is copied; the constructor stores a tensor, which the named function
        // frees.
        let raw = unsafe {
            Handle::create(
                library.api(),
                functions.ov_tensor_free,
                "allocating an output",
                |out| (functions.ov_tensor_create)(number, OvShape::borrowed(dims), out),
            )?
        };
        Ok(Self { raw })
    }

    /// Takes ownership of a tensor that a function of the library stores.
    ///
    /// # Safety
    ///
    /// If the function returns 0, it must have stored a tensor that is the caller's to free.
    pub(super) unsafe fn load(
        library: &Library,
        get: impl FnMut(*mut *mut RawTensor) -> OvStatus,
    ) -> Result<Self, Status> {
        let free = library.api().functions().ov_tensor_free;
        // SAFETY: by this function's own contract.
        let raw = unsafe { Handle::load(library.api(), free, "reading a tensor", get)? };
        Ok(Self { raw })
    }

    pub(super) const fn as_ptr(&self) -> *const RawTensor {
        self.raw.as_ptr()
    }

    fn describe(&self, api: &Api) -> Result<(DataType, Shape), Status> {
        let functions = api.functions();
        let (mut number, mut shape) = (0, OvShape { rank: 0, dims: ptr::null_mut() });
        // SAFETY: the tensor is alive, the out pointers valid; the shape is read before it is
        // freed.
        let dims = unsafe {
            let status = (functions.ov_tensor_get_element_type)(self.as_ptr(), &raw mut number);
            api.check(status, "reading an output's type")?;
            let status = (functions.ov_tensor_get_shape)(self.as_ptr(), &raw mut shape);
            // The library refuses to create a shape without sizes, which is a scalar's shape.
            if status != INVALID_PARAMETER {
                api.check(status, "reading an output's shape")?;
            }
            let dims = shape.dims();
            (functions.ov_shape_free)(&raw mut shape);
            dims
        };
        let datatype = element::datatype(number)
            .ok_or_else(|| Status::internal(format!("an output has element type {number}")))?;
        let shape = Shape::new(&dims).map_err(|error| Status::internal(error.to_string()))?;
        Ok((datatype, shape))
    }

    /// A copy of the elements, if they have at most this many bytes.
    pub(super) fn copied(
        &self,
        api: &Api,
        bytes_max: usize,
    ) -> Result<Option<OwnedRunOutput>, Status> {
        let (datatype, shape) = self.describe(api)?;
        let size = shape.byte_size(datatype).and_then(|size| usize::try_from(size).ok());
        let Some(size) = size.filter(|&size| size <= bytes_max) else { return Ok(None) };
        let data = if size == 0 {
            Bytes::new()
        } else {
            let address = self.address(api)?;
            // SAFETY: the tensor owns this many initialised bytes at the address, and nothing
            // writes to them during the call.
            Bytes::copy_from_slice(unsafe { std::slice::from_raw_parts(address, size) })
        };
        Ok(Some(OwnedRunOutput { datatype, shape, data: OutputData::Fixed(data) }))
    }

    pub(super) fn address(&self, api: &Api) -> Result<*const u8, Status> {
        let mut address: *mut c_void = ptr::null_mut();
        // SAFETY: the tensor is alive, the out pointer valid.
        let status = unsafe { (api.functions().ov_tensor_data)(self.as_ptr(), &raw mut address) };
        api.check(status, "reading an output")?;
        if address.is_null() {
            return Err(Status::internal("openvino error in reading an output : no data"));
        }
        Ok(address.cast_const().cast())
    }
}

/// An output of a run.
pub(super) enum MadeOutput {
    /// In a tensor that no later run uses.
    Tensor(OwnedTensor),
    /// A copy.
    Copied(OwnedRunOutput),
}

/// The outputs of a run.
pub(crate) struct OvOutputs<'data> {
    library: Arc<Library>,
    made: SmallVec<[MadeOutput; 4]>,
    input_regions: SmallVec<[Range<usize>; 8]>,
    kept: Option<KeptRows>,
    data: PhantomData<&'data [u8]>,
}

impl OvOutputs<'_> {
    pub(super) const fn new(
        library: Arc<Library>,
        made: SmallVec<[MadeOutput; 4]>,
        input_regions: SmallVec<[Range<usize>; 8]>,
        kept: Option<KeptRows>,
    ) -> Self {
        Self { library, made, input_regions, kept, data: PhantomData }
    }
}

impl SessionOutputs for OvOutputs<'_> {
    fn string_bytes(&self) -> Result<usize, Status> {
        Ok(0)
    }

    fn read(self) -> Result<Vec<Option<OwnedRunOutput>>, Status> {
        let Self { library, made, input_regions, kept, .. } = self;
        let read = |made| {
            let output = match made {
                MadeOutput::Tensor(tensor) => read(tensor, library.api(), &input_regions)?,
                MadeOutput::Copied(output) => output,
            };
            let Some(kept) = kept else { return Ok(Some(output)) };
            kept.cut(output).map(Some)
        };
        made.into_iter().map(read).collect()
    }
}

fn read(
    tensor: OwnedTensor,
    api: &Api,
    input_regions: &[Range<usize>],
) -> Result<OwnedRunOutput, Status> {
    let (datatype, shape) = tensor.describe(api)?;
    let byte_size = shape.byte_size(datatype).and_then(|size| usize::try_from(size).ok());
    let byte_size = byte_size
        .ok_or_else(|| Status::internal(format!("an output of shape {shape} is too large")))?;
    let data = if byte_size == 0 {
        Bytes::new()
    } else {
        let address = tensor.address(api)?;
        let memory = TensorMemory { address, byte_size, _tensor: tensor };
        let end = address.addr().saturating_add(byte_size);
        if overlaps_input(&(address.addr()..end), input_regions) {
            Bytes::copy_from_slice(memory.as_ref())
        } else {
            Bytes::from_owner(memory)
        }
    };
    Ok(OwnedRunOutput { datatype, shape, data: OutputData::Fixed(data) })
}

impl KeptRows {
    fn cut(self, output: OwnedRunOutput) -> Result<OwnedRunOutput, Status> {
        let Self { given, executed } = self;
        let OwnedRunOutput { datatype, shape, data } = output;
        let mut dims: SmallVec<[i64; 6]> = SmallVec::from_slice(shape.dims());
        match (dims.first_mut(), data) {
            (Some(first), OutputData::Fixed(data)) if usize::try_from(*first) == Ok(executed) => {
                *first = i64::try_from(given).unwrap_or(i64::MAX);
                let shape =
                    Shape::new(&dims).map_err(|error| Status::internal(error.to_string()))?;
                let data = data.slice(..data.len() / executed * given);
                Ok(OwnedRunOutput { datatype, shape, data: OutputData::Fixed(data) })
            }
            _ => Err(Status::internal(format!(
                "expected the batch size of openvino model output to be {executed}, got shape \
                 {shape}"
            ))),
        }
    }
}

/// A tensor's memory, which the library owns.
struct TensorMemory {
    address: *const u8,
    byte_size: usize,
    _tensor: OwnedTensor,
}

// SAFETY: tensors are not bound to a thread; any thread may free them.
unsafe impl Send for TensorMemory {}

impl AsRef<[u8]> for TensorMemory {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the tensor owns this many initialised bytes at the address. No later run writes
        // to them: each run binds its own tensors to all outputs.
        unsafe { std::slice::from_raw_parts(self.address, self.byte_size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tensors_with_rows_grow() {
        let number = element::number(DataType::Fp32).unwrap();
        let padded = |dims: &[i64], rows| {
            padded_shape(dims, rows, number).map(|(dims, size)| (dims.to_vec(), size))
        };
        assert_eq!(padded(&[3, 2], 8), Some((vec![8, 2], 64)));
        assert_eq!(padded(&[8], 8), Some((vec![8], 32)));
        assert_eq!(padded(&[1, 0], 8), Some((vec![8, 0], 0)));
        for dims in [&[][..], &[0, 2], &[9, 2], &[-1, 2], &[1, i64::MAX]] {
            assert_eq!(padded(dims, 8), None, "{dims:?}");
        }
    }
}
