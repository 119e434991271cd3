//! Converts typed tensor contents to the server's tensor format.

use std::sync::Arc;

use bytes::Bytes;
use galatea_gate::ledger::{MemoryAccount, MemoryCharge};
use galatea_infer::Status;
use galatea_tensor::elements::push_bytes_element;
use galatea_tensor::{Buffer, DataType};

use super::parse_error::ParseError;
use super::wire::{MalformedMessage, WireReader, WireValue};

/// The lists of an `InferTensorContents` as little-endian bytes. Each `BYTES` element is preceded
/// by its length.
#[derive(Debug, Default)]
pub(super) struct TypedContents {
    bools: Vec<u8>,
    /// Four bytes per element.
    ints: Vec<u8>,
    int64s: Vec<u8>,
    /// Four bytes per element.
    uints: Vec<u8>,
    uint64s: Vec<u8>,
    fp32s: Vec<u8>,
    fp64s: Vec<u8>,
    bytes: Vec<u8>,
    /// The charge for the memory of all lists.
    charge: Option<MemoryCharge>,
}

/// The factor by which decoding may grow data: a one-byte varint becomes an element of at most
/// eight bytes.
const DECODED_FACTOR: usize = 8;

/// The size up to which contents are charged together with their request.
const UNCHARGED_BYTES_MAX: usize = 2 << 10;

impl TypedContents {
    /// Appends the lists of one wire message. The lists of a repeated field are
    /// concatenated.
    pub(super) fn merge(
        &mut self,
        message: &[u8],
        account: Option<&Arc<MemoryAccount>>,
    ) -> Result<(), ParseError> {
        self.charge(message.len(), account)?;
        let mut reader = WireReader::new(message);
        while let Some((number, value)) = reader.field()? {
            match number {
                1 => push_varints(&mut self.bools, value, |n| [u8::from(n != 0)])?,
                2 => push_varints(&mut self.ints, value, low_half)?,
                3 => push_varints(&mut self.int64s, value, u64::to_le_bytes)?,
                4 => push_varints(&mut self.uints, value, low_half)?,
                5 => push_varints(&mut self.uint64s, value, u64::to_le_bytes)?,
                6 => match value {
                    WireValue::Bytes(packed) => push_fixed::<4>(&mut self.fp32s, packed)?,
                    single => self.fp32s.extend_from_slice(&single.fixed32()?),
                },
                7 => match value {
                    WireValue::Bytes(packed) => push_fixed::<8>(&mut self.fp64s, packed)?,
                    single => self.fp64s.extend_from_slice(&single.fixed64()?),
                },
                8 => self.push_string(value.bytes()?)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Charges the existing contents and the bytes that a message of this length may add.
    fn charge(
        &mut self,
        message_bytes: usize,
        account: Option<&Arc<MemoryAccount>>,
    ) -> Result<(), ParseError> {
        let added = message_bytes.saturating_mul(DECODED_FACTOR);
        let Some(account) = account.filter(|_| added > UNCHARGED_BYTES_MAX) else { return Ok(()) };
        let bytes = self.capacity().saturating_add(added);
        let charge = self.charge.get_or_insert_with(|| MemoryCharge::nothing(account.clone()));
        charge.set(bytes).map_err(|exhausted| ParseError::Refused(exhausted.into()))
    }

    fn capacity(&self) -> usize {
        let Self { bools, ints, int64s, uints, uint64s, fp32s, fp64s, bytes, .. } = self;
        let lists = [bools, ints, int64s, uints, uint64s, fp32s, fp64s, bytes];
        lists.into_iter().map(Vec::capacity).fold(0, usize::saturating_add)
    }

    fn push_string(&mut self, element: &[u8]) -> Result<(), ParseError> {
        Ok(push_bytes_element(&mut self.bytes, element).map_err(|_| MalformedMessage)?)
    }

    #[cfg(test)]
    pub(super) fn lists(&self) -> Vec<Vec<u8>> {
        let lists = [
            &self.bools,
            &self.ints,
            &self.int64s,
            &self.uints,
            &self.uint64s,
            &self.fp32s,
            &self.fp64s,
            &self.bytes,
        ];
        lists.map(Clone::clone).to_vec()
    }

    /// Returns the tensor's bytes, provided that the only non-empty list is the one for its
    /// datatype.
    ///
    /// `datatype` is `None` if the client specifies an unknown datatype, which matches no list.
    ///
    /// As in Triton, 8-bit and 16-bit integers are the low bytes of their 32-bit elements, and the
    /// other bytes are not checked. `FP16` and `BF16` have no list.
    pub(super) fn into_buffer(
        self,
        input: &str,
        model: &str,
        datatype: Option<DataType>,
    ) -> Result<Buffer, Status> {
        let small_int = match datatype {
            Some(small @ (DataType::Int8 | DataType::Int16)) => small,
            _ => DataType::Int32,
        };
        let small_uint = match datatype {
            Some(small @ (DataType::Uint8 | DataType::Uint16)) => small,
            _ => DataType::Uint32,
        };
        let lists = [
            (DataType::Bool, self.bools),
            (small_int, self.ints),
            (DataType::Int64, self.int64s),
            (small_uint, self.uints),
            (DataType::Uint64, self.uint64s),
            (DataType::Fp32, self.fp32s),
            (DataType::Fp64, self.fp64s),
            (DataType::Bytes, self.bytes),
        ];
        let mut data = Vec::new();
        for (held, list) in lists {
            if list.is_empty() {
                continue;
            }
            check_list(input, model, held, datatype, data.is_empty())?;
            data = list;
        }
        let mut data = datatype.map_or_else(Vec::new, |datatype| narrow(data, datatype));
        let Some(mut charge) = self.charge else { return Ok(Buffer::from_vec(data)) };
        data.shrink_to_fit();
        charge.shrink(data.capacity());
        Ok(Buffer::from_bytes(Bytes::from_owner(charge.attach_to(data))).mark_charged())
    }
}

fn check_list(
    input: &str,
    model: &str,
    held: DataType,
    datatype: Option<DataType>,
    is_first: bool,
) -> Result<(), Status> {
    let prefix = format_args!(
        "unexpected explicit tensor data for input tensor '{input}' for model '{model}'"
    );
    if !is_first {
        return Err(Status::invalid_argument(format!(
            "{prefix}, binary data was already supplied."
        )));
    }
    if datatype != Some(held) {
        let datatype = datatype.map_or("<invalid>", DataType::protocol_name);
        return Err(Status::invalid_argument(format!(
            "{prefix} of type '{held}', expected datatype '{datatype}'"
        )));
    }
    Ok(())
}

/// Keeps the low bytes of four-byte elements where the datatype is narrower.
fn narrow(data: Vec<u8>, datatype: DataType) -> Vec<u8> {
    match datatype {
        DataType::Int8 | DataType::Uint8 => {
            data.as_chunks::<4>().0.iter().map(|[low, ..]| *low).collect()
        }
        DataType::Int16 | DataType::Uint16 => {
            data.as_chunks::<4>().0.iter().flat_map(|[low, high, ..]| [*low, *high]).collect()
        }
        DataType::Bool
        | DataType::Uint32
        | DataType::Uint64
        | DataType::Int32
        | DataType::Int64
        | DataType::Fp16
        | DataType::Fp32
        | DataType::Fp64
        | DataType::Bytes
        | DataType::Bf16 => data,
    }
}

/// Appends the numbers of a repeated field. Memory for the numbers is reserved once: a number may
/// take one byte on the wire but eight in memory, and growing the list would double that.
fn push_varints<const SIZE: usize>(
    into: &mut Vec<u8>,
    value: WireValue<'_>,
    bytes: impl Fn(u64) -> [u8; SIZE],
) -> Result<(), MalformedMessage> {
    let needed = value.varint_count().saturating_mul(SIZE);
    if into.is_empty() {
        into.reserve_exact(needed);
    } else {
        into.reserve(needed);
    }
    value.varints(|number| {
        into.extend_from_slice(&bytes(number));
        Ok(())
    })
}

const fn low_half(number: u64) -> [u8; 4] {
    let [a, b, c, d, ..] = number.to_le_bytes();
    [a, b, c, d]
}

fn push_fixed<const N: usize>(into: &mut Vec<u8>, packed: &[u8]) -> Result<(), MalformedMessage> {
    let (_, rest) = packed.as_chunks::<N>();
    if !rest.is_empty() {
        return Err(MalformedMessage);
    }
    into.extend_from_slice(packed);
    Ok(())
}
