//! The API version and the names of enumeration values.

use core::ffi::{CStr, c_char};

use galatea_abi::server::{
    TRITONSERVER_ApiVersion, TRITONSERVER_DataTypeByteSize, TRITONSERVER_DataTypeString,
    TRITONSERVER_InferenceTraceActivityString, TRITONSERVER_InferenceTraceLevelString,
    TRITONSERVER_InstanceGroupKindString, TRITONSERVER_MemoryTypeString,
    TRITONSERVER_ParameterTypeString, TRITONSERVER_StringToDataType,
};
use galatea_abi::*;
use galatea_tensor::DataType;

use crate::guard::{catch_panic, catch_panic_or};
use crate::pointer;

/// Each data type's number in C and its name.
const DATA_TYPES: [(DataType, TRITONSERVER_DataType, &CStr); 14] = [
    (DataType::Bool, TRITONSERVER_TYPE_BOOL, c"BOOL"),
    (DataType::Uint8, TRITONSERVER_TYPE_UINT8, c"UINT8"),
    (DataType::Uint16, TRITONSERVER_TYPE_UINT16, c"UINT16"),
    (DataType::Uint32, TRITONSERVER_TYPE_UINT32, c"UINT32"),
    (DataType::Uint64, TRITONSERVER_TYPE_UINT64, c"UINT64"),
    (DataType::Int8, TRITONSERVER_TYPE_INT8, c"INT8"),
    (DataType::Int16, TRITONSERVER_TYPE_INT16, c"INT16"),
    (DataType::Int32, TRITONSERVER_TYPE_INT32, c"INT32"),
    (DataType::Int64, TRITONSERVER_TYPE_INT64, c"INT64"),
    (DataType::Fp16, TRITONSERVER_TYPE_FP16, c"FP16"),
    (DataType::Fp32, TRITONSERVER_TYPE_FP32, c"FP32"),
    (DataType::Fp64, TRITONSERVER_TYPE_FP64, c"FP64"),
    (DataType::Bytes, TRITONSERVER_TYPE_BYTES, c"BYTES"),
    (DataType::Bf16, TRITONSERVER_TYPE_BF16, c"BF16"),
];

/// Returns a data type's number in C.
#[must_use]
pub fn data_type_to_c(datatype: DataType) -> TRITONSERVER_DataType {
    let found = DATA_TYPES.iter().find(|(one, ..)| *one == datatype);
    found.map_or(TRITONSERVER_TYPE_INVALID, |(_, number, _)| *number)
}

/// Returns the data type with this number.
#[must_use]
pub fn data_type_from_c(number: TRITONSERVER_DataType) -> Option<DataType> {
    DATA_TYPES.iter().find(|(_, one, _)| *one == number).map(|(datatype, ..)| *datatype)
}

/// Returns a data type's name as a C string.
#[must_use]
pub fn data_type_name(number: TRITONSERVER_DataType) -> &'static CStr {
    let found = DATA_TYPES.iter().find(|(_, one, _)| *one == number);
    found.map_or(c"<invalid>", |(_, _, name)| name)
}

const _: TRITONSERVER_ApiVersion = TRITONSERVER_ApiVersion;
/// Returns the version of the server API.
///
/// # Safety
///
/// The pointers must be null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ApiVersion(
    major: *mut u32,
    minor: *mut u32,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_ApiVersion", || {
        // SAFETY: guaranteed by the caller.
        unsafe {
            pointer::write(major, SERVER_API_VERSION.0, "major")?;
            pointer::write(minor, SERVER_API_VERSION.1, "minor")
        }
    })
}

const _: TRITONSERVER_StringToDataType = TRITONSERVER_StringToDataType;
/// Returns the data type with this name, or the invalid data type.
///
/// # Safety
///
/// `dtype` must be null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_StringToDataType(
    dtype: *const c_char,
) -> TRITONSERVER_DataType {
    catch_panic_or("TRITONSERVER_StringToDataType", TRITONSERVER_TYPE_INVALID, || {
        if dtype.is_null() {
            return TRITONSERVER_TYPE_INVALID;
        }
        // SAFETY: the caller guarantees a valid string.
        let name = unsafe { CStr::from_ptr(dtype) };
        let found = DATA_TYPES.iter().find(|(_, _, one)| *one == name);
        found.map_or(TRITONSERVER_TYPE_INVALID, |(_, number, _)| *number)
    })
}

const _: TRITONSERVER_DataTypeByteSize = TRITONSERVER_DataTypeByteSize;
/// Returns the size of an element, or 0 for strings and for an invalid data type.
///
/// # Safety
///
/// None beyond the declaration: all C functions are declared unsafe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_DataTypeByteSize(datatype: TRITONSERVER_DataType) -> u32 {
    let size = data_type_from_c(datatype).and_then(DataType::byte_size);
    size.and_then(|size| u32::try_from(size).ok()).unwrap_or(0)
}

/// Defines a function that returns the names of an enumeration's values.
macro_rules! names {
    ($function:ident($kind:ty), else $other:literal, $($value:ident => $name:literal,)*) => {
        const _: $function = self::$function;
        /// Returns the value's name.
        ///
        /// # Safety
        ///
        /// None beyond the declaration: all C functions are declared unsafe.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $function(value: $kind) -> *const c_char {
            let name: &'static CStr = match value {
                $($value => $name,)*
                _ => $other,
            };
            name.as_ptr()
        }
    };
}

const _: TRITONSERVER_DataTypeString = TRITONSERVER_DataTypeString;
/// Returns the data type's name.
///
/// # Safety
///
/// None beyond the declaration: all C functions are declared unsafe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_DataTypeString(
    datatype: TRITONSERVER_DataType,
) -> *const c_char {
    data_type_name(datatype).as_ptr()
}

names!(TRITONSERVER_MemoryTypeString(TRITONSERVER_MemoryType),
    else c"<invalid>",
    TRITONSERVER_MEMORY_CPU => c"CPU",
    TRITONSERVER_MEMORY_CPU_PINNED => c"CPU_PINNED",
    TRITONSERVER_MEMORY_GPU => c"GPU",
);

names!(TRITONSERVER_ParameterTypeString(TRITONSERVER_ParameterType),
    else c"<invalid>",
    TRITONSERVER_PARAMETER_STRING => c"STRING",
    TRITONSERVER_PARAMETER_INT => c"INT",
    TRITONSERVER_PARAMETER_BOOL => c"BOOL",
    TRITONSERVER_PARAMETER_BYTES => c"BYTES",
    TRITONSERVER_PARAMETER_DOUBLE => c"DOUBLE",
);

names!(TRITONSERVER_InstanceGroupKindString(TRITONSERVER_InstanceGroupKind),
    else c"<invalid>",
    TRITONSERVER_INSTANCEGROUPKIND_AUTO => c"AUTO",
    TRITONSERVER_INSTANCEGROUPKIND_CPU => c"CPU",
    TRITONSERVER_INSTANCEGROUPKIND_GPU => c"GPU",
    TRITONSERVER_INSTANCEGROUPKIND_MODEL => c"MODEL",
);

names!(TRITONSERVER_InferenceTraceLevelString(TRITONSERVER_InferenceTraceLevel),
    else c"<unknown>",
    TRITONSERVER_TRACE_LEVEL_DISABLED => c"DISABLED",
    TRITONSERVER_TRACE_LEVEL_MIN => c"MIN",
    TRITONSERVER_TRACE_LEVEL_MAX => c"MAX",
    TRITONSERVER_TRACE_LEVEL_TIMESTAMPS => c"TIMESTAMPS",
    TRITONSERVER_TRACE_LEVEL_TENSORS => c"TENSORS",
);

names!(TRITONSERVER_InferenceTraceActivityString(TRITONSERVER_InferenceTraceActivity),
    else c"<unknown>",
    TRITONSERVER_TRACE_REQUEST_START => c"REQUEST_START",
    TRITONSERVER_TRACE_QUEUE_START => c"QUEUE_START",
    TRITONSERVER_TRACE_COMPUTE_START => c"COMPUTE_START",
    TRITONSERVER_TRACE_COMPUTE_INPUT_END => c"COMPUTE_INPUT_END",
    TRITONSERVER_TRACE_COMPUTE_OUTPUT_START => c"COMPUTE_OUTPUT_START",
    TRITONSERVER_TRACE_COMPUTE_END => c"COMPUTE_END",
    TRITONSERVER_TRACE_REQUEST_END => c"REQUEST_END",
    TRITONSERVER_TRACE_TENSOR_QUEUE_INPUT => c"TENSOR_QUEUE_INPUT",
    TRITONSERVER_TRACE_TENSOR_BACKEND_INPUT => c"TENSOR_BACKEND_INPUT",
    TRITONSERVER_TRACE_TENSOR_BACKEND_OUTPUT => c"TENSOR_BACKEND_OUTPUT",
    TRITONSERVER_TRACE_CUSTOM_ACTIVITY => c"CUSTOM_ACTIVITY",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_datatype_has_a_number_and_a_name() {
        for (datatype, number, name) in DATA_TYPES {
            assert_eq!(data_type_to_c(datatype), number);
            assert_eq!(data_type_from_c(number), Some(datatype));
            assert_eq!(name.to_str().unwrap(), datatype.to_string());
            // SAFETY: the name is NUL-terminated.
            assert_eq!(unsafe { TRITONSERVER_StringToDataType(name.as_ptr()) }, number);
        }
        assert_eq!(data_type_from_c(TRITONSERVER_DataType(99)), None);
        assert_eq!(data_type_name(TRITONSERVER_TYPE_INVALID), c"<invalid>");
    }
}
