//! Element types.

use std::ffi::c_int;

use galatea_runtime::ElementKind;
use galatea_tensor::DataType;

/// The server's data types that the library supports, with the library's numbers for them. Triton's
/// backend supports neither BF16 nor FP64.
const DATATYPES: [(DataType, c_int); 13] = [
    (DataType::Bool, 1),
    (DataType::Bf16, 2),
    (DataType::Fp16, 3),
    (DataType::Fp32, 4),
    (DataType::Fp64, 5),
    (DataType::Int8, 7),
    (DataType::Int16, 8),
    (DataType::Int32, 9),
    (DataType::Int64, 10),
    (DataType::Uint8, 16),
    (DataType::Uint16, 17),
    (DataType::Uint32, 18),
    (DataType::Uint64, 19),
];

/// The data type with the library's number.
pub(super) fn datatype(number: c_int) -> Option<DataType> {
    DATATYPES.iter().find(|(_, known)| *known == number).map(|(datatype, _)| *datatype)
}

/// The library's number for a data type.
pub(super) fn number(datatype: DataType) -> Option<c_int> {
    DATATYPES.iter().find(|(known, _)| *known == datatype).map(|(_, number)| *number)
}

/// The type in the form that configurations are compared with.
pub(super) fn kind(number: c_int) -> ElementKind {
    datatype(number).map_or_else(
        || ElementKind::Unknown(format!("OpenVINO element type {number}, which is unsupported")),
        ElementKind::Known,
    )
}
