//! The functions of tritonserver.h that this crate exports, for whoever checks that
//! C code finds them. Listing them also keeps them in a program that calls none.

use crate::{buffer_attributes, error, log, message, names, parameter};

macro_rules! list {
    ($($module:ident { $($name:ident),* $(,)? })*) => {
        /// Names and addresses.
        #[must_use]
        pub fn all() -> Vec<(&'static str, usize)> {
            vec![$($((stringify!($name), ($module::$name as *const ()).addr())),*),*]
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
    error {
        TRITONSERVER_ErrorNew,
        TRITONSERVER_ErrorDelete,
        TRITONSERVER_ErrorCode,
        TRITONSERVER_ErrorCodeString,
        TRITONSERVER_ErrorMessage,
    }
    log { TRITONSERVER_LogIsEnabled, TRITONSERVER_LogMessage }
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
