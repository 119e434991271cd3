//! The library's element types.

use std::ffi::c_int;

use galatea_tensor::DataType;

/// The number of the string type.
pub(crate) const STRING: c_int = 7;

/// The server's data types, the library's numbers for them, and their names in the library's
/// messages.
const DATATYPES: [(DataType, c_int, &str); 14] = [
    (DataType::Fp32, 1, "DT_FLOAT"),
    (DataType::Fp64, 2, "DT_DOUBLE"),
    (DataType::Int32, 3, "DT_INT32"),
    (DataType::Uint8, 4, "DT_UINT8"),
    (DataType::Int16, 5, "DT_INT16"),
    (DataType::Int8, 6, "DT_INT8"),
    (DataType::Bytes, STRING, "DT_STRING"),
    (DataType::Int64, 9, "DT_INT64"),
    (DataType::Bool, 10, "DT_BOOL"),
    (DataType::Bf16, 14, "DT_BFLOAT16"),
    (DataType::Uint16, 17, "DT_UINT16"),
    (DataType::Fp16, 19, "DT_HALF"),
    (DataType::Uint32, 22, "DT_UINT32"),
    (DataType::Uint64, 23, "DT_UINT64"),
];

/// The names of types that have no counterpart.
const OTHERS: [(c_int, &str); 10] = [
    (0, "DT_INVALID"),
    (8, "DT_COMPLEX64"),
    (11, "DT_QINT8"),
    (12, "DT_QUINT8"),
    (13, "DT_QINT32"),
    (15, "DT_QINT16"),
    (16, "DT_QUINT16"),
    (18, "DT_COMPLEX128"),
    (20, "DT_RESOURCE"),
    (21, "DT_VARIANT"),
];

/// The data type for the library's number, if there is one.
pub(crate) fn datatype(number: c_int) -> Option<DataType> {
    DATATYPES.iter().find(|(_, known, _)| *known == number).map(|(datatype, ..)| *datatype)
}

/// The library's number for a data type.
pub(crate) fn number(datatype: DataType) -> Option<c_int> {
    DATATYPES.iter().find(|(known, ..)| *known == datatype).map(|(_, number, _)| *number)
}

/// The name of a type in the library's messages; the number if the type has no name here.
pub(crate) fn name(number: c_int) -> String {
    let known = DATATYPES.iter().map(|(_, number, name)| (*number, *name));
    let mut all = known.chain(OTHERS);
    let name = all.find(|(known, _)| *known == number).map(|(_, name)| name.to_owned());
    name.unwrap_or_else(|| number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_datatype_has_a_number() {
        for known in DataType::ALL {
            assert_eq!(number(known).and_then(datatype), Some(known));
        }
        assert_eq!((datatype(20), datatype(99)), (None, None));
        assert_eq!(
            (name(1), name(20), name(99)),
            ("DT_FLOAT".into(), "DT_RESOURCE".into(), "99".into())
        );
    }
}
