//! Reads files in the format of safetensors: the length of a JSON header in 64 bits, the header,
//! which states the type, the shape and the place of each tensor, and the tensors' bytes.

use serde_json::Value;

use crate::error::TextModelError;
use crate::floats::{widen_bfloat, widen_half};

/// The content of a file.
pub(crate) struct Safetensors<'a> {
    file: &'a str,
    header: Value,
    /// The bytes behind the header, which the places of tensors refer to.
    data: &'a [u8],
}

impl<'a> Safetensors<'a> {
    pub(crate) fn read(file: &'a str, content: &'a [u8]) -> Result<Self, TextModelError> {
        let invalid = |problem: String| TextModelError::new(file, problem);
        let truncated = || invalid(String::from("the file is not in the format of safetensors"));
        let (length, rest) = content.split_first_chunk().ok_or_else(truncated)?;
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| truncated())?;
        let (header, data) = rest.split_at_checked(length).ok_or_else(truncated)?;
        let header = serde_json::from_slice(header).map_err(|error| invalid(error.to_string()))?;
        Ok(Self { file, header, data })
    }

    /// Returns the values of a tensor of floats with this shape.
    pub(crate) fn floats(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, TextModelError> {
        let invalid =
            |problem: String| TextModelError::new(self.file, format!("tensor '{name}': {problem}"));
        let missing = || invalid(String::from("the tensor is missing"));
        let tensor = self.header.get(name).ok_or_else(missing)?;
        let stated = numbers(tensor.get("shape"));
        if stated.as_deref() != Some(shape) {
            let stated = tensor.get("shape").unwrap_or(&Value::Null);
            return Err(invalid(format!("the shape is {stated} instead of {shape:?}")));
        }
        let datatype = tensor.get("dtype").and_then(Value::as_str).unwrap_or_default();
        let (size, convert) = float_format(datatype).ok_or_else(|| {
            let datatype = datatype.escape_debug();
            invalid(format!("the type '{datatype}' is not F64, F32, F16 or BF16"))
        })?;
        let bytes = match numbers(tensor.get("data_offsets")).as_deref() {
            Some([start, end]) => self.data.get(*start..*end),
            _ => None,
        };
        let expected = shape.iter().fold(size, |size, dim| size.saturating_mul(*dim));
        let bytes = bytes.filter(|bytes| bytes.len() == expected).ok_or_else(|| {
            invalid(format!("'data_offsets' is not the place of {expected} bytes in the file"))
        })?;
        Ok(bytes.chunks_exact(size).map(convert).collect())
    }
}

/// The conversion of a number from its bytes.
type Convert = fn(&[u8]) -> f32;

/// The size of a number, and its conversion.
fn float_format(datatype: &str) -> Option<(usize, Convert)> {
    Some(match datatype {
        "F64" => (8, |bytes| narrow(f64::from_le_bytes(array(bytes)))),
        "F32" => (4, |bytes| f32::from_le_bytes(array(bytes))),
        "F16" => (2, |bytes| widen_half(array(bytes))),
        "BF16" => (2, |bytes| widen_bfloat(array(bytes))),
        _ => return None,
    })
}

/// The bytes of one number.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().unwrap_or([0; N])
}

#[expect(clippy::cast_possible_truncation, reason = "the nearest number of 32 bits is meant")]
const fn narrow(number: f64) -> f32 {
    number as f32
}

/// A list of sizes.
fn numbers(listed: Option<&Value>) -> Option<Vec<usize>> {
    let number = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
    listed?.as_array()?.iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
    }

    fn check(header: &str, data: &[u8], shape: &[usize], expected: Result<&[f32], &str>) {
        let content = file(header, data);
        let read = Safetensors::read("f", &content).and_then(|read| read.floats("w", shape));
        let found = read.map_err(|error| error.to_string());
        assert_eq!(
            found,
            expected.map(<[f32]>::to_vec).map_err(|it| format!("f: {it}")),
            "{header}"
        );
    }

    fn tensor(datatype: &str, shape: &str, offsets: &str) -> String {
        format!(
            "{{\"__metadata__\": {{\"format\": \"pt\"}}, \"w\": {{\"dtype\": \"{datatype}\", \
             \"shape\": {shape}, \"data_offsets\": {offsets}}}}}"
        )
    }

    #[test]
    fn floats_of_each_size_are_read() {
        let bytes = [&[9; 4][..], &1.5_f32.to_le_bytes(), &(-2.0_f32).to_le_bytes()].concat();
        check(&tensor("F32", "[2]", "[4, 12]"), &bytes, &[2], Ok(&[1.5, -2.0]));
        check(&tensor("F64", "[1, 1]", "[0, 8]"), &0.25_f64.to_le_bytes(), &[1, 1], Ok(&[0.25]));
        let halves = [0x00, 0x3c, 0x00, 0xc0];
        check(&tensor("F16", "[2, 1]", "[0, 4]"), &halves, &[2, 1], Ok(&[1.0, -2.0]));
        check(&tensor("BF16", "[1]", "[0, 2]"), &[0x80, 0x3f], &[1], Ok(&[1.0]));
    }

    #[test]
    fn invalid_files_are_refused() {
        let check = |header: &str, shape: &[usize], expected: &str| {
            check(header, &[0; 8], shape, Err(expected));
        };
        let place = "tensor 'w': 'data_offsets' is not the place of 8 bytes in the file";
        for offsets in ["[4, 12]", "[8, 0]", "[0, 4]", "[0, 8, 8]", "[-1, 8]", "8"] {
            check(&tensor("F32", "[2]", offsets), &[2], place);
        }
        let shape = "tensor 'w': the shape is [2] instead of [1, 2]";
        check(&tensor("F32", "[2]", "[0, 8]"), &[1, 2], shape);
        let integers = "tensor 'w': the type 'I64' is not F64, F32, F16 or BF16";
        check(&tensor("I64", "[1]", "[0, 8]"), &[1], integers);
        check("{}", &[1], "tensor 'w': the tensor is missing");
        check("[", &[1], "EOF while parsing a list at line 1 column 1");
        let content = file("{}", &[]);
        for short in [&content[..7], &content[..9]] {
            let error = Safetensors::read("f", short).err().unwrap().to_string();
            assert_eq!(error, "f: the file is not in the format of safetensors");
        }
        assert!(Safetensors::read("f", &[0xff; 16]).is_err());
    }
}
