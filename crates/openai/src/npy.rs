//! Reads arrays from files of NumPy's format `.npy`, versions 1 to 3.

use bytes::Bytes;
use galatea_infer::InputTensor;
use galatea_tensor::{Buffer, DataType, Shape};

const MAGIC: &[u8] = b"\x93NUMPY";

/// Creates an input with the type, shape and elements of the array in a file. The elements are not
/// copied.
///
/// # Errors
///
/// Returns the reason why the file can't be read: another format, a type without a counterpart,
/// columns before rows, or too few elements.
pub fn tensor_of_npy(name: &str, file: &Bytes) -> Result<InputTensor, String> {
    let (header, at) = header(file).ok_or("it is no file of NumPy")?;
    let described = member(header, "descr").and_then(|text| quoted(text)).unwrap_or_default();
    let datatype = datatype(described)
        .ok_or_else(|| format!("arrays of type '{}' can't be sent", described.escape_debug()))?;
    match member(header, "fortran_order") {
        Some(text) if text.starts_with("False") => {}
        _ => return Err(String::from("arrays in Fortran's order can't be sent")),
    }
    let dims = member(header, "shape").and_then(dims).ok_or("its shape can't be read")?;
    let shape = Shape::new(&dims).map_err(|error| error.to_string())?;
    let length = shape.byte_size(datatype).and_then(|length| usize::try_from(length).ok());
    let length = length.ok_or("its shape is too large")?;
    let end = at.checked_add(length).filter(|end| *end <= file.len());
    let end = end.ok_or("it ends before its last element")?;
    let data = Buffer::from_bytes(file.slice(at..end));
    Ok(InputTensor { name: name.to_owned(), datatype, shape, data })
}

/// Returns the description of the array, and the position of its first element.
fn header(file: &[u8]) -> Option<(&str, usize)> {
    let rest = file.strip_prefix(MAGIC)?;
    let (&[major, _], rest) = rest.split_first_chunk()?;
    let (length, rest) = match major {
        1 => {
            let (length, rest) = rest.split_first_chunk()?;
            (u16::from_le_bytes(*length).into(), rest)
        }
        2 | 3 => {
            let (length, rest) = rest.split_first_chunk()?;
            (usize::try_from(u32::from_le_bytes(*length)).ok()?, rest)
        }
        _ => return None,
    };
    let text = std::str::from_utf8(rest.get(..length)?).ok()?;
    let behind = rest.len().checked_sub(length)?;
    Some((text, file.len().checked_sub(behind)?))
}

/// Returns the text that begins with a member's value. The text is the literal of a dictionary in
/// Python.
fn member<'t>(header: &'t str, name: &str) -> Option<&'t str> {
    let (_, behind) = header.split_once(&format!("'{name}':"))?;
    Some(behind.trim_start())
}

fn quoted(text: &str) -> Option<&str> {
    Some(text.strip_prefix('\'')?.split_once('\'')?.0)
}

/// Returns the type with NumPy's name. NumPy has no BF16: TensorRT-LLM saves its elements as two
/// bytes without a type.
fn datatype(described: &str) -> Option<DataType> {
    Some(match described {
        "|b1" => DataType::Bool,
        "|u1" => DataType::Uint8,
        "|i1" => DataType::Int8,
        "<u2" => DataType::Uint16,
        "<i2" => DataType::Int16,
        "<u4" => DataType::Uint32,
        "<i4" => DataType::Int32,
        "<u8" => DataType::Uint64,
        "<i8" => DataType::Int64,
        "<f2" => DataType::Fp16,
        "<f4" => DataType::Fp32,
        "<f8" => DataType::Fp64,
        "|V2" => DataType::Bf16,
        _ => return None,
    })
}

/// Reads the literal of a tuple of integers.
fn dims(text: &str) -> Option<Vec<i64>> {
    let (inside, _) = text.strip_prefix('(')?.split_once(')')?;
    let inside = inside.trim().trim_end_matches(',');
    if inside.is_empty() {
        return Some(Vec::new());
    }
    inside.split(',').map(|dim| dim.trim().parse().ok().filter(|dim| *dim >= 0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(major: u8, header: &str, data: &[u8]) -> Bytes {
        let mut file = MAGIC.to_vec();
        file.extend_from_slice(&[major, 0]);
        let length = u16::try_from(header.len()).unwrap();
        file.extend_from_slice(&length.to_le_bytes());
        if major > 1 {
            file.extend_from_slice(&[0, 0]);
        }
        file.extend_from_slice(header.as_bytes());
        file.extend_from_slice(data);
        file.into()
    }

    fn read(major: u8, header: &str, data: &[u8]) -> Result<String, String> {
        let tensor = tensor_of_npy("w", &file(major, header, data))?;
        let data = tensor.data.host_bytes().unwrap();
        Ok(format!("{} {:?} {:?}", tensor.datatype, tensor.shape.dims(), &data[..]))
    }

    #[test]
    fn arrays_become_inputs() {
        let two = "{'descr': '<f2', 'fortran_order': False, 'shape': (1, 2), }   \n";
        assert_eq!(read(1, two, &[1, 2, 3, 4]).unwrap(), "FP16 [1, 2] [1, 2, 3, 4]");
        assert_eq!(read(2, two, &[1, 2, 3, 4, 5]).unwrap(), "FP16 [1, 2] [1, 2, 3, 4]");
        let bf16 = "{'descr': '|V2', 'fortran_order': False, 'shape': (1,), }\n";
        assert_eq!(read(1, bf16, &[1, 2]).unwrap(), "BF16 [1] [1, 2]");
        let scalar = "{'shape': (), 'fortran_order': False, 'descr': '<i4'}";
        assert_eq!(read(3, scalar, &[1, 2, 3, 4]).unwrap(), "INT32 [] [1, 2, 3, 4]");
    }

    #[test]
    fn other_files_are_refused() {
        let check = |header: &str, data: &[u8], expected: &str| {
            assert_eq!(read(1, header, data).unwrap_err(), expected);
        };
        let two = "{'descr': '<i2', 'fortran_order': False, 'shape': (2,)}";
        check(two, &[1, 2, 3], "it ends before its last element");
        check(&two.replace("<i2", ">i2"), &[], "arrays of type '>i2' can't be sent");
        check(&two.replace("<i2", "|O"), &[], "arrays of type '|O' can't be sent");
        check(&two.replace("False", "True"), &[], "arrays in Fortran's order can't be sent");
        check(&two.replace("(2,)", "(-2,)"), &[], "its shape can't be read");
        check(&two.replace("(2,)", "[2]"), &[], "its shape can't be read");
        check("", &[], "arrays of type '' can't be sent");
        let huge = two.replace("(2,)", "(4611686018427387904, 4)");
        assert!(read(1, &huge, &[]).is_err());
        for bytes in [&b""[..], b"\x93NUMPY", b"\x93NUMPY\x01\x00\xff\xff{", b"\x93NUMPY\x09\x00"] {
            let error = tensor_of_npy("w", &Bytes::copy_from_slice(bytes)).unwrap_err();
            assert_eq!(error, "it is no file of NumPy");
        }
    }
}
