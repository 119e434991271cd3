//! NVIDIA's driver, whose functions are looked up by name when the driver is loaded.
//!
//! The declarations are written by hand, and result codes are plain numbers. A crate with generated
//! declarations would represent result codes as an enum, in which an unknown code from a newer
//! driver would be an invalid value.

mod table;

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

pub(crate) use table::functions;

/// A function's result code; 0 means success.
pub(crate) type Code = c_int;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const OUT_OF_MEMORY: Code = 2;
pub(crate) const NO_DEVICE: Code = 100;
pub(crate) const SYSTEM_DRIVER_MISMATCH: Code = 803;
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: Code = 704;
pub(crate) const NOT_READY: Code = 600;

pub(crate) const ATTRIBUTE_CAPABILITY_MAJOR: c_int = 75;
pub(crate) const ATTRIBUTE_CAPABILITY_MINOR: c_int = 76;
pub(crate) const ATTRIBUTE_VIRTUAL_MEMORY: c_int = 102;

pub(crate) const POINTER_MEMORY_TYPE: c_int = 2;
pub(crate) const POINTER_DEVICE: c_int = 9;
pub(crate) const MEMORY_TYPE_HOST: c_uint = 1;
pub(crate) const MEMORY_TYPE_DEVICE: c_uint = 2;

/// Makes the memory pinned for all devices.
pub(crate) const HOST_ALLOC_PORTABLE: c_uint = 1;
/// Makes a waiting thread sleep and disables timing.
pub(crate) const EVENT_FLAGS: c_uint = 1 | 2;
pub(crate) const IPC_LAZY_PEER_ACCESS: c_uint = 1;

/// A device address.
pub(crate) type Address = c_ulonglong;
/// An opaque handle to a context, stream, event or memory allocation.
pub(crate) type Handle = *mut c_void;

/// A memory handle for other processes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IpcMemHandle {
    pub(crate) reserved: [u8; 64],
}

/// A memory location; kind 1 is a device.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MemLocation {
    pub(crate) kind: c_int,
    pub(crate) number: c_int,
}

/// The properties of memory to create. Kind 1, the only one, is pinned.
#[repr(C)]
pub(crate) struct MemAllocationProp {
    pub(crate) kind: c_int,
    pub(crate) requested_handle_types: c_int,
    pub(crate) location: MemLocation,
    pub(crate) win32_handle_meta_data: *mut c_void,
    pub(crate) flags: [u8; 8],
}

impl MemAllocationProp {
    /// Describes memory on a device.
    pub(crate) const fn of_device(number: c_int) -> Self {
        Self {
            kind: 1,
            requested_handle_types: 0,
            location: MemLocation { kind: 1, number },
            win32_handle_meta_data: std::ptr::null_mut(),
            flags: [0; 8],
        }
    }
}

/// Access permissions for memory. Flags of 3 permit reading and writing.
#[repr(C)]
pub(crate) struct MemAccessDesc {
    pub(crate) location: MemLocation,
    pub(crate) flags: c_int,
}

functions! {
    /// The functions of `libcuda.so.1`.
    Driver from "libcuda.so.1" {
        cuInit(flags: c_uint);
        cuGetErrorString(code: Code, text: *mut *const c_char);
        cuDeviceGetCount(count: *mut c_int);
        cuDeviceGet(device: *mut c_int, number: c_int);
        cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int);
        cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int);
        cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int);
        cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int);
        cuDeviceGetPCIBusId(text: *mut c_char, length: c_int, device: c_int);
        cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int);
        cuDevicePrimaryCtxRelease_v2(device: c_int);
        cuCtxPushCurrent_v2(context: Handle);
        cuCtxPopCurrent_v2(context: *mut Handle);
        cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
        cuMemAlloc_v2(address: *mut Address, bytes: usize);
        cuMemFree_v2(address: Address);
        cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
        cuMemFreeHost(address: *mut c_void);
        cuMemcpyAsync(to: Address, from: Address, bytes: usize, stream: Handle);
        cuMemsetD8Async(to: Address, value: u8, bytes: usize, stream: Handle);
        cuPointerGetAttribute(data: *mut c_void, attribute: c_int, address: Address);
        cuMemGetAddressRange_v2(base: *mut Address, bytes: *mut usize, address: Address);
        cuStreamCreateWithPriority(stream: *mut Handle, flags: c_uint, priority: c_int);
        cuStreamDestroy_v2(stream: Handle);
        cuStreamSynchronize(stream: Handle);
        cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint);
        cuEventCreate(event: *mut Handle, flags: c_uint);
        cuEventRecord(event: Handle, stream: Handle);
        cuEventQuery(event: Handle);
        cuEventSynchronize(event: Handle);
        cuEventDestroy_v2(event: Handle);
        cuIpcGetMemHandle(handle: *mut IpcMemHandle, address: Address);
        cuIpcOpenMemHandle_v2(address: *mut Address, handle: IpcMemHandle, flags: c_uint);
        cuIpcCloseMemHandle(address: Address);
        cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int);
        cuCtxEnablePeerAccess(peer: Handle, flags: c_uint);
        cuMemGetAllocationGranularity(bytes: *mut usize, what: *const MemAllocationProp, option: c_int);
        cuMemAddressReserve(address: *mut Address, bytes: usize, alignment: usize, near: Address, flags: c_ulonglong);
        cuMemAddressFree(address: Address, bytes: usize);
        cuMemCreate(memory: *mut Handle, bytes: usize, what: *const MemAllocationProp, flags: c_ulonglong);
        cuMemRelease(memory: Handle);
        cuMemMap(address: Address, bytes: usize, offset: usize, memory: Handle, flags: c_ulonglong);
        cuMemSetAccess(address: Address, bytes: usize, access: *const MemAccessDesc, count: usize);
        cuMemUnmap(address: Address, bytes: usize);
    }
}

impl Driver {
    /// The driver's message for a result code.
    pub(crate) fn text(&self, code: Code) -> String {
        let mut text = std::ptr::null();
        // SAFETY: `text` is valid for the duration of the call.
        let known = unsafe { self.cuGetErrorString(code, &raw mut text) } == SUCCESS;
        if !known || text.is_null() {
            return format!("unrecognized error code {code}");
        }
        // SAFETY: The driver returns a NUL-terminated string that is never freed.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}
