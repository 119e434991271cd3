//! The list of tritonserver.h functions that this crate exports, used to check that C code finds
//! them. The list also keeps the functions in a program that calls none of them.

use crate::{buffer_attributes, error_functions, log_functions, message, names, parameter};

/// A function that C code can call.
#[derive(Copy, Clone, Debug)]
pub struct ExportedFunction {
    /// The function's name.
    pub name: &'static str,
    /// The function's address as a number.
    pub address: usize,
}

impl ExportedFunction {
    /// Creates an entry for the function `name`.
    #[must_use]
    pub fn new(name: &'static str, function: *const ()) -> Self {
        Self { name, address: function.addr() }
    }
}

macro_rules! list {
    ($($module:ident { $($name:ident),* $(,)? })*) => {
        /// All functions.
        #[must_use]
        pub fn all() -> Vec<ExportedFunction> {
            vec![$($(
                ExportedFunction::new(stringify!($name), $module::$name as *const ())
            ),*),*]
        }
    };
}

list! {
    buffer_attributes {
        TRITONSERVER_BufferAttributesNew,
        TRITONSERVER_BufferAttributesDelete,
        TRITONSERVER_BufferAttributesMemoryTypeId,
        TRITONSERVER_BufferAttributesSetMemoryTypeId,
        TRITONSERVER_BufferAttributesMemoryType,
        TRITONSERVER_BufferAttributesSetMemoryType,
        TRITONSERVER_BufferAttributesByteSize,
        TRITONSERVER_BufferAttributesSetByteSize,
        TRITONSERVER_BufferAttributesCudaIpcHandle,
        TRITONSERVER_BufferAttributesSetCudaIpcHandle,
    }
    error_functions {
        TRITONSERVER_ErrorNew,
        TRITONSERVER_ErrorDelete,
        TRITONSERVER_ErrorCode,
        TRITONSERVER_ErrorCodeString,
        TRITONSERVER_ErrorMessage,
    }
    log_functions { TRITONSERVER_LogIsEnabled, TRITONSERVER_LogMessage }
    message {
        TRITONSERVER_MessageNewFromSerializedJson,
        TRITONSERVER_MessageDelete,
        TRITONSERVER_MessageSerializeToJson,
    }
    names {
        TRITONSERVER_ApiVersion,
        TRITONSERVER_DataTypeString,
        TRITONSERVER_StringToDataType,
        TRITONSERVER_DataTypeByteSize,
        TRITONSERVER_MemoryTypeString,
        TRITONSERVER_ParameterTypeString,
        TRITONSERVER_InstanceGroupKindString,
        TRITONSERVER_InferenceTraceLevelString,
        TRITONSERVER_InferenceTraceActivityString,
    }
    parameter {
        TRITONSERVER_ParameterNew,
        TRITONSERVER_ParameterBytesNew,
        TRITONSERVER_ParameterDelete,
    }
}
