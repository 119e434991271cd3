//! The outputs of a run.

use bytes::Bytes;
use galatea_infer::Status;
use galatea_runtime::{OutputData, OwnedRunOutput, SessionOutputs};
use galatea_tensor::Shape;
use smallvec::SmallVec;

use super::status::missing;
use super::strings;
use super::tensor::TfTensor;
use crate::element;
use crate::graph::OutputStability;

/// A run's outputs.
pub(crate) struct TfOutputs {
    tensors: SmallVec<[TfTensor; 4]>,
    memory: OutputStability,
}

impl TfOutputs {
    pub(super) const fn new(tensors: SmallVec<[TfTensor; 4]>, memory: OutputStability) -> Self {
        Self { tensors, memory }
    }

    /// The outputs with these indices, in this order; each index appears once.
    pub(crate) fn select(self, indices: &[usize]) -> Result<Self, Status> {
        let Self { tensors, memory } = self;
        let mut all: SmallVec<[Option<TfTensor>; 4]> = tensors.into_iter().map(Some).collect();
        let chosen = indices.iter().map(|&index| all.get_mut(index).and_then(Option::take));
        let chosen: Option<SmallVec<[TfTensor; 4]>> = chosen.collect();
        let tensors = chosen.ok_or_else(|| missing("tensor for an output"))?;
        Ok(Self { tensors, memory })
    }
}

impl SessionOutputs for TfOutputs {
    fn string_bytes(&self) -> Result<usize, Status> {
        let strings = self.tensors.iter().filter(|tensor| tensor.number() == element::STRING);
        let bytes = strings.map(|tensor| strings::memory_of(tensor, count(&tensor.shape()?)?));
        bytes.into_iter().try_fold(0_usize, |sum, bytes| Ok(sum.saturating_add(bytes?)))
    }

    fn read(self) -> Result<Vec<Option<OwnedRunOutput>>, Status> {
        let Self { tensors, memory } = self;
        tensors.into_iter().map(|tensor| read(tensor, memory).map(Some)).collect()
    }
}

fn read(tensor: TfTensor, memory: OutputStability) -> Result<OwnedRunOutput, Status> {
    let number = tensor.number();
    let datatype = element::datatype(number).ok_or_else(|| {
        Status::internal(format!("an output has the unsupported type {}", element::name(number)))
    })?;
    let shape = tensor.shape()?;
    let data = match shape.byte_size(datatype) {
        None => OutputData::Strings(strings::read(&tensor, count(&shape)?)?),
        Some(size) => {
            let size = usize::try_from(size).map_err(|_| too_large(&shape))?;
            OutputData::Fixed(fixed(tensor, size, memory)?)
        }
    };
    Ok(OwnedRunOutput { datatype, shape, data })
}

fn fixed(tensor: TfTensor, byte_size: usize, memory: OutputStability) -> Result<Bytes, Status> {
    if byte_size == 0 {
        return Ok(Bytes::new());
    }
    let data = tensor.data().filter(|_| tensor.byte_size() >= byte_size);
    let data = data.ok_or_else(|| Status::internal("an output has no elements"))?;
    let memory_of_tensor = TfMemory { data: data.as_ptr(), byte_size, _tensor: tensor };
    Ok(match memory {
        OutputStability::Stable => Bytes::from_owner(memory_of_tensor),
        OutputStability::MayChange => Bytes::copy_from_slice(memory_of_tensor.as_ref()),
    })
}

/// The memory of a tensor with fixed-size elements.
struct TfMemory {
    data: *const u8,
    byte_size: usize,
    _tensor: TfTensor,
}

// SAFETY: tensors are not bound to a thread, and any thread may delete them.
unsafe impl Send for TfMemory {}

impl AsRef<[u8]> for TfMemory {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the tensor has this many initialized bytes at the address and lives as long as
        // `self`. The library writes only to memory that it has the last reference to. The
        // outputs of graphs with exceptions, which `GraphFacts` finds, are copied by `fixed`.
        unsafe { std::slice::from_raw_parts(self.data, self.byte_size) }
    }
}

fn count(shape: &Shape) -> Result<usize, Status> {
    usize::try_from(shape.element_count()).map_err(|_| too_large(shape))
}

fn too_large(shape: &Shape) -> Status {
    Status::internal(format!("an output of shape {shape} is too large"))
}
