//! The byte format of cached responses.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | the format's magic number |
//! | 32 | a hash of all that follows, keyed with the response's key |
//! | 8 | the length of the description, from here to the first tensor |
//! | … | the description: model, version, parameters, and each output without its data |
//! | … | the outputs' data, each aligned to [`ALIGNMENT`] |
//!
//! Numbers are little-endian. The hash detects bytes that are damaged, truncated or stored under a
//! different key, so the decoder accepts only bytes that this module wrote. It still checks all
//! lengths and never trusts a number that it reads.

use bytes::Bytes;
use galatea_backend::CacheKey;
use galatea_infer::{InferenceResponse, OutputTensor, Parameter, ParameterValue};
use galatea_stdx::len64;
use galatea_tensor::{Buffer, DataType, Shape};

/// A magic number that changes with the format.
const MAGIC: [u8; 8] = *b"galatea1";
const DIGEST: usize = 32;
const HEAD: usize = MAGIC.len() + DIGEST;
/// The alignment of memory from `malloc`, so that readers can access numbers in place.
const ALIGNMENT: usize = 16;

/// A response that is ready to be written.
pub(super) struct EncodedResponse {
    digest: [u8; DIGEST],
    description: Vec<u8>,
    tensors: Vec<Bytes>,
    byte_size: usize,
}

impl EncodedResponse {
    /// `None` if the response isn't in CPU memory.
    pub(super) fn new(key: &CacheKey, response: &InferenceResponse) -> Option<Self> {
        let tensors: Option<Vec<Bytes>> =
            response.outputs.iter().map(|output| output.data.host_bytes().cloned()).collect();
        let mut encoded = Self {
            digest: [0; DIGEST],
            description: describe(response),
            tensors: tensors?,
            byte_size: 0,
        };
        let mut hasher = blake3::Hasher::new_keyed(&key.0);
        let mut byte_size = HEAD;
        encoded.parts(|part| {
            hasher.update(part);
            byte_size += part.len();
        });
        encoded.digest = *hasher.finalize().as_bytes();
        encoded.byte_size = byte_size;
        Some(encoded)
    }

    /// The number of bytes that [`Self::write`] writes.
    pub(super) const fn byte_size(&self) -> usize {
        self.byte_size
    }

    /// Passes all bytes to `out`, in order.
    pub(super) fn write(&self, mut out: impl FnMut(&[u8])) {
        out(&MAGIC);
        out(&self.digest);
        self.parts(out);
    }

    /// Passes the parts that follow the hash to `out`.
    fn parts(&self, mut out: impl FnMut(&[u8])) {
        out(&length(self.description.len()));
        out(&self.description);
        let mut position = HEAD + size_of::<u64>() + self.description.len();
        for tensor in &self.tensors {
            let padding = padding(position);
            out([0; ALIGNMENT].get(..padding).unwrap_or_default());
            out(tensor);
            position += padding + tensor.len();
        }
    }
}

/// The number of padding bytes before the next tensor.
const fn padding(position: usize) -> usize {
    position.next_multiple_of(ALIGNMENT) - position
}

fn length(bytes: usize) -> [u8; 8] {
    len64(bytes).to_le_bytes()
}

fn describe(response: &InferenceResponse) -> Vec<u8> {
    let mut out = Vec::new();
    push(&mut out, response.model_name.as_bytes());
    out.extend_from_slice(&response.model_version.to_le_bytes());
    out.extend_from_slice(&length(response.parameters.len()));
    for parameter in &response.parameters {
        push(&mut out, parameter.name.as_bytes());
        match &parameter.value {
            ParameterValue::Bool(value) => out.extend_from_slice(&[0, u8::from(*value)]),
            ParameterValue::Int64(value) => {
                out.push(1);
                out.extend_from_slice(&value.to_le_bytes());
            }
            ParameterValue::Double(value) => {
                out.push(2);
                out.extend_from_slice(&value.to_bits().to_le_bytes());
            }
            ParameterValue::String(value) => {
                out.push(3);
                push(&mut out, value.as_bytes());
            }
        }
    }
    out.extend_from_slice(&length(response.outputs.len()));
    for output in &response.outputs {
        push(&mut out, output.name.as_bytes());
        out.extend_from_slice(&output.datatype.config_number().to_le_bytes());
        out.extend_from_slice(&length(output.shape.rank()));
        for dim in output.shape.dims() {
            out.extend_from_slice(&dim.to_le_bytes());
        }
        out.extend_from_slice(&length(output.data.len()));
    }
    out
}

fn push(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&length(bytes.len()));
    out.extend_from_slice(bytes);
}

/// Decodes bytes that were written under this key. The outputs are slices of the entry.
///
/// # Errors
///
/// A description of what is wrong with the bytes.
pub(super) fn decode(key: &CacheKey, entry: &Bytes) -> Result<InferenceResponse, &'static str> {
    let Some((magic, rest)) = entry.split_first_chunk::<8>() else { return Err(CUT_SHORT) };
    if *magic != MAGIC {
        return Err("it was not written by this version of the server");
    }
    let Some((digest, rest)) = rest.split_first_chunk::<DIGEST>() else { return Err(CUT_SHORT) };
    // The comparison takes constant time, although that isn't needed here.
    if blake3::keyed_hash(&key.0, rest) != *digest {
        return Err("it is damaged, or another key's");
    }
    let mut reader = EntryReader { entry, position: HEAD };
    let description = reader.count()?;
    let tensors = reader.position.checked_add(description).ok_or(CUT_SHORT)?;
    let response = reader.response(tensors)?;
    if reader.position != tensors {
        return Err(MALFORMED);
    }
    Ok(response)
}

const CUT_SHORT: &str = "it is cut short";
const MALFORMED: &str = "it is malformed";

struct EntryReader<'a> {
    entry: &'a Bytes,
    position: usize,
}

impl EntryReader<'_> {
    /// Decodes the response. Its output data begins at `tensors`.
    fn response(&mut self, mut tensors: usize) -> Result<InferenceResponse, &'static str> {
        let model_name = self.text()?.into();
        let model_version = i64::from_le_bytes(self.array()?);
        let mut parameters = Vec::new();
        for _ in 0..self.count()? {
            parameters.push(self.parameter()?);
        }
        let mut outputs = Vec::new();
        for _ in 0..self.count()? {
            outputs.push(self.output(&mut tensors)?);
        }
        if tensors != self.entry.len() {
            return Err(MALFORMED);
        }
        let parameters = parameters.into();
        Ok(InferenceResponse { model_name, model_version, id: String::new(), parameters, outputs })
    }

    fn parameter(&mut self) -> Result<Parameter, &'static str> {
        let name = self.text()?.to_owned();
        let [kind] = self.array()?;
        let value = match kind {
            0 => ParameterValue::Bool(self.array::<1>()? != [0]),
            1 => ParameterValue::Int64(i64::from_le_bytes(self.array()?)),
            2 => ParameterValue::Double(f64::from_bits(u64::from_le_bytes(self.array()?))),
            3 => ParameterValue::String(self.text()?.to_owned()),
            _ => return Err(MALFORMED),
        };
        Ok(Parameter { name, value })
    }

    /// Decodes an output. `tensors` is the position where the previous output ends.
    fn output(&mut self, tensors: &mut usize) -> Result<OutputTensor, &'static str> {
        let name = self.text()?.into();
        let datatype =
            DataType::from_config_number(i32::from_le_bytes(self.array()?)).ok_or(MALFORMED)?;
        let mut dims = Vec::new();
        for _ in 0..self.count()? {
            dims.push(i64::from_le_bytes(self.array()?));
        }
        let shape = Shape::new(&dims).map_err(|_| MALFORMED)?;
        let byte_size = self.count()?;
        let expected = shape.byte_size(datatype);
        if datatype.byte_size().is_some() && expected != u64::try_from(byte_size).ok() {
            return Err(MALFORMED);
        }
        let start = tensors.checked_next_multiple_of(ALIGNMENT).ok_or(CUT_SHORT)?;
        let end = start.checked_add(byte_size).ok_or(CUT_SHORT)?;
        if end > self.entry.len() {
            return Err(CUT_SHORT);
        }
        *tensors = end;
        let data = Buffer::from_bytes(self.entry.slice(start..end));
        Ok(OutputTensor { name, datatype, shape, data })
    }

    fn text(&mut self) -> Result<&str, &'static str> {
        let count = self.count()?;
        str::from_utf8(self.take(count)?).map_err(|_| MALFORMED)
    }

    fn count(&mut self) -> Result<usize, &'static str> {
        usize::try_from(u64::from_le_bytes(self.array()?)).map_err(|_| MALFORMED)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        self.take(N)?.try_into().map_err(|_| CUT_SHORT)
    }

    fn take(&mut self, count: usize) -> Result<&[u8], &'static str> {
        let end = self.position.checked_add(count).ok_or(CUT_SHORT)?;
        let taken = self.entry.get(self.position..end).ok_or(CUT_SHORT)?;
        self.position = end;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: CacheKey = CacheKey([7; 32]);

    fn response() -> InferenceResponse {
        let parameter = |name: &str, value| Parameter { name: name.to_owned(), value };
        let output = |name: &str, datatype, dims: &[i64], data: &[u8]| OutputTensor {
            name: name.into(),
            datatype,
            shape: Shape::new(dims).unwrap(),
            data: Buffer::from_vec(data.to_vec()),
        };
        InferenceResponse {
            model_name: "modèle".into(),
            model_version: -3,
            id: String::from("left out"),
            parameters: vec![
                parameter("a", ParameterValue::Bool(true)),
                parameter("b", ParameterValue::Int64(i64::MIN)),
                parameter("", ParameterValue::Double(-0.5)),
                parameter("d", ParameterValue::String(String::from("ü"))),
            ]
            .into(),
            outputs: vec![
                output("x", DataType::Fp32, &[1, 2], &[1, 2, 3, 4, 5, 6, 7, 8]),
                output("text", DataType::Bytes, &[2], &[1, 0, 0, 0, 65, 0, 0, 0, 0]),
                output("none", DataType::Int64, &[0], &[]),
                output("scalar", DataType::Bool, &[], &[1]),
            ],
        }
    }

    fn encode(response: &InferenceResponse) -> Vec<u8> {
        let encoded = EncodedResponse::new(&KEY, response).unwrap();
        let mut bytes = Vec::new();
        encoded.write(|part| bytes.extend_from_slice(part));
        assert_eq!(bytes.len(), encoded.byte_size());
        bytes
    }

    fn read(bytes: &[u8]) -> Result<InferenceResponse, &'static str> {
        decode(&KEY, &Bytes::copy_from_slice(bytes))
    }

    #[test]
    fn a_response_is_read_back_unchanged() {
        let response = response();
        let bytes = Bytes::from(encode(&response));
        let found = decode(&KEY, &bytes).unwrap();
        assert_eq!((&*found.model_name, found.model_version), ("modèle", -3));
        assert_eq!((found.id.as_str(), &found.parameters), ("", &response.parameters));
        assert_eq!(found.outputs.len(), response.outputs.len());
        for (found, output) in found.outputs.iter().zip(&response.outputs) {
            assert_eq!((&found.name, found.datatype), (&output.name, output.datatype));
            assert_eq!(found.shape, output.shape);
            let data = found.data.host_bytes().unwrap();
            assert_eq!(data, output.data.host_bytes().unwrap());
            let offset = data.as_ptr().addr().wrapping_sub(bytes.as_ptr().addr());
            assert!(data.is_empty() || offset % ALIGNMENT == 0, "{offset}");
        }
        let nothing =
            InferenceResponse { parameters: Default::default(), outputs: Vec::new(), ..response };
        assert!(read(&encode(&nothing)).unwrap().outputs.is_empty());
    }

    #[test]
    fn all_damage_is_detected() {
        let bytes = encode(&response());
        for length in 0..bytes.len() {
            read(&bytes[..length]).unwrap_err();
        }
        for position in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[position] ^= 1 << bit;
                read(&damaged).unwrap_err();
            }
        }
        let mut longer = bytes.clone();
        longer.push(0);
        read(&longer).unwrap_err();
        let other = CacheKey([8; 32]);
        let reason = decode(&other, &Bytes::from(bytes)).unwrap_err();
        assert_eq!(reason, "it is damaged, or another key's");
    }

    /// Tests bytes whose hash is correct but whose contents are invalid.
    #[test]
    fn bytes_with_the_right_hash_are_not_trusted_either() {
        let bytes = encode(&response());
        let mut accepted = 0;
        for position in HEAD..bytes.len() {
            for value in [0, 1, 2, 3, 4, 15, 16, 127, 128, 255] {
                let mut damaged = bytes.clone();
                damaged[position] = value;
                accepted += usize::from(read(&sign(damaged)).is_ok());
            }
        }
        assert!(accepted > 0, "contents may be anything");
        for length in HEAD..bytes.len() {
            read(&sign(bytes[..length].to_vec())).unwrap_err();
        }
    }

    fn sign(mut bytes: Vec<u8>) -> Vec<u8> {
        let digest = blake3::keyed_hash(&KEY.0, &bytes[HEAD..]);
        bytes[MAGIC.len()..HEAD].copy_from_slice(digest.as_bytes());
        bytes
    }
}
