//! A run's tensors.

use std::any::Any;
use std::ffi::{c_char, c_void};
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use bytes::Bytes;
use galatea_infer::Status;
use galatea_runtime::{
    ByteRegion, DeviceBytes, DeviceTensor, OutputData, OwnedRunOutput, PackedStrings, STRING_BYTES,
    SessionOutputs, overlaps_input,
};
use galatea_tensor::elements::{BytesElements, BytesFramingError};
use galatea_tensor::{DataType, Shape};
use ort_sys::{ONNXTensorElementDataType, OrtValue};
use smallvec::SmallVec;

use super::element::{ElementType, element_and_dims, onnx_type};
use super::environment::OrtEnvironment;
use super::error::OrtError;
use super::handle::OrtHandle;
use super::memory::DeviceMemory;
use super::table::ApiTable;

/// One of the library's tensors. An input refers to memory of the caller, which lives at least as
/// long as `'data`. An output may refer to its run's inputs.
pub(crate) struct OrtTensor<'data> {
    raw: OrtHandle<OrtValue>,
    api: ApiTable,
    /// The addresses of memory that the value refers to but doesn't own.
    region: Range<usize>,
    data: PhantomData<&'data [u8]>,
}

impl<'data> OrtTensor<'data> {
    /// Creates a tensor with the elements in `data`, which are not copied.
    pub(crate) fn borrowed(
        environment: &OrtEnvironment,
        datatype: DataType,
        shape: &Shape,
        data: ByteRegion<'data>,
    ) -> Result<Self, OrtError> {
        let expected = shape.byte_size(datatype).and_then(|size| usize::try_from(size).ok());
        let aligned = datatype.byte_size().is_some_and(|size| data.is_aligned(size));
        let byte_size = data.byte_size();
        if expected != Some(byte_size) || !aligned {
            return Err(OrtError::invalid(format!(
                "{byte_size} bytes are no aligned tensor of {datatype} with shape {shape}"
            )));
        }
        let api = environment.api();
        // An empty slice may have any address, even a misaligned one.
        let address = if byte_size == 0 {
            ptr::dangling_mut::<u64>().cast::<c_void>()
        } else {
            data.start().cast_mut().cast::<c_void>()
        };
        // SAFETY: the memory contains exactly the shape's elements, is aligned for them, and
        // outlives the value because of its lifetime. The library takes a mutable pointer but never
        // writes to a run's inputs. The memory description and the dimensions are copied.
        let raw = unsafe {
            OrtHandle::create(api, api.table().ReleaseValue, "tensor", |out| {
                (api.table().CreateTensorWithDataAsOrtValue)(
                    environment.memory(),
                    address,
                    byte_size,
                    shape.dims().as_ptr(),
                    shape.rank(),
                    onnx_type(datatype),
                    out,
                )
            })?
        };
        Ok(Self { raw, api, region: data.addresses(), data: PhantomData })
    }

    /// Creates a tensor with elements in GPU memory, which are not copied.
    pub(crate) fn on_device(
        environment: &OrtEnvironment,
        memory: &DeviceMemory,
        datatype: DataType,
        shape: &Shape,
        data: DeviceBytes<'data>,
    ) -> Result<Self, OrtError> {
        let expected = shape.byte_size(datatype).and_then(|size| usize::try_from(size).ok());
        let byte_size = data.byte_size();
        let pointer = data.pointer().filter(|_| expected == Some(byte_size));
        let Some(pointer) = pointer else {
            return Err(OrtError::invalid(format!(
                "{byte_size} bytes of a GPU are no tensor of {datatype} with shape {shape}"
            )));
        };
        let api = environment.api();
        // SAFETY: the memory contains exactly the shape's elements and outlives the value because
        // of its lifetime. The library never writes to a run's inputs. The memory description and
        // the dimensions are copied.
        let raw = unsafe {
            OrtHandle::create(api, api.table().ReleaseValue, "tensor", |out| {
                (api.table().CreateTensorWithDataAsOrtValue)(
                    memory.as_ptr(),
                    pointer,
                    byte_size,
                    shape.dims().as_ptr(),
                    shape.rank(),
                    onnx_type(datatype),
                    out,
                )
            })?
        };
        let start = pointer.addr();
        let region = start..start.saturating_add(byte_size);
        Ok(Self { raw, api, region, data: PhantomData })
    }

    /// Creates a tensor of strings with copies of the elements in all `parts`.
    pub(crate) fn strings(
        environment: &OrtEnvironment,
        shape: &Shape,
        parts: &[&[u8]],
    ) -> Result<Self, OrtError> {
        let api = environment.api();
        let allocator = api.default_allocator()?;
        // SAFETY: the allocator is the library's own and lives forever; the dimensions are copied.
        let raw = unsafe {
            OrtHandle::create(api, api.table().ReleaseValue, "tensor", |out| {
                (api.table().CreateTensorAsOrtValue)(
                    allocator,
                    shape.dims().as_ptr(),
                    shape.rank(),
                    ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING,
                    out,
                )
            })?
        };
        let value = Self { raw, api, region: 0..0, data: PhantomData };
        let count = usize::try_from(shape.element_count()).unwrap_or(usize::MAX);
        let mut filled = 0;
        for element in parts.iter().flat_map(|part| BytesElements::new(part)) {
            let element =
                element.map_err(|error: BytesFramingError| OrtError::invalid(error.to_string()))?;
            if filled == count {
                return Err(OrtError::invalid(format!("more than {count} strings for {shape}")));
            }
            value.fill_string(filled, element)?;
            filled += 1;
        }
        if filled != count {
            return Err(OrtError::invalid(format!("{filled} strings for {shape}")));
        }
        Ok(value)
    }

    /// Sets one string. The string may contain NUL bytes, at which functions for C strings would
    /// truncate it.
    fn fill_string(&self, index: usize, element: &[u8]) -> Result<(), OrtError> {
        let api = self.api;
        let mut buffer: *mut c_char = ptr::null_mut();
        // SAFETY: the value is a tensor of strings with more than `index` elements and isn't shared
        // yet; the library stores the address of a buffer of the given length.
        unsafe {
            api.check((api.table().GetResizedStringTensorElementBuffer)(
                self.raw.as_ptr(),
                index,
                element.len(),
                &raw mut buffer,
            ))?;
        }
        if buffer.is_null() {
            return Err(OrtError::missing("string buffer"));
        }
        // SAFETY: the buffer has this length and doesn't overlap with the element.
        unsafe { ptr::copy_nonoverlapping(element.as_ptr(), buffer.cast::<u8>(), element.len()) };
        Ok(())
    }

    /// Takes ownership of a value that a run returned.
    ///
    /// # Safety
    ///
    /// `raw` is null, or the caller owns it and the memory that it refers to lives as long as
    /// `'data`.
    pub(super) unsafe fn output(raw: *mut OrtValue, api: ApiTable) -> Option<Self> {
        let release = api.table().ReleaseValue;
        // SAFETY: required by this function's own contract.
        let raw = unsafe { OrtHandle::new(raw, release, "output") }.ok()?;
        Some(Self { raw, api, region: 0..0, data: PhantomData })
    }

    pub(super) const fn as_ptr(&self) -> *mut OrtValue {
        self.raw.as_ptr()
    }

    pub(super) fn region(&self) -> Range<usize> {
        self.region.clone()
    }
}

/// A run's output, and the GPU whose memory it is in.
pub(super) type PlacedOutput<'data> = (Option<OrtTensor<'data>>, Option<u32>);

/// A run's outputs, which may refer to its inputs.
pub(crate) struct RunOutputs<'data> {
    values: SmallVec<[PlacedOutput<'data>; 4]>,
    /// The memory of the run's inputs.
    input_regions: SmallVec<[Range<usize>; 8]>,
}

impl<'data> RunOutputs<'data> {
    pub(super) const fn new(
        values: SmallVec<[PlacedOutput<'data>; 4]>,
        input_regions: SmallVec<[Range<usize>; 8]>,
    ) -> Self {
        Self { values, input_regions }
    }
}

impl SessionOutputs for RunOutputs<'_> {
    fn string_bytes(&self) -> Result<usize, Status> {
        let values = self.values.iter().filter_map(|(value, _)| value.as_ref());
        values.map(string_bytes).try_fold(0_usize, |sum, bytes| Ok(sum.saturating_add(bytes?)))
    }

    fn read(self) -> Result<Vec<Option<OwnedRunOutput>>, Status> {
        let Self { values, input_regions } = self;
        values
            .into_iter()
            .map(|(value, device)| {
                Ok(value.map(|value| read(value, device, &input_regions)).transpose()?)
            })
            .collect()
    }
}

fn read(
    value: OrtTensor<'_>,
    device: Option<u32>,
    input_regions: &[Range<usize>],
) -> Result<OwnedRunOutput, OrtError> {
    let (element, shape) = element_and_shape(&value)?;
    let datatype = element.datatype().ok_or_else(|| {
        OrtError::invalid(format!("the type is unsupported: {}", element.words()))
    })?;
    let data = match shape.byte_size(datatype) {
        None => OutputData::Strings(strings(&value, &shape)?),
        Some(byte_size) => {
            let byte_size = usize::try_from(byte_size)
                .map_err(|_| OrtError::invalid(format!("shape {shape} is too large")))?;
            match device {
                None => OutputData::Fixed(fixed(value, byte_size, input_regions)?),
                Some(device) => {
                    OutputData::Device(on_device(value, device, byte_size, input_regions)?)
                }
            }
        }
    };
    Ok(OwnedRunOutput { datatype, shape, data })
}

fn element_and_shape(value: &OrtTensor<'_>) -> Result<(ElementType, Shape), OrtError> {
    let api = value.api;
    let table = api.table();
    // SAFETY: the value is alive; the function stores a description, which the given function
    // releases, or fails if the value isn't a tensor.
    let (element, dims) = unsafe {
        let info =
            OrtHandle::create(api, table.ReleaseTensorTypeAndShapeInfo, "description", |out| {
                (table.GetTensorTypeAndShape)(value.as_ptr(), out)
            })?;
        element_and_dims(api, info.as_ptr())?
    };
    let shape = Shape::new(&dims).map_err(|error| OrtError::invalid(error.to_string()))?;
    Ok((element, shape))
}

/// The bytes of a tensor with fixed-size elements.
fn fixed(
    value: OrtTensor<'_>,
    byte_size: usize,
    input_regions: &[Range<usize>],
) -> Result<Bytes, OrtError> {
    if byte_size == 0 {
        return Ok(Bytes::new());
    }
    let address = address_of(&value)?;
    let start = address.addr();
    if overlaps_input(&(start..start.saturating_add(byte_size)), input_regions) {
        // A graph may return an input as an output. The memory then belongs to the request, which
        // may free it first.
        let mut copy = vec![0_u8; byte_size];
        // SAFETY: the input's memory lives as long as the value, and the tensor has this many
        // bytes. They may belong to several allocations, so no slice is created over them.
        unsafe { ptr::copy_nonoverlapping(address.cast::<u8>(), copy.as_mut_ptr(), byte_size) };
        return Ok(Bytes::from(copy));
    }
    Ok(Bytes::from_owner(TensorMemory { address: address.cast(), byte_size, _value: value.raw }))
}

/// A tensor in GPU memory. The run that produced it must already have waited for its stream.
fn on_device(
    value: OrtTensor<'_>,
    device: u32,
    byte_size: usize,
    input_regions: &[Range<usize>],
) -> Result<DeviceTensor, OrtError> {
    let start = if byte_size == 0 { 0 } else { address_of(&value)?.addr() };
    let is_input = overlaps_input(&(start..start.saturating_add(byte_size)), input_regions);
    let address = u64::try_from(start)
        .map_err(|_| OrtError::invalid(String::from("an address has more than 64 bits")))?;
    let owner: Arc<dyn Any + Send + Sync> = Arc::new(OwnedValue(value.raw));
    Ok(DeviceTensor { device, address, byte_size, is_input, owner })
}

/// A value that is kept only for its memory.
struct OwnedValue(
    #[expect(dead_code, reason = "it is kept to be released when the last owner is gone")]
    OrtHandle<OrtValue>,
);

// SAFETY: values are not bound to a thread, and any thread may release them. A value keeps its
// memory's allocator alive, so it may outlive its session.
unsafe impl Send for OwnedValue {}
// SAFETY: nothing reads it.
unsafe impl Sync for OwnedValue {}

fn address_of(value: &OrtTensor<'_>) -> Result<*mut c_void, OrtError> {
    let api = value.api;
    let mut address: *mut c_void = ptr::null_mut();
    // SAFETY: the value is alive and a tensor, and the out pointer is valid.
    unsafe {
        api.check((api.table().GetTensorMutableData)(value.as_ptr(), &raw mut address))?;
    }
    if address.is_null() { Err(OrtError::missing("tensor data")) } else { Ok(address) }
}

/// A tensor's memory, which the library owns.
struct TensorMemory {
    address: *const u8,
    byte_size: usize,
    _value: OrtHandle<OrtValue>,
}

// SAFETY: values are not bound to a thread, and any thread may release them. A value keeps its
// memory's allocator alive, so it may outlive its session.
unsafe impl Send for TensorMemory {}

impl AsRef<[u8]> for TensorMemory {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the value owns this many initialized bytes at the address. They don't change
        // after the run, and the value lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.address, self.byte_size) }
    }
}

/// The memory that a tensor of strings and the resulting [`PackedStrings`] take; 0 for other types.
fn string_bytes(value: &OrtTensor<'_>) -> Result<usize, OrtError> {
    let (element, shape) = element_and_shape(value)?;
    let count = usize::try_from(shape.element_count()).unwrap_or(usize::MAX);
    if element.datatype() != Some(DataType::Bytes) || count == 0 {
        return Ok(0);
    }
    let length = string_length(value)?;
    let objects = count.saturating_mul(STRING_BYTES + size_of::<usize>());
    // The strings themselves, in case they are too long for the objects, and their copies.
    Ok(length.saturating_mul(2).saturating_add(objects))
}

/// The total length of all strings in a tensor.
fn string_length(value: &OrtTensor<'_>) -> Result<usize, OrtError> {
    let api = value.api;
    let mut length = 0;
    // SAFETY: the value is alive and a tensor of strings, and the out pointer is valid.
    unsafe {
        api.check((api.table().GetStringTensorDataLength)(value.as_ptr(), &raw mut length))?;
    }
    Ok(length)
}

fn strings(value: &OrtTensor<'_>, shape: &Shape) -> Result<PackedStrings, OrtError> {
    let api = value.api;
    let count = usize::try_from(shape.element_count())
        .map_err(|_| OrtError::invalid(format!("shape {shape} is too large")))?;
    if count == 0 {
        return Ok(PackedStrings::new(Vec::new(), Vec::new()));
    }
    let length = string_length(value)?;
    let mut content = vec![0_u8; length];
    let mut starts = vec![0_usize; count];
    // SAFETY: the value is alive and a tensor of strings; both buffers have the given lengths.
    unsafe {
        api.check((api.table().GetStringTensorContent)(
            value.as_ptr(),
            content.as_mut_ptr().cast(),
            length,
            starts.as_mut_ptr(),
            count,
        ))?;
    }
    // Each string ends where the next one starts.
    starts.remove(0);
    starts.push(length);
    Ok(PackedStrings::new(content, starts))
}
