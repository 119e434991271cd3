//! Tests that functions that create an object for C create none if C passes a null pointer to
//! receive it, because the object could never be released.
#![allow(unsafe_code, reason = "the test calls C functions")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "the test is the caller that the functions trust"
)]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use core::ptr::null_mut;

use galatea_abi::*;
use galatea_c_objects::buffer_attributes::{
    TRITONSERVER_BufferAttributesDelete, TRITONSERVER_BufferAttributesNew,
};
use galatea_c_objects::error::take_c_error;
use galatea_capi::allocator::*;
use galatea_capi::metric::functions::*;
use galatea_capi::options::*;
use galatea_capi::trace::*;

/// Checks a function. A slot is reused as soon as its object is released, so a leaked object
/// affects which slot the next object gets.
#[track_caller]
fn check<T>(
    make: impl Fn(*mut *mut T) -> *mut TRITONSERVER_Error,
    release: unsafe extern "C" fn(*mut T) -> *mut TRITONSERVER_Error,
) {
    let slot = || {
        let mut made = null_mut();
        unsafe {
            take_c_error(make(&raw mut made)).unwrap();
            take_c_error(release(made)).unwrap();
        }
        // The lower bits distinguish the objects that share a slot.
        made.addr() & !63
    };
    let before = slot();
    let status = unsafe { take_c_error(make(null_mut())) }.unwrap_err();
    assert!(status.message().ends_with(" must not be null"), "{status}");
    assert_eq!(slot(), before);
}

unsafe extern "C" fn allocate(
    _: *mut TRITONSERVER_ResponseAllocator,
    _: *const core::ffi::c_char,
    _: usize,
    _: TRITONSERVER_MemoryType,
    _: i64,
    _: *mut core::ffi::c_void,
    _: *mut *mut core::ffi::c_void,
    _: *mut *mut core::ffi::c_void,
    _: *mut TRITONSERVER_MemoryType,
    _: *mut i64,
) -> *mut TRITONSERVER_Error {
    null_mut()
}

unsafe extern "C" fn release(
    _: *mut TRITONSERVER_ResponseAllocator,
    _: *mut core::ffi::c_void,
    _: *mut core::ffi::c_void,
    _: usize,
    _: TRITONSERVER_MemoryType,
    _: i64,
) -> *mut TRITONSERVER_Error {
    null_mut()
}

/// A single test, because other tests would use slots concurrently.
#[test]
fn no_object_is_made_without_an_out_pointer() {
    let level = TRITONSERVER_TRACE_LEVEL_TIMESTAMPS;
    check(
        |place| unsafe { TRITONSERVER_InferenceTraceNew(place, level, 0, None, None, null_mut()) },
        TRITONSERVER_InferenceTraceDelete,
    );
    check(
        |place| unsafe {
            TRITONSERVER_InferenceTraceTensorNew(place, level, 0, None, None, None, null_mut())
        },
        TRITONSERVER_InferenceTraceDelete,
    );
    let mut parent = null_mut();
    let made = unsafe {
        TRITONSERVER_InferenceTraceNew(&raw mut parent, level, 0, None, None, null_mut())
    };
    unsafe { take_c_error(made) }.unwrap();
    check(
        |place| unsafe { TRITONSERVER_InferenceTraceSpawnChildTrace(parent, place) },
        TRITONSERVER_InferenceTraceDelete,
    );
    check(
        |place| unsafe {
            TRITONSERVER_ResponseAllocatorNew(place, Some(allocate), Some(release), None)
        },
        TRITONSERVER_ResponseAllocatorDelete,
    );
    check(
        |place| unsafe { TRITONSERVER_ServerOptionsNew(place) },
        TRITONSERVER_ServerOptionsDelete,
    );
    check(
        |place| unsafe { TRITONSERVER_BufferAttributesNew(place) },
        TRITONSERVER_BufferAttributesDelete,
    );
    check(|place| unsafe { TRITONSERVER_MetricArgsNew(place) }, TRITONSERVER_MetricArgsDelete);
    let kind = TRITONSERVER_METRIC_KIND_COUNTER;
    let (name, about) = (c"of_no_place", c"A family.");
    check(
        |place| unsafe { TRITONSERVER_MetricFamilyNew(place, kind, name.as_ptr(), about.as_ptr()) },
        TRITONSERVER_MetricFamilyDelete,
    );
}
