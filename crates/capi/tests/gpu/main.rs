//! Tests of inputs and outputs in the caller's GPU memory, with a stand-in for NVIDIA's driver
//! (tests/devices).

#![allow(
    unsafe_code,
    clippy::undocumented_unsafe_blocks,
    reason = "the tests call the C API as C does"
)]
#![allow(clippy::unwrap_used, reason = "these are tests")]
#![allow(clippy::disallowed_methods, reason = "a test's process knows itself by a variable")]

#[path = "../../../devices/tests/stand_in/support.rs"]
#[allow(dead_code, reason = "others use the rest")]
mod support;

use core::ffi::{c_char, c_void};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use galatea_abi::*;
use galatea_c_objects::error::take_c_error;
use galatea_capi::allocator::{
    TRITONSERVER_ResponseAllocatorDelete, TRITONSERVER_ResponseAllocatorNew,
};
use galatea_capi::infer::TRITONSERVER_ServerInferAsync;
use galatea_capi::request::*;
use galatea_capi::response::*;
use galatea_capi::server::TRITONSERVER_ServerDelete;
use galatea_capi::{RunningServer, into_server_pointer};
use galatea_devices::{DeviceBuffer, Devices};
use galatea_fakes::FakeServer;

/// The GPU that receives the outputs.
const OUTPUT_GPU: i64 = 1;

/// The state of the allocator's functions: the output memory and the response channel.
struct Place {
    output: DeviceBuffer,
    number: i64,
    responses: Sender<usize>,
    /// The requested kinds of memory and their devices.
    asked: Mutex<Vec<(TRITONSERVER_MemoryType, i64)>>,
}

unsafe extern "C" fn allocate(
    _: *mut TRITONSERVER_ResponseAllocator,
    _: *const c_char,
    byte_size: usize,
    preferred_type: TRITONSERVER_MemoryType,
    preferred_id: i64,
    userp: *mut c_void,
    buffer: *mut *mut c_void,
    buffer_userp: *mut *mut c_void,
    memory_type: *mut TRITONSERVER_MemoryType,
    memory_type_id: *mut i64,
) -> *mut TRITONSERVER_Error {
    unsafe {
        let place = &*userp.cast::<Place>();
        assert!(byte_size <= place.output.len());
        place.asked.lock().unwrap().push((preferred_type, preferred_id));
        buffer.write(address(&place.output).cast_mut());
        buffer_userp.write(userp);
        memory_type.write(TRITONSERVER_MEMORY_GPU);
        memory_type_id.write(place.number);
    }
    core::ptr::null_mut()
}

unsafe extern "C" fn free(
    _: *mut TRITONSERVER_ResponseAllocator,
    _: *mut c_void,
    _: *mut c_void,
    _: usize,
    memory_type: TRITONSERVER_MemoryType,
    _: i64,
) -> *mut TRITONSERVER_Error {
    assert_eq!(memory_type, TRITONSERVER_MEMORY_GPU);
    core::ptr::null_mut()
}

unsafe extern "C" fn released(_: *mut TRITONSERVER_InferenceRequest, _: u32, _: *mut c_void) {}

unsafe extern "C" fn completed(
    response: *mut TRITONSERVER_InferenceResponse,
    _: u32,
    userp: *mut c_void,
) {
    let place = unsafe { &*userp.cast::<Place>() };
    place.responses.send(response.expose_provenance()).unwrap();
}

fn address(memory: &DeviceBuffer) -> *const c_void {
    core::ptr::without_provenance(usize::try_from(memory.address()).unwrap())
}

fn ok(error: *mut TRITONSERVER_Error) {
    unsafe { take_c_error(error) }.unwrap();
}

fn refused(error: *mut TRITONSERVER_Error) -> String {
    unsafe { take_c_error(error) }.unwrap_err().message().to_owned()
}

/// A server with these devices, an allocator for GPU memory, and a request.
struct Call {
    server: *mut TRITONSERVER_Server,
    allocator: *mut TRITONSERVER_ResponseAllocator,
    request: *mut TRITONSERVER_InferenceRequest,
    place: *mut Place,
    responses: Receiver<usize>,
}

impl Call {
    fn new(devices: &Devices, output: &DeviceBuffer, number: i64) -> Self {
        let fake = Arc::new(FakeServer::plain());
        let server = into_server_pointer(Arc::new(RunningServer {
            service: fake.clone(),
            control: fake,
            devices: devices.clone(),
            metrics: Box::new(String::new),
            poll: Box::new(|| Ok(())),
            stop: Box::new(|_| Ok(())),
        }));
        let (sender, responses) = channel();
        let place =
            Place { output: output.clone(), number, responses: sender, asked: Mutex::default() };
        let place = Box::into_raw(Box::new(place));
        let (mut allocator, mut request) = (core::ptr::null_mut(), core::ptr::null_mut());
        unsafe {
            let (new, end) = (Some(allocate as _), Some(free as _));
            ok(TRITONSERVER_ResponseAllocatorNew(&raw mut allocator, new, end, None));
            ok(TRITONSERVER_InferenceRequestNew(&raw mut request, server, c"echo".as_ptr(), -1));
            let release = Some(released as _);
            ok(TRITONSERVER_InferenceRequestSetReleaseCallback(request, release, place.cast()));
            ok(TRITONSERVER_InferenceRequestSetResponseCallback(
                request,
                allocator,
                place.cast(),
                Some(completed),
                place.cast(),
            ));
            let shape = [4_i64];
            ok(TRITONSERVER_InferenceRequestAddInput(
                request,
                c"IN".as_ptr(),
                TRITONSERVER_TYPE_INT32,
                shape.as_ptr(),
                1,
            ));
        }
        Self { server, allocator, request, place, responses }
    }

    fn append(
        &self,
        base: *const c_void,
        bytes: usize,
        kind: TRITONSERVER_MemoryType,
        number: i64,
    ) -> *mut TRITONSERVER_Error {
        let (request, name) = (self.request, c"IN".as_ptr());
        unsafe {
            TRITONSERVER_InferenceRequestAppendInputData(request, name, base, bytes, kind, number)
        }
    }

    /// Executes the request and returns the error message if the response is an error.
    fn infer(self) -> Option<String> {
        self.asking().0
    }

    /// Like [`Self::infer`], but also returns the memory that the allocator was asked for.
    fn asking(self) -> (Option<String>, Vec<(TRITONSERVER_MemoryType, i64)>) {
        unsafe {
            ok(TRITONSERVER_ServerInferAsync(self.server, self.request, core::ptr::null_mut()));
            let response = self.responses.recv().unwrap();
            let response: *mut TRITONSERVER_InferenceResponse =
                core::ptr::with_exposed_provenance_mut(response);
            let failure = take_c_error(TRITONSERVER_InferenceResponseError(response)).err();
            ok(TRITONSERVER_InferenceResponseDelete(response));
            let asked = (*self.place).asked.lock().unwrap().clone();
            self.end();
            (failure.map(|status| status.message().to_owned()), asked)
        }
    }

    fn end(self) {
        unsafe {
            ok(TRITONSERVER_InferenceRequestDelete(self.request));
            ok(TRITONSERVER_ResponseAllocatorDelete(self.allocator));
            ok(TRITONSERVER_ServerDelete(self.server));
            drop(Box::from_raw(self.place));
        }
    }
}

/// Runs a test in a process with the stand-in driver, which completes its work late.
fn with_stand_in(test: &str, body: impl FnOnce()) {
    support::with_stand_in(test, &[("STAND_IN_DELAY_US", "5000")], body);
}

#[test]
// row: SAPI-07 BAPI-12
fn inputs_and_outputs_are_in_the_memory_of_gpus() {
    let test = "inputs_and_outputs_are_in_the_memory_of_gpus";
    let late = [("STAND_IN_DELAY_US", "5000")];
    let calls = support::expecting(&support::Violations::None, test, &late, || {
        let devices = support::devices();
        let on = |number| devices.device(number).unwrap().allocate(16).unwrap();
        let (input, output) = (on(0), on(1));
        let values: Vec<u8> = (0..16).collect();
        devices.to_device(values.clone(), &input).unwrap();
        // The input is either entirely on a GPU or has one half in host memory.
        for halves in [false, true] {
            devices.to_device(vec![0; 16], &output).unwrap();
            let call = Call::new(&devices, &output, OUTPUT_GPU);
            let bytes = if halves { 8 } else { 16 };
            ok(call.append(address(&input), bytes, TRITONSERVER_MEMORY_GPU, 0));
            if halves {
                ok(call.append(values[8..].as_ptr().cast(), 8, TRITONSERVER_MEMORY_CPU, 0));
            }
            let asked =
                if halves { (TRITONSERVER_MEMORY_CPU, 0) } else { (TRITONSERVER_MEMORY_GPU, 0) };
            assert_eq!(call.asking(), (None, vec![asked]));
            assert_eq!(devices.to_host(&output).unwrap()[..], values[..]);
        }
    });
    let Some(calls) = calls else { return };
    // Apart from the test's own copies, all data is copied from GPU to GPU. Halves are joined on
    // the host.
    for (way, count) in [("to_host", 2 + 1), ("to_device", 3 + 1), ("on_device", 1)] {
        let line = format!("copy_{way} {count}");
        assert!(calls.lines().any(|one| one == line), "{line}: {calls}");
    }
}

#[test]
fn a_gpu_that_is_not_used_is_refused() {
    with_stand_in("a_gpu_that_is_not_used_is_refused", || {
        let devices = support::devices();
        let memory = devices.device(0).unwrap().allocate(16).unwrap();
        let call = Call::new(&devices, &memory, 7);
        let text = "the server doesn't use a GPU with number 2";
        let append = |number| call.append(address(&memory), 16, TRITONSERVER_MEMORY_GPU, number);
        assert_eq!(refused(append(2)), format!("input 'IN': {text}"));
        ok(append(0));
        // The allocator also specifies a GPU.
        assert_eq!(call.infer().unwrap(), "the server doesn't use a GPU with number 7");
        let without = Call::new(&Devices::default(), &memory, 0);
        let refusal = refused(without.append(address(&memory), 16, TRITONSERVER_MEMORY_GPU, 0));
        assert_eq!(refusal, "input 'IN' is in a GPU's memory, which this server can't read");
        let host = [0_u8; 16];
        ok(without.append(host.as_ptr().cast(), 16, TRITONSERVER_MEMORY_CPU, 0));
        let text = "the response allocator put output 'IN' where only a GPU can write";
        assert_eq!(without.infer().unwrap(), text);
    });
}

#[test]
fn a_lost_gpu_fails_the_request() {
    with_stand_in("a_lost_gpu_fails_the_request", || {
        let devices = support::devices();
        let on = |number| devices.device(number).unwrap().allocate(16).unwrap();
        let (input, output) = (on(0), on(1));
        support::lose(1);
        let call = Call::new(&devices, &output, OUTPUT_GPU);
        ok(call.append(address(&input), 16, TRITONSERVER_MEMORY_GPU, 0));
        let failure = call.infer().unwrap();
        assert!(failure.starts_with("failed to use CUDA copy: GPU 1 is lost"), "{failure}");
    });
}
