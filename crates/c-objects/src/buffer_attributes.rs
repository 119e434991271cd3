//! Buffer attributes, which describe a buffer's memory and size.

use core::ffi::c_void;

use galatea_abi::server::{
    TRITONSERVER_BufferAttributesByteSize, TRITONSERVER_BufferAttributesCudaIpcHandle,
    TRITONSERVER_BufferAttributesDelete, TRITONSERVER_BufferAttributesMemoryType,
    TRITONSERVER_BufferAttributesMemoryTypeId, TRITONSERVER_BufferAttributesNew,
    TRITONSERVER_BufferAttributesSetByteSize, TRITONSERVER_BufferAttributesSetCudaIpcHandle,
    TRITONSERVER_BufferAttributesSetMemoryType, TRITONSERVER_BufferAttributesSetMemoryTypeId,
};
use galatea_abi::{
    TRITONSERVER_BufferAttributes, TRITONSERVER_Error, TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MemoryType,
};

use crate::guard::catch_panic;
use crate::{handle, pointer};

/// A CUDA IPC memory handle, which is opaque here.
pub type CudaIpcHandle = [u8; 64];

/// A buffer's attributes.
#[derive(Clone, Debug)]
pub struct BufferAttributesObject {
    /// The kind of memory.
    pub memory_type: TRITONSERVER_MemoryType,
    /// The device number.
    pub memory_type_id: i64,
    /// The size in bytes.
    pub byte_size: usize,
    /// A copy of the handle that identifies the memory to other processes, if there is one.
    pub cuda_ipc_handle: Option<Box<CudaIpcHandle>>,
}
crate::object!(BufferAttributesObject as TRITONSERVER_BufferAttributes, kind 4);

impl Default for BufferAttributesObject {
    fn default() -> Self {
        Self {
            memory_type: TRITONSERVER_MEMORY_CPU,
            memory_type_id: 0,
            byte_size: 0,
            cuda_ipc_handle: None,
        }
    }
}

const _: TRITONSERVER_BufferAttributesNew = TRITONSERVER_BufferAttributesNew;
/// Creates the attributes of an empty buffer in CPU memory.
///
/// # Safety
///
/// `buffer_attributes` must be null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_BufferAttributesNew(
    buffer_attributes: *mut *mut TRITONSERVER_BufferAttributes,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_BufferAttributesNew", || {
        pointer::check_not_null(buffer_attributes, "buffer_attributes")?;
        let made = handle::into_raw(BufferAttributesObject::default());
        // SAFETY: guaranteed by the caller.
        unsafe { pointer::write(buffer_attributes, made, "buffer_attributes") }
    })
}

const _: TRITONSERVER_BufferAttributesDelete = TRITONSERVER_BufferAttributesDelete;
/// Deletes attributes.
///
/// # Safety
///
/// `buffer_attributes` must be null or refer to attributes that are not in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_BufferAttributesDelete(
    buffer_attributes: *mut TRITONSERVER_BufferAttributes,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_BufferAttributesDelete", || {
        // SAFETY: guaranteed by the caller.
        unsafe { handle::delete::<BufferAttributesObject>(buffer_attributes, "buffer_attributes") }
    })
}

/// Defines the functions that set and get an attribute.
macro_rules! attribute {
    ($setter:ident, $getter:ident, $field:ident: $kind:ty, $to:expr, $from:expr) => {
        const _: $setter = self::$setter;
        /// Sets the attribute.
        ///
        /// # Safety
        ///
        /// `buffer_attributes` must be null or refer to attributes that nothing else uses.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $setter(
            buffer_attributes: *mut TRITONSERVER_BufferAttributes,
            value: $kind,
        ) -> *mut TRITONSERVER_Error {
            catch_panic(stringify!($setter), || {
                // SAFETY: guaranteed by the caller.
                let attributes = unsafe {
                    handle::borrow_mut::<BufferAttributesObject>(
                        buffer_attributes,
                        "buffer_attributes",
                    )?
                };
                attributes.$field = $to(value);
                Ok(())
            })
        }

        const _: $getter = self::$getter;
        /// Reads the attribute.
        ///
        /// # Safety
        ///
        /// `buffer_attributes` must be null or refer to attributes, and `value` must be null or
        /// valid for a write.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $getter(
            buffer_attributes: *mut TRITONSERVER_BufferAttributes,
            value: *mut $kind,
        ) -> *mut TRITONSERVER_Error {
            catch_panic(stringify!($getter), || {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    let attributes = handle::borrow::<BufferAttributesObject>(
                        buffer_attributes,
                        "buffer_attributes",
                    )?;
                    pointer::write(value, $from(attributes.$field), "value")
                }
            })
        }
    };
}

fn identity<T>(value: T) -> T {
    value
}

attribute!(
    TRITONSERVER_BufferAttributesSetMemoryTypeId,
    TRITONSERVER_BufferAttributesMemoryTypeId,
    memory_type_id: i64,
    identity,
    identity
);
attribute!(
    TRITONSERVER_BufferAttributesSetMemoryType,
    TRITONSERVER_BufferAttributesMemoryType,
    memory_type: TRITONSERVER_MemoryType,
    identity,
    identity
);
attribute!(
    TRITONSERVER_BufferAttributesSetByteSize,
    TRITONSERVER_BufferAttributesByteSize,
    byte_size: usize,
    identity,
    identity
);

const _: TRITONSERVER_BufferAttributesSetCudaIpcHandle =
    TRITONSERVER_BufferAttributesSetCudaIpcHandle;
/// Copies a handle into the attributes. A null pointer removes the handle.
///
/// # Safety
///
/// `buffer_attributes` must be null or refer to attributes that nothing else uses, and
/// `cuda_ipc_handle` must be null or valid for reads of a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_BufferAttributesSetCudaIpcHandle(
    buffer_attributes: *mut TRITONSERVER_BufferAttributes,
    cuda_ipc_handle: *mut c_void,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_BufferAttributesSetCudaIpcHandle", || {
        let given = cuda_ipc_handle.cast::<CudaIpcHandle>();
        // SAFETY: guaranteed by the caller; bytes have no alignment requirement.
        unsafe {
            let attributes = handle::borrow_mut::<BufferAttributesObject>(
                buffer_attributes,
                "buffer_attributes",
            )?;
            attributes.cuda_ipc_handle = given.as_ref().map(|given| Box::new(*given));
        }
        Ok(())
    })
}

const _: TRITONSERVER_BufferAttributesCudaIpcHandle = TRITONSERVER_BufferAttributesCudaIpcHandle;
/// Returns the attributes' copy of the handle, valid until the attributes change, or null if there
/// is none.
///
/// # Safety
///
/// `buffer_attributes` must be null or refer to attributes, and `cuda_ipc_handle` must be null or
/// valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_BufferAttributesCudaIpcHandle(
    buffer_attributes: *mut TRITONSERVER_BufferAttributes,
    cuda_ipc_handle: *mut *mut c_void,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_BufferAttributesCudaIpcHandle", || {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let attributes =
                handle::borrow::<BufferAttributesObject>(buffer_attributes, "buffer_attributes")?;
            let own = attributes.cuda_ipc_handle.as_deref();
            let address = own.map_or(core::ptr::null(), core::ptr::from_ref);
            pointer::write(cuda_ipc_handle, address.cast_mut().cast::<c_void>(), "cuda_ipc_handle")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::take_c_error;

    #[test]
    fn a_handle_is_copied() {
        let mut attributes = core::ptr::null_mut();
        let mut given: CudaIpcHandle = [7; 64];
        let mut found = core::ptr::null_mut();
        // SAFETY: the pointers belong to this test.
        unsafe {
            take_c_error(TRITONSERVER_BufferAttributesNew(&raw mut attributes)).unwrap();
            let mut read = || {
                take_c_error(TRITONSERVER_BufferAttributesCudaIpcHandle(
                    attributes,
                    &raw mut found,
                ))
                .unwrap();
                found.cast::<CudaIpcHandle>().as_ref().copied()
            };
            let set = TRITONSERVER_BufferAttributesSetCudaIpcHandle;
            assert_eq!(read(), None);
            take_c_error(set(attributes, (&raw mut given).cast())).unwrap();
            given.fill(0);
            assert_eq!(read(), Some([7; 64]));
            take_c_error(set(attributes, core::ptr::null_mut())).unwrap();
            assert_eq!(read(), None);
            take_c_error(TRITONSERVER_BufferAttributesDelete(attributes)).unwrap();
        }
    }
}
