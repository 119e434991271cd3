//! Element types.

use galatea_tensor::DataType;

/// The data types that both the server and the library support, with the library's numbers for them
/// (`c10::ScalarType`). Triton's backend does not support UINT16, UINT32, UINT64 and BF16.
const DATATYPES: [(DataType, i32, &str); 13] = [
    (DataType::Uint8, 0, "uint8"),
    (DataType::Int8, 1, "int8"),
    (DataType::Int16, 2, "int16"),
    (DataType::Int32, 3, "int32"),
    (DataType::Int64, 4, "int64"),
    (DataType::Fp16, 5, "float16"),
    (DataType::Fp32, 6, "float32"),
    (DataType::Fp64, 7, "float64"),
    (DataType::Bool, 11, "bool"),
    (DataType::Bf16, 15, "bfloat16"),
    (DataType::Uint16, 27, "uint16"),
    (DataType::Uint32, 28, "uint32"),
    (DataType::Uint64, 29, "uint64"),
];

/// The data type with the library's number.
pub(crate) fn of_number(number: i32) -> Option<DataType> {
    DATATYPES.iter().find(|(_, known, _)| *known == number).map(|(datatype, ..)| *datatype)
}

/// The data type that has this name in Python programs, such as `float32`.
pub(crate) fn of_name(name: &str) -> Option<DataType> {
    DATATYPES.iter().find(|(.., known)| *known == name).map(|(datatype, ..)| *datatype)
}

/// The library's number for a data type.
pub(crate) fn number(datatype: DataType) -> Option<i32> {
    DATATYPES.iter().find(|(known, ..)| *known == datatype).map(|(_, number, _)| *number)
}
