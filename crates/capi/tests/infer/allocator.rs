//! Tests of allocator functions that are set while requests use the allocator.

use galatea_c_objects::buffer_attributes::{
    TRITONSERVER_BufferAttributesByteSize, TRITONSERVER_BufferAttributesSetMemoryType,
    TRITONSERVER_BufferAttributesSetMemoryTypeId,
};
use galatea_c_objects::output_query::OutputBufferQuery;

use super::*;

unsafe extern "C" fn query(
    _: *mut TRITONSERVER_ResponseAllocator,
    userp: *mut c_void,
    name: *const c_char,
    byte_size: *mut usize,
    memory_type: *mut TRITONSERVER_MemoryType,
    memory_type_id: *mut i64,
) -> *mut TRITONSERVER_Error {
    unsafe {
        let log = &*userp.cast::<CallbackLog>();
        let name = CStr::from_ptr(name).to_str().unwrap().to_owned();
        log.events.send(Event::Queried(name, *byte_size)).unwrap();
        memory_type.write(TRITONSERVER_MEMORY_CPU_PINNED);
        memory_type_id.write(5);
    }
    core::ptr::null_mut()
}

/// Reports an incorrect location for the output, which is ignored.
unsafe extern "C" fn attributes(
    _: *mut TRITONSERVER_ResponseAllocator,
    name: *const c_char,
    attributes: *mut TRITONSERVER_BufferAttributes,
    userp: *mut c_void,
    _: *mut c_void,
) -> *mut TRITONSERVER_Error {
    unsafe {
        let log = &*userp.cast::<CallbackLog>();
        let mut byte_size = 0;
        ok(TRITONSERVER_BufferAttributesByteSize(attributes, &raw mut byte_size));
        let name = CStr::from_ptr(name).to_str().unwrap().to_owned();
        log.events.send(Event::Described(name, byte_size)).unwrap();
        ok(TRITONSERVER_BufferAttributesSetMemoryType(attributes, TRITONSERVER_MEMORY_GPU));
        TRITONSERVER_BufferAttributesSetMemoryTypeId(attributes, 7)
    }
}

/// The query function's result, if there is such a function.
fn query_result(request: &InferenceRequest) -> Option<(TRITONSERVER_MemoryType, i64)> {
    let query = request.output_query.as_ref().unwrap().downcast_ref::<OutputBufferQuery>().unwrap();
    let (mut size, mut kind, mut id) = (8, TRITONSERVER_MEMORY_CPU, 0);
    let outcome =
        unsafe { query.call(c"OUT".as_ptr(), &raw mut size, &raw mut kind, &raw mut id) }?;
    outcome.unwrap();
    Some((kind, id))
}

/// The memory type ID of the next response's output.
fn memory_type_id(caller: &Caller) -> i64 {
    let response = caller.response();
    let (mut name, mut datatype, mut shape) =
        (core::ptr::null(), TRITONSERVER_TYPE_INVALID, core::ptr::null());
    let (mut rank, mut base, mut size) = (0, core::ptr::null(), 0);
    let (mut kind, mut id, mut userp) = (TRITONSERVER_MEMORY_GPU, -1, core::ptr::null_mut());
    unsafe {
        ok(server::TRITONSERVER_InferenceResponseOutput(
            response,
            0,
            &raw mut name,
            &raw mut datatype,
            &raw mut shape,
            &raw mut rank,
            &raw mut base,
            &raw mut size,
            &raw mut kind,
            &raw mut id,
            &raw mut userp,
        ));
        ok(server::TRITONSERVER_InferenceResponseDelete(response));
    }
    assert_eq!(kind, TRITONSERVER_MEMORY_CPU);
    id
}

#[test]
fn functions_that_are_set_late_apply_to_requests_in_flight() {
    let caller = Caller::holding();
    let request = caller.request();
    caller.add_input(request, c"IN", &[4, 5]);
    let set = |query, attributes| unsafe {
        ok(galatea_capi::allocator::TRITONSERVER_ResponseAllocatorSetQueryFunction(
            caller.allocator,
            query,
        ));
        ok(galatea_capi::allocator::TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(
            caller.allocator,
            attributes,
        ));
    };
    for late in [true, false] {
        ok(caller.infer(request));
        let (infer, sender) = caller.held.recv().unwrap();
        assert_eq!(query_result(&infer).is_some(), !late);
        if late {
            set(Some(query), Some(attributes));
            assert_eq!(query_result(&infer), Some((TRITONSERVER_MEMORY_CPU_PINNED, 5)));
        } else {
            set(None, None);
            assert_eq!(query_result(&infer), None);
        }
        assert_eq!(caller.events(), [Event::Queried(String::from("OUT"), 8)]);
        sender.send_final(Ok(echo(infer.clone())));
        drop(infer);
        assert_eq!(memory_type_id(&caller), 0);
        let described = Event::Described(String::from("IN"), 8);
        assert_eq!(caller.events().contains(&described), late);
    }
    ok(unsafe { server::TRITONSERVER_InferenceRequestDelete(request) });
}
