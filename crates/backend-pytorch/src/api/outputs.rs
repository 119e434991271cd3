//! The outputs of a run.

use std::any::Any;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr;
use std::slice;
use std::sync::Arc;

use bytes::Bytes;
use galatea_infer::Status;
use galatea_runtime::{
    OutputData, OwnedRunOutput, PackedStrings, STRING_BYTES, SessionOutputs, overlaps_input,
};
use galatea_tensor::{DataType, Shape};
use smallvec::SmallVec;

use super::container::Container;
use super::tensor::{BorrowedTensor, CPU, TensorHandle};
use crate::element;

/// The outputs of a run.
pub(crate) struct TorchOutputs<'data> {
    /// Keeps the model's memory alive, because outputs may refer to it.
    owner: Arc<dyn Any + Send + Sync>,
    outputs: SmallVec<[Option<OutputValue>; 8]>,
    input_regions: SmallVec<[Range<usize>; 8]>,
    data: PhantomData<&'data [u8]>,
}

/// An output of a model.
pub(super) enum OutputValue {
    Tensor(TensorHandle),
    /// Strings, and their number.
    Strings(PackedStrings, usize, usize),
}

impl<'data> TorchOutputs<'data> {
    pub(super) fn new(
        owner: Arc<dyn Any + Send + Sync>,
        outputs: SmallVec<[Option<OutputValue>; 8]>,
        input_regions: SmallVec<[Range<usize>; 8]>,
    ) -> Self {
        Self { owner, outputs, input_regions, data: PhantomData }
    }

    /// Computes all outputs from all inputs, and keeps those with these indices.
    pub(crate) fn compute(
        container: &Arc<Container>,
        inputs: &[&BorrowedTensor<'data>],
        wanted: impl ExactSizeIterator<Item = usize>,
    ) -> Result<Self, Status> {
        let mut made = container.run(inputs)?;
        let take =
            |index: usize| made.get_mut(index).and_then(Option::take).map(OutputValue::Tensor);
        let outputs = wanted.map(take).collect();
        let regions = inputs.iter().map(|input| input.region()).collect();
        Ok(Self::new(container.clone(), outputs, regions))
    }
}

impl SessionOutputs for TorchOutputs<'_> {
    fn string_bytes(&self) -> Result<usize, Status> {
        let sizes = self.outputs.iter().flatten().map(|output| match output {
            OutputValue::Tensor(_) => 0,
            OutputValue::Strings(_, count, bytes) => {
                bytes.saturating_add(count.saturating_mul(STRING_BYTES))
            }
        });
        Ok(sizes.fold(0, usize::saturating_add))
    }

    fn read(self) -> Result<Vec<Option<OwnedRunOutput>>, Status> {
        let Self { owner, outputs, input_regions, .. } = self;
        let read = |output: Option<OutputValue>| match output {
            None => Ok(None),
            Some(OutputValue::Tensor(tensor)) => read(tensor, &owner, &input_regions).map(Some),
            Some(OutputValue::Strings(strings, count, _)) => {
                let count = i64::try_from(count).unwrap_or(i64::MAX);
                let shape = Shape::new(&[count]);
                let shape = shape.map_err(|error| Status::internal(error.to_string()))?;
                let data = OutputData::Strings(strings);
                Ok(Some(OwnedRunOutput { datatype: DataType::Bytes, shape, data }))
            }
        };
        outputs.into_iter().map(read).collect()
    }
}

impl TorchOutputs<'_> {
    /// The type of the output at a position in the list of requested outputs.
    pub(crate) fn datatype(&self, position: usize) -> Result<Option<DataType>, Status> {
        match self.outputs.get(position).and_then(Option::as_ref) {
            None => Ok(None),
            Some(OutputValue::Strings(..)) => Ok(Some(DataType::Bytes)),
            Some(OutputValue::Tensor(tensor)) => {
                Ok(element::of_number(tensor.ask(0, tensor.library().functions().dtype)?))
            }
        }
    }

    /// The position of the first output without dimensions in the list of requested outputs.
    pub(crate) fn first_scalar(&self) -> Result<Option<usize>, Status> {
        for (position, tensor) in self.outputs.iter().enumerate() {
            if let Some(OutputValue::Tensor(tensor)) = tensor
                && tensor.ask(0, tensor.library().functions().dim)? == 0
            {
                return Ok(Some(position));
            }
        }
        Ok(None)
    }
}

fn read(
    tensor: TensorHandle,
    owner: &Arc<dyn Any + Send + Sync>,
    input_regions: &[Range<usize>],
) -> Result<OwnedRunOutput, Status> {
    let library = tensor.library().clone();
    let functions = library.functions();
    let number = tensor.ask(0, functions.dtype)?;
    let datatype = element::of_number(number).ok_or_else(|| {
        Status::internal(format!(
            "an output has PyTorch's element type {number}, which is unsupported"
        ))
    })?;
    if tensor.ask(CPU, functions.device_type)? != CPU {
        return Err(Status::internal("an output is not in the CPU's memory"));
    }
    let dims = tensor.list(functions.sizes)?;
    let tensor = tensor.contiguous(number, &dims)?;
    let shape = Shape::new(&dims).map_err(|error| Status::internal(error.to_string()))?;
    let byte_size = shape.byte_size(datatype).and_then(|size| usize::try_from(size).ok());
    let byte_size = byte_size
        .ok_or_else(|| Status::internal(format!("an output of shape {shape} is too large")))?;
    let data = if byte_size == 0 {
        Bytes::new()
    } else {
        let address = tensor.ask(ptr::null_mut(), functions.data_ptr)?;
        if address.is_null() {
            return Err(Status::internal("an output has no data"));
        }
        let address = address.cast_const().cast::<u8>();
        let memory = TorchMemory { address, byte_size, _tensor: tensor, _owner: owner.clone() };
        let end = address.addr().saturating_add(byte_size);
        if overlaps_input(&(address.addr()..end), input_regions) {
            Bytes::copy_from_slice(memory.as_ref())
        } else {
            Bytes::from_owner(memory)
        }
    };
    Ok(OwnedRunOutput { datatype, shape, data: OutputData::Fixed(data) })
}

/// An output's memory, which belongs to the library or the model.
struct TorchMemory {
    address: *const u8,
    byte_size: usize,
    _tensor: TensorHandle,
    /// A tensor may refer to the model's own memory.
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: tensors and containers are not bound to a thread; any thread may free them.
unsafe impl Send for TorchMemory {}

impl AsRef<[u8]> for TorchMemory {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the tensor has this many bytes in one piece. Later runs create their own outputs.
        unsafe { slice::from_raw_parts(self.address, self.byte_size) }
    }
}
