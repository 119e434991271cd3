//! A library's session: a loaded model as one instance executes it.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use galatea_backend::ExecutionTerminator;
use galatea_devices::CudaStream;
use galatea_infer::Status;
use galatea_tensor::elements::push_bytes_element;
use galatea_tensor::{DataType, DeviceRegion, Shape};

use crate::region::{ByteRegion, DeviceBytes};

/// A loaded model as one instance executes it, one batch at a time.
///
/// An instance creates a tensor for each input, runs the session, reads the outputs and drops the
/// tensors, in this order. All calls of a batch are made on one thread.
pub trait Session: Send {
    /// A tensor in the library's form, which may refer to memory that lives as long as `'data`.
    type Tensor<'data>;

    /// The outputs of a run, which may refer to the memory of its inputs.
    type Outputs<'data>: SessionOutputs;

    /// Creates a tensor with fixed-size elements. The elements should not be copied: they stay in
    /// place and unchanged until the tensor is dropped, and they are aligned for their type.
    ///
    /// # Errors
    ///
    /// The library's error, or `Internal` if the shape doesn't match the number of bytes.
    fn tensor<'data>(
        &self,
        datatype: DataType,
        shape: &Shape,
        data: ByteRegion<'data>,
    ) -> Result<Self::Tensor<'data>, Status>;

    /// Creates a tensor of strings with copies of the elements in all `parts`. Each part has the
    /// same form as in requests: every string is preceded by its length.
    ///
    /// # Errors
    ///
    /// The library's error, or `Internal` if the shape doesn't match the number of strings.
    fn strings<'data>(&self, shape: &Shape, parts: &[&[u8]])
    -> Result<Self::Tensor<'data>, Status>;

    /// Computes outputs. Inputs and outputs come with their indices in the model's
    /// [`SessionInterface`](crate::SessionInterface).
    ///
    /// # Errors
    ///
    /// The library's error. No outputs are leaked, because a failed run leaves nothing behind.
    fn run<'data>(
        &mut self,
        inputs: &[(usize, Self::Tensor<'data>)],
        outputs: &[(usize, OutputPlace)],
    ) -> Result<Self::Outputs<'data>, Status>;

    /// A handle for ending a run from another thread; `None` if the library doesn't support this.
    fn terminator(&self) -> Option<Arc<dyn ExecutionTerminator>> {
        None
    }

    /// The stream that the session executes on, if it is on a GPU. A run waits until all work on
    /// the stream is complete.
    fn stream(&self) -> Option<&CudaStream> {
        None
    }

    /// Creates a tensor with elements in the memory of the session's GPU. Called only for sessions
    /// with a stream.
    ///
    /// # Errors
    ///
    /// The library's error.
    fn device_tensor<'data>(
        &self,
        datatype: DataType,
        shape: &Shape,
        data: DeviceBytes<'data>,
    ) -> Result<Self::Tensor<'data>, Status> {
        let _ = (datatype, shape, data);
        Err(Status::internal("the session takes no memory of a GPU"))
    }
}

/// The memory that a run writes an output to.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum OutputPlace {
    /// Host memory.
    Host,
    /// The memory of the session's GPU.
    Device,
}

/// A run's outputs in the library's form.
pub trait SessionOutputs {
    /// The memory that the string outputs take, including the memory for reading them.
    ///
    /// # Errors
    ///
    /// The library's error.
    fn string_bytes(&self) -> Result<usize, Status>;

    /// The outputs in the requested order; `None` for an output that the model didn't produce.
    ///
    /// # Errors
    ///
    /// The library's error, or `Internal` for a type that requests don't support.
    fn read(self) -> Result<Vec<Option<OwnedRunOutput>>, Status>;
}

/// An output that doesn't depend on the run's inputs.
pub struct OwnedRunOutput {
    /// The type of the output's elements.
    pub datatype: DataType,
    /// The output's shape.
    pub shape: Shape,
    /// The output's elements.
    pub data: OutputData,
}

/// The elements of an output.
pub enum OutputData {
    /// Fixed-size elements, often in the library's memory. A clone or a slice keeps the whole
    /// tensor alive.
    Fixed(Bytes),
    /// Strings.
    Strings(PackedStrings),
    /// Fixed-size elements in GPU memory.
    Device(DeviceTensor),
}

/// A tensor in GPU memory. It lives as long as its last clone.
#[derive(Clone)]
pub struct DeviceTensor {
    /// The GPU's number.
    pub device: u32,
    /// The tensor's address.
    pub address: u64,
    /// The total size of the tensor's elements.
    pub byte_size: usize,
    /// True if the memory belongs to an input, in which case it is only valid during the run.
    pub is_input: bool,
    /// The owner that keeps the memory allocated, unless the memory belongs to an input.
    pub owner: Arc<dyn Any + Send + Sync>,
}

impl DeviceTensor {
    /// The tensor's memory.
    pub(crate) fn region(&self) -> DeviceRegion {
        let Self { device, address, byte_size, .. } = *self;
        DeviceRegion { device, address, byte_size, owner: self.owner.clone() }
    }
}

impl std::fmt::Debug for DeviceTensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceTensor({} bytes on GPU {})", self.byte_size, self.device)
    }
}

/// The size of a C++ string object in most libraries. Short strings are stored in the object
/// itself.
pub const STRING_BYTES: usize = 32;

/// The strings of a tensor, concatenated.
pub struct PackedStrings {
    content: Vec<u8>,
    /// The end of each string.
    ends: Vec<usize>,
}

impl PackedStrings {
    /// The strings in `content`, which are stored one after another; `ends` contains the end of
    /// each string.
    #[must_use]
    pub const fn new(content: Vec<u8>, ends: Vec<usize>) -> Self {
        Self { content, ends }
    }

    /// The elements with these indices, each preceded by its length.
    pub(crate) fn framed(&self, elements: Range<usize>) -> Result<Vec<u8>, Status> {
        let invalid = || Status::internal(format!("there are no strings {elements:?}"));
        let ends = self.ends.get(elements.clone()).ok_or_else(invalid)?;
        let mut start = match elements.start.checked_sub(1) {
            Some(previous) => *self.ends.get(previous).ok_or_else(invalid)?,
            None => 0,
        };
        let bytes = ends.last().map_or(0, |end| end.saturating_sub(start));
        let prefixes = ends.len().saturating_mul(size_of::<u32>());
        let mut framed = Vec::with_capacity(bytes.saturating_add(prefixes));
        for &end in ends {
            let element = self.content.get(start..end).ok_or_else(invalid)?;
            push_bytes_element(&mut framed, element)
                .map_err(|error| Status::internal(error.to_string()))?;
            start = end;
        }
        Ok(framed)
    }
}
