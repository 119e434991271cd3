//! Parameters: named values that are passed when a model is loaded.

use core::ffi::{CStr, c_char, c_void};

use galatea_abi::server::{
    TRITONSERVER_ParameterBytesNew, TRITONSERVER_ParameterDelete, TRITONSERVER_ParameterNew,
};
use galatea_abi::{
    TRITONSERVER_PARAMETER_BOOL, TRITONSERVER_PARAMETER_DOUBLE, TRITONSERVER_PARAMETER_INT,
    TRITONSERVER_PARAMETER_STRING, TRITONSERVER_Parameter, TRITONSERVER_ParameterType,
};
use galatea_infer::ParameterValue;

use crate::guard::catch_panic_or;
use crate::handle;

/// A named value.
pub struct ParameterObject {
    /// The parameter's name.
    pub name: String,
    /// The parameter's value.
    pub value: ParameterContents,
}
crate::object!(ParameterObject as TRITONSERVER_Parameter, kind 3);

/// A parameter's value.
pub enum ParameterContents {
    /// A value of a simple type.
    Value(ParameterValue),
    /// Bytes that the caller owns: their address and length.
    Bytes(*const c_void, u64),
}

// SAFETY: the bytes are read only during the caller's call, and the parameter's creator guarantees
// that they live as long as the parameter.
unsafe impl Send for ParameterContents {}
// SAFETY: as above; nothing is modified through the address.
unsafe impl Sync for ParameterContents {}

const _: TRITONSERVER_ParameterNew = TRITONSERVER_ParameterNew;
/// Creates a parameter. Returns null if a pointer is null or the type has no single value.
///
/// # Safety
///
/// `name` must be null or a string. `value` must be null or valid for a read of a value of `type_`:
/// a string, an `int64_t`, a `bool` or a `double`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ParameterNew(
    name: *const c_char,
    type_: TRITONSERVER_ParameterType,
    value: *const c_void,
) -> *mut TRITONSERVER_Parameter {
    catch_panic_or("TRITONSERVER_ParameterNew", core::ptr::null_mut(), || {
        if name.is_null() || value.is_null() {
            return core::ptr::null_mut();
        }
        // SAFETY: the caller guarantees a value of this type.
        let value = unsafe {
            match type_ {
                TRITONSERVER_PARAMETER_STRING => {
                    let text = CStr::from_ptr(value.cast()).to_string_lossy();
                    ParameterValue::String(text.into_owned())
                }
                TRITONSERVER_PARAMETER_INT => {
                    ParameterValue::Int64(value.cast::<i64>().read_unaligned())
                }
                TRITONSERVER_PARAMETER_BOOL => ParameterValue::Bool(value.cast::<u8>().read() != 0),
                TRITONSERVER_PARAMETER_DOUBLE => {
                    ParameterValue::Double(value.cast::<f64>().read_unaligned())
                }
                _ => return core::ptr::null_mut(),
            }
        };
        // SAFETY: the caller guarantees a valid string.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        handle::into_raw(ParameterObject { name, value: ParameterContents::Value(value) })
    })
}

const _: TRITONSERVER_ParameterBytesNew = TRITONSERVER_ParameterBytesNew;
/// Creates a parameter that refers to bytes that the caller keeps.
///
/// # Safety
///
/// `name` must be null or a string. `byte_ptr` must be valid for reads of `size` bytes as long as
/// the parameter lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ParameterBytesNew(
    name: *const c_char,
    byte_ptr: *const c_void,
    size: u64,
) -> *mut TRITONSERVER_Parameter {
    catch_panic_or("TRITONSERVER_ParameterBytesNew", core::ptr::null_mut(), || {
        if name.is_null() || (byte_ptr.is_null() && size > 0) {
            return core::ptr::null_mut();
        }
        // SAFETY: the caller guarantees a valid string.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        handle::into_raw(ParameterObject { name, value: ParameterContents::Bytes(byte_ptr, size) })
    })
}

const _: TRITONSERVER_ParameterDelete = TRITONSERVER_ParameterDelete;
/// Deletes a parameter. Null is ignored.
///
/// # Safety
///
/// `parameter` must be null or a parameter that is not in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ParameterDelete(parameter: *mut TRITONSERVER_Parameter) {
    catch_panic_or("TRITONSERVER_ParameterDelete", (), || {
        if !parameter.is_null() {
            // SAFETY: guaranteed by the caller.
            drop(unsafe { handle::take::<ParameterObject>(parameter, "parameter") });
        }
    });
}
