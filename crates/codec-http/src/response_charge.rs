//! The memory of a response from its encoding until it is written.

use std::sync::Arc;

use bytes::Bytes;
use galatea_gate::ledger::{MemoryAccount, MemoryCharge, MemoryLimitExceeded};
use galatea_infer::{InferenceResponse, OutputTensor};
use galatea_tensor::DataType;
use smallvec::SmallVec;

use super::output::{OutputFormat, OutputFormatMap};

/// The size of an output's JSON without its elements: member names, datatype and shape.
const OUTPUT_TEXT_BYTES: usize = 256;

/// The charge of a long response.
pub(super) struct ResponseCharge {
    charge: MemoryCharge,
    /// The size of the tensors that are sent unchanged and are not charged elsewhere.
    tensor_bytes: usize,
    /// An upper bound on the size of the JSON.
    pub(super) text_bytes_max: usize,
}

impl ResponseCharge {
    /// Charges a response before it is encoded. Returns `None` if it is short.
    pub(super) fn new(
        response: &InferenceResponse,
        encoding: &OutputFormatMap,
        account: &Arc<MemoryAccount>,
    ) -> Result<Option<Self>, MemoryLimitExceeded> {
        let (mut all, mut kept, mut text) = (0_usize, 0_usize, OUTPUT_TEXT_BYTES);
        for output in &response.outputs {
            let form = encoding.format_of(&output.name);
            let bytes = if output.data.is_charged() { 0 } else { output.data.len() };
            all = all.saturating_add(bytes);
            text = text.saturating_add(text_bytes_max(output, form));
            if form == OutputFormat::Binary {
                kept = kept.saturating_add(bytes);
            }
        }
        let bytes = all.saturating_add(text);
        if bytes <= MemoryAccount::SMALL_BYTES_MAX {
            return Ok(None);
        }
        let charge = MemoryCharge::new(account, bytes)?;
        Ok(Some(Self { charge, tensor_bytes: kept, text_bytes_max: text }))
    }

    /// Binds the charge to the last chunk, which is written last. `text_bytes` is the memory of the
    /// JSON.
    pub(super) fn hold(mut self, chunks: &mut SmallVec<[Bytes; 2]>, text_bytes: usize) {
        self.charge.shrink(self.tensor_bytes.saturating_add(text_bytes));
        if let Some(last) = chunks.last_mut() {
            *last = Bytes::from_owner(self.charge.attach_to(std::mem::take(last)));
        }
    }
}

/// Returns an upper bound on the size of an output's JSON.
fn text_bytes_max(output: &OutputTensor, form: OutputFormat) -> usize {
    // A control character is escaped as six characters.
    let name = output.name.len().saturating_mul(6).saturating_add(OUTPUT_TEXT_BYTES);
    if form != OutputFormat::Json {
        return name;
    }
    // The longest element of each type, including its comma, per byte of the tensor.
    let per_byte = match output.datatype {
        DataType::Bool | DataType::Bytes => 6,
        DataType::Int8 => 5,
        DataType::Uint8 | DataType::Int16 | DataType::Fp64 => 4,
        DataType::Uint16 | DataType::Uint32 | DataType::Int32 | DataType::Uint64 => 3,
        DataType::Int64 => 3,
        // It is printed as the double that it widens to.
        DataType::Fp32 => 7,
        // These have no JSON form.
        DataType::Fp16 | DataType::Bf16 => 0,
    };
    output.data.len().saturating_mul(per_byte).saturating_add(name)
}
