//! Converts tensors between requests and the wire format.

use bytes::Bytes;
use galatea_infer::{InputTensor, OutputTensor, Status};
use galatea_tensor::{Buffer, DataType, DeviceRegion};

use crate::arena::{ARENA_BYTES, Arena};
use crate::gpus::Gpus;
use crate::wire::{
    ContentPlace, EncodedInput, INLINE_BYTES_MAX, PreferredMemory, WirePlace, WireTensor,
};

/// A worker's arenas.
#[derive(Debug)]
pub(crate) struct Arenas {
    /// The arena that the server writes and the worker reads.
    pub(crate) inputs: Arena,
    /// The arena that the worker writes and the server reads.
    pub(crate) outputs: Arena,
    gpus: Gpus,
}

impl Arenas {
    /// Creates empty arenas, each of at most `length_max` bytes.
    pub(crate) fn new(length_max: Option<u64>, gpus: Gpus) -> Result<Self, Status> {
        let length = length_max.map_or(ARENA_BYTES, |most| most.min(ARENA_BYTES));
        let arena = |name| Arena::new(name, length);
        let (inputs, outputs) = (arena("galatea inputs")?, arena("galatea outputs")?);
        Ok(Self { inputs, outputs, gpus })
    }

    /// Puts inputs where the worker can read them. `stored` lists the blocks that were stored, even
    /// if a later input fails.
    pub(crate) fn encode_inputs<'a>(
        &self,
        inputs: &'a [InputTensor],
        stored: &mut Vec<u64>,
    ) -> Result<Vec<EncodedInput<'a>>, Status> {
        let encoded = inputs.iter().map(|input| {
            let InputTensor { name, datatype, shape, data } = input;
            let place = self.place(data, name, *datatype, stored)?;
            Ok(EncodedInput { name, datatype: *datatype, shape, place })
        });
        encoded.collect()
    }

    /// Like [`Self::encode_inputs`], for the outputs of a called model. They are put into the
    /// memory that the caller prefers.
    pub(crate) fn encode_outputs<'a>(
        &self,
        outputs: &'a [OutputTensor],
        preferred: PreferredMemory,
        stored: &mut Vec<u64>,
    ) -> Result<Vec<EncodedInput<'a>>, Status> {
        let encoded = outputs.iter().map(|output| {
            let OutputTensor { name, datatype, shape, data } = output;
            let place = self.place_in(preferred, data, name, *datatype, stored)?;
            Ok(EncodedInput { name, datatype: *datatype, shape, place })
        });
        encoded.collect()
    }

    /// Puts a tensor into the memory that a model prefers. Strings, and all tensors if there are no
    /// GPUs, are put into host memory.
    fn place_in<'a>(
        &self,
        preferred: PreferredMemory,
        data: &'a Buffer,
        name: &str,
        datatype: DataType,
        stored: &mut Vec<u64>,
    ) -> Result<ContentPlace<'a>, Status> {
        match preferred {
            PreferredMemory::Gpu(gpu)
                if self.gpus.are_reachable() && datatype != DataType::Bytes && !data.is_empty() =>
            {
                self.describe(&self.gpus.to_gpu(data, gpu)?, stored)
            }
            PreferredMemory::Host if data.device_location().is_some() => {
                self.place_copy(data, stored)
            }
            PreferredMemory::Any | PreferredMemory::Host | PreferredMemory::Gpu(_) => {
                self.place(data, name, datatype, stored)
            }
        }
    }

    fn place<'a>(
        &self,
        data: &'a Buffer,
        name: &str,
        datatype: DataType,
        stored: &mut Vec<u64>,
    ) -> Result<ContentPlace<'a>, Status> {
        // Strings are always copied, because Python code reads them.
        if let Some(region) = data.device_location().filter(|region| region.byte_size > 0) {
            if self.gpus.are_shared() && datatype != DataType::Bytes {
                let memory = self.gpus.to_gpu(data, i64::from(region.device))?;
                return self.describe(&memory, stored);
            }
            return self.place_copy(data, stored);
        }
        let content = data.host_bytes().ok_or_else(|| {
            let text =
                format!("tensor '{name}' is not in the CPU's memory, which Python models need");
            Status::unsupported(text)
        })?;
        if content.len() <= INLINE_BYTES_MAX {
            return Ok(ContentPlace::Inline(content));
        }
        let offset = self.inputs.store(content)?;
        stored.push(offset);
        Ok(ContentPlace::Input(offset, galatea_stdx::len64(content.len())))
    }

    /// Describes a tensor's location in GPU memory to the worker.
    fn describe<'a>(
        &self,
        region: &DeviceRegion,
        stored: &mut Vec<u64>,
    ) -> Result<ContentPlace<'a>, Status> {
        let (description, memory) = self.gpus.describe(region)?;
        let offset = self.inputs.store(&description.encode())?;
        self.inputs.keep_until_release(offset, Buffer::from_device(memory));
        stored.push(offset);
        Ok(ContentPlace::Device(offset, galatea_stdx::len64(region.byte_size)))
    }

    /// Copies a tensor from GPU memory to memory that the worker can read.
    fn place_copy<'a>(
        &self,
        data: &Buffer,
        stored: &mut Vec<u64>,
    ) -> Result<ContentPlace<'a>, Status> {
        let Some(region) = data.device_location().filter(|region| region.byte_size > 0) else {
            return Ok(ContentPlace::Inline(&[]));
        };
        let offset = self.inputs.store(&self.gpus.to_host(&region)?)?;
        stored.push(offset);
        Ok(ContentPlace::Input(offset, galatea_stdx::len64(region.byte_size)))
    }

    /// Releases blocks that were never sent to the worker.
    pub(crate) fn discard(&self, stored: &[u64]) {
        for offset in stored {
            self.inputs.release(*offset);
        }
    }

    /// The contents of a tensor that the worker sent, checked against its shape.
    pub(crate) fn read(&self, tensor: &mut WireTensor) -> Result<Buffer, Status> {
        let wrong = |name: &str| {
            Status::internal(format!("the content of tensor '{name}' is not in shared memory"))
        };
        let length = tensor.place.length();
        if let Some(expected) = tensor.shape.byte_size(tensor.datatype)
            && expected != length
        {
            return Err(Status::internal(format!(
                "tensor '{}' has {length} bytes, but its shape needs {expected}",
                tensor.name
            )));
        }
        let content = match &mut tensor.place {
            WirePlace::Inline(content) => Bytes::from(std::mem::take(content)),
            WirePlace::Input { offset, length } => {
                let content = self.inputs.load_used(*offset, *length)?;
                content.ok_or_else(|| wrong(&tensor.name))?.into()
            }
            WirePlace::Output { offset, length } => {
                let content = self.outputs.load(*offset, *length)?;
                content.ok_or_else(|| wrong(&tensor.name))?.into()
            }
            WirePlace::DeviceInput { offset, length } => {
                let memory = self.inputs.described(*offset);
                let region = memory.as_ref().and_then(Buffer::device_region);
                let region =
                    region.filter(|region| galatea_stdx::len64(region.byte_size) == *length);
                self.gpus.to_host(region.ok_or_else(|| wrong(&tensor.name))?)?
            }
        };
        if tensor.datatype == DataType::Bytes {
            check_elements(tensor, &content)?;
        }
        Ok(Buffer::from_bytes(content))
    }
}

/// Checks that strings are framed correctly for their shape.
fn check_elements(tensor: &WireTensor, content: &[u8]) -> Result<(), Status> {
    let found = galatea_tensor::elements::count_bytes_elements(content);
    if found.ok() == Some(tensor.shape.element_count()) {
        return Ok(());
    }
    let text = format!("the elements of tensor '{}' don't fit its shape", tensor.name);
    Err(Status::internal(text))
}
