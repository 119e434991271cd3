//! Tensors on their way between requests and the wire.

use galatea_infer::{InputTensor, OutputTensor, Status};
use galatea_tensor::{Buffer, DataType};

use crate::arena::{ARENA_BYTES, Arena};
use crate::wire::{EncodedInput, INLINE_BYTES_MAX, Place, WirePlace, WireTensor};

/// The arenas of a worker.
#[derive(Debug)]
pub(crate) struct Arenas {
    /// The server stores, the worker reads.
    pub(crate) inputs: Arena,
    /// The worker stores, the server reads.
    pub(crate) outputs: Arena,
}

impl Arenas {
    /// Empty ones, each of at most `length_max` bytes.
    pub(crate) fn new(length_max: Option<u64>) -> Result<Self, Status> {
        let length = length_max.map_or(ARENA_BYTES, |most| most.min(ARENA_BYTES));
        let arena = |name| Arena::new(name, length);
        Ok(Self { inputs: arena("galatea inputs")?, outputs: arena("galatea outputs")? })
    }

    /// Puts inputs where the worker can read them. What was stored is in `stored` even if the
    /// last one fails.
    pub(crate) fn encode_inputs<'a>(
        &self,
        inputs: &'a [InputTensor],
        stored: &mut Vec<u64>,
    ) -> Result<Vec<EncodedInput<'a>>, Status> {
        let encoded = inputs.iter().map(|input| {
            let InputTensor { name, datatype, shape, data } = input;
            let place = self.place(data, name, stored)?;
            Ok(EncodedInput { name, datatype: *datatype, shape, place })
        });
        encoded.collect()
    }

    /// The same for the outputs of a model that was called.
    pub(crate) fn encode_outputs<'a>(
        &self,
        outputs: &'a [OutputTensor],
        stored: &mut Vec<u64>,
    ) -> Result<Vec<EncodedInput<'a>>, Status> {
        let encoded = outputs.iter().map(|output| {
            let OutputTensor { name, datatype, shape, data } = output;
            let place = self.place(data, name, stored)?;
            Ok(EncodedInput { name, datatype: *datatype, shape, place })
        });
        encoded.collect()
    }

    fn place<'a>(
        &self,
        data: &'a Buffer,
        name: &str,
        stored: &mut Vec<u64>,
    ) -> Result<Place<'a>, Status> {
        let content = data.host().ok_or_else(|| {
            let text =
                format!("tensor '{name}' is not in the CPU's memory, which Python models need");
            Status::unsupported(text)
        })?;
        if content.len() <= INLINE_BYTES_MAX {
            return Ok(Place::Inline(content));
        }
        let offset = self.inputs.store(content)?;
        stored.push(offset);
        Ok(Place::Input(offset, galatea_stdx::len64(content.len())))
    }

    /// Gives back what the worker never got.
    pub(crate) fn discard(&self, stored: &[u64]) {
        for offset in stored {
            self.inputs.release(*offset);
        }
    }

    /// The content of a tensor that the worker sent, checked against its shape.
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
            WirePlace::Inline(content) => std::mem::take(content),
            WirePlace::Input { offset, length } => {
                self.inputs.load_used(*offset, *length)?.ok_or_else(|| wrong(&tensor.name))?
            }
            WirePlace::Output { offset, length } => {
                self.outputs.load(*offset, *length)?.ok_or_else(|| wrong(&tensor.name))?
            }
        };
        if tensor.datatype == DataType::Bytes {
            check_elements(tensor, &content)?;
        }
        Ok(Buffer::from_vec(content))
    }
}

/// Checks that strings are framed as their shape says.
fn check_elements(tensor: &WireTensor, content: &[u8]) -> Result<(), Status> {
    let found = galatea_tensor::elements::count_bytes_elements(content);
    if found.ok() == Some(tensor.shape.element_count()) {
        return Ok(());
    }
    let text = format!("the elements of tensor '{}' don't fit its shape", tensor.name);
    Err(Status::internal(text))
}
