//! Tests of the exported functions, called as C calls them, with a server that echoes each
//! request's inputs.
#![allow(unsafe_code, reason = "the test calls C functions")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "the test is the caller that the functions trust"
)]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod allocator;
mod host_policies;
mod ownership;
mod raw;
mod traces;

use core::ffi::{CStr, c_char, c_void};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::time::Duration;

use galatea_abi::*;
use galatea_c_objects::error::take_c_error;
use galatea_capi::{RunningServer, into_server_pointer};
use galatea_devices::Devices;
use galatea_fakes::{FakeServer, HeldRequest, echo};
use galatea_infer::*;
use galatea_protocol::inference::{ModelConfig, ModelInput};
use galatea_stdx::{WakeBatch, wake_batch};
use galatea_tensor::DataType;

/// A model with a batch size of up to 4 and a single input of any length.
fn model(datatype: DataType) -> ModelConfig {
    let data_type = datatype.config_number();
    let input = ModelInput { name: "IN".into(), data_type, dims: vec![-1], ..Default::default() };
    ModelConfig { max_batch_size: 4, input: vec![input], ..Default::default() }
}

fn server(
    fake: Arc<FakeServer>,
    poll: impl Fn() -> Result<(), Status> + Send + Sync + 'static,
    stop: impl Fn(Option<Duration>) -> Result<(), Status> + Send + Sync + 'static,
) -> *mut TRITONSERVER_Server {
    into_server_pointer(Arc::new(RunningServer {
        service: fake.clone(),
        control: fake,
        devices: Devices::default(),
        metrics: Box::new(|| String::from("metric 1\n")),
        poll: Box::new(poll),
        stop: Box::new(stop),
    }))
}

/// The callback invocations, in order.
#[derive(Debug, PartialEq, Eq)]
enum Event {
    Allocated(String, usize),
    Freed(usize),
    Described(String, usize),
    Queried(String, usize),
    Released,
    Response {
        null: bool,
        final_: bool,
    },
    /// A callback was called while wake-ups were being deferred.
    InWakeBatch,
}

struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct CallbackLog {
    events: Sender<Event>,
    responses: Sender<usize>,
}

impl CallbackLog {
    fn callback(&self) {
        let woken = Arc::new(WakeFlag(AtomicBool::new(false)));
        wake_batch::defer_wake(Waker::from(woken.clone()));
        if !woken.0.load(Ordering::Relaxed) {
            self.events.send(Event::InWakeBatch).unwrap();
        }
    }
}

unsafe extern "C" fn allocate(
    _: *mut TRITONSERVER_ResponseAllocator,
    name: *const c_char,
    byte_size: usize,
    _: TRITONSERVER_MemoryType,
    _: i64,
    userp: *mut c_void,
    buffer: *mut *mut c_void,
    buffer_userp: *mut *mut c_void,
    _: *mut TRITONSERVER_MemoryType,
    _: *mut i64,
) -> *mut TRITONSERVER_Error {
    unsafe {
        let log = &*userp.cast::<CallbackLog>();
        let name = CStr::from_ptr(name).to_str().unwrap().to_owned();
        log.events.send(Event::Allocated(name, byte_size)).unwrap();
        let memory: Box<[u8]> = vec![0; byte_size].into_boxed_slice();
        buffer.write(Box::into_raw(memory).cast());
        buffer_userp.write(userp);
    }
    core::ptr::null_mut()
}

unsafe extern "C" fn free(
    _: *mut TRITONSERVER_ResponseAllocator,
    buffer: *mut c_void,
    buffer_userp: *mut c_void,
    byte_size: usize,
    _: TRITONSERVER_MemoryType,
    _: i64,
) -> *mut TRITONSERVER_Error {
    unsafe {
        let log = &*buffer_userp.cast::<CallbackLog>();
        log.events.send(Event::Freed(byte_size)).unwrap();
        let slice = core::ptr::slice_from_raw_parts_mut(buffer.cast::<u8>(), byte_size);
        drop(Box::from_raw(slice));
    }
    core::ptr::null_mut()
}

unsafe extern "C" fn released(
    _: *mut TRITONSERVER_InferenceRequest,
    flags: u32,
    userp: *mut c_void,
) {
    assert_eq!(flags, TRITONSERVER_REQUEST_RELEASE_ALL.0);
    let log = unsafe { &*userp.cast::<CallbackLog>() };
    log.callback();
    log.events.send(Event::Released).unwrap();
}

unsafe extern "C" fn completed(
    response: *mut TRITONSERVER_InferenceResponse,
    flags: u32,
    userp: *mut c_void,
) {
    let final_ = flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL.0 != 0;
    unsafe {
        let log = &*userp.cast::<CallbackLog>();
        log.callback();
        log.events.send(Event::Response { null: response.is_null(), final_ }).unwrap();
        log.responses.send(response.expose_provenance()).unwrap();
    }
}

struct Caller {
    server: *mut TRITONSERVER_Server,
    allocator: *mut TRITONSERVER_ResponseAllocator,
    log: *mut CallbackLog,
    fake: Arc<FakeServer>,
    held: Receiver<HeldRequest>,
    events: Receiver<Event>,
    responses: Receiver<usize>,
}

#[track_caller]
fn ok(error: *mut TRITONSERVER_Error) {
    unsafe { take_c_error(error) }.unwrap();
}

#[track_caller]
fn refused(error: *mut TRITONSERVER_Error) -> String {
    unsafe { take_c_error(error) }.unwrap_err().message().to_owned()
}

impl Caller {
    fn new() -> Self {
        Self::with(model(DataType::Int32))
    }

    /// Creates a caller whose server keeps all requests pending.
    fn holding() -> Self {
        let caller = Self::new();
        caller.fake.holds_all.store(true, Ordering::Relaxed);
        caller
    }

    fn with(model: ModelConfig) -> Self {
        let (mut fake, held) = FakeServer::new();
        fake.model = model;
        let fake = Arc::new(fake);
        let (events, inbox) = channel();
        let (responses, arrived) = channel();
        let log = Box::into_raw(Box::new(CallbackLog { events, responses }));
        let mut allocator = core::ptr::null_mut();
        ok(unsafe {
            server::TRITONSERVER_ResponseAllocatorNew(
                &raw mut allocator,
                Some(allocate),
                Some(free),
                None,
            )
        });
        let server = server(fake.clone(), || Ok(()), |_| Ok(()));
        Self { server, allocator, log, fake, held, events: inbox, responses: arrived }
    }

    fn request(&self) -> *mut TRITONSERVER_InferenceRequest {
        self.request_for(c"echo")
    }

    fn request_for(&self, model: &CStr) -> *mut TRITONSERVER_InferenceRequest {
        let mut request = core::ptr::null_mut();
        unsafe {
            ok(server::TRITONSERVER_InferenceRequestNew(
                &raw mut request,
                self.server,
                model.as_ptr(),
                -1,
            ));
            ok(server::TRITONSERVER_InferenceRequestSetId(request, c"me".as_ptr()));
            ok(server::TRITONSERVER_InferenceRequestSetReleaseCallback(
                request,
                Some(released),
                self.log.cast(),
            ));
            ok(server::TRITONSERVER_InferenceRequestSetResponseCallback(
                request,
                self.allocator,
                self.log.cast(),
                Some(completed),
                self.log.cast(),
            ));
        }
        request
    }

    fn add_input(&self, request: *mut TRITONSERVER_InferenceRequest, name: &CStr, data: &[i32]) {
        let shape = [i64::try_from(data.len()).unwrap()];
        unsafe {
            ok(server::TRITONSERVER_InferenceRequestAddInput(
                request,
                name.as_ptr(),
                TRITONSERVER_TYPE_INT32,
                shape.as_ptr(),
                1,
            ));
            ok(server::TRITONSERVER_InferenceRequestAppendInputData(
                request,
                name.as_ptr(),
                data.as_ptr().cast(),
                size_of_val(data),
                TRITONSERVER_MEMORY_CPU,
                0,
            ));
        }
    }

    fn infer(&self, request: *mut TRITONSERVER_InferenceRequest) -> *mut TRITONSERVER_Error {
        unsafe {
            server::TRITONSERVER_ServerInferAsync(self.server, request, core::ptr::null_mut())
        }
    }

    fn response(&self) -> *mut TRITONSERVER_InferenceResponse {
        core::ptr::with_exposed_provenance_mut(self.responses.recv().unwrap())
    }

    fn events(&self) -> Vec<Event> {
        self.events.try_iter().collect()
    }
}

/// The exported functions.
mod server {
    pub(super) use galatea_capi::allocator::TRITONSERVER_ResponseAllocatorNew;
    pub(super) use galatea_capi::control::TRITONSERVER_ServerModelBatchProperties;
    pub(super) use galatea_capi::infer::TRITONSERVER_ServerInferAsync;
    pub(super) use galatea_capi::request::*;
    pub(super) use galatea_capi::response::*;
}

#[test]
// row: SAPI-07
fn a_request_is_read_by_pointer_and_its_response_is_written_to_the_allocator() {
    let caller = Caller::new();
    let data: Vec<i32> = vec![1, 2, 3];
    let request = caller.request();
    caller.add_input(request, c"IN", &data);
    ok(caller.infer(request));
    let response = caller.response();
    unsafe { ok(server::TRITONSERVER_InferenceResponseError(response)) };
    let (mut name, mut shape, mut base) = (core::ptr::null(), core::ptr::null(), core::ptr::null());
    let (mut datatype, mut dims, mut bytes) = (TRITONSERVER_TYPE_INVALID, 0, 0);
    let (mut memory, mut id, mut userp) = (TRITONSERVER_MEMORY_GPU, 7, core::ptr::null_mut());
    unsafe {
        ok(server::TRITONSERVER_InferenceResponseOutput(
            response,
            0,
            &raw mut name,
            &raw mut datatype,
            &raw mut shape,
            &raw mut dims,
            &raw mut base,
            &raw mut bytes,
            &raw mut memory,
            &raw mut id,
            &raw mut userp,
        ));
        assert_eq!(CStr::from_ptr(name), c"IN");
        assert_eq!(
            (datatype, dims, bytes, memory),
            (TRITONSERVER_TYPE_INT32, 1, 12, TRITONSERVER_MEMORY_CPU)
        );
        assert_eq!(*shape, 3);
        // The allocator guarantees no alignment.
        let values = base.cast::<[i32; 3]>().read_unaligned();
        assert_eq!(values, [1, 2, 3]);
        assert_ne!(base, data.as_ptr().cast(), "outputs are the allocator's");
        ok(server::TRITONSERVER_InferenceResponseDelete(response));
        assert!(
            refused(server::TRITONSERVER_InferenceResponseDelete(response)).contains("released")
        );
        ok(server::TRITONSERVER_InferenceRequestDelete(request));
    }
    let response = Event::Response { null: false, final_: true };
    let expected =
        [Event::Allocated(String::from("IN"), 12), response, Event::Released, Event::Freed(12)];
    assert_eq!(caller.events(), expected);
}

#[test]
fn labels_are_those_of_the_version_that_responds() {
    let caller = Caller::holding();
    let data: Vec<i32> = vec![1, 2, 3];
    let request = caller.request();
    caller.add_input(request, c"IN", &data);
    caller.add_input(request, c"MORE", &data);
    ok(caller.infer(request));
    let (held, sender) = caller.held.recv().unwrap();
    let labels = Arc::new(ClassLabels::from_lines(b"cat\n\ndog".to_vec()).unwrap());
    let labels = BTreeMap::from([(String::from("IN"), labels)]);
    held.classes.as_ref().unwrap().set_once(&Arc::new(ClassificationInfo::new(false, labels)));
    sender.send_final(Ok(echo(held.clone())));
    drop(held);
    let response = caller.response();
    let label = |output, class| {
        let mut label = core::ptr::dangling();
        ok(unsafe {
            server::TRITONSERVER_InferenceResponseOutputClassificationLabel(
                response,
                output,
                class,
                &raw mut label,
            )
        });
        (!label.is_null()).then(|| unsafe { CStr::from_ptr(label) })
    };
    assert_eq!([0, 1, 2].map(|class| label(0, class)), [Some(c"cat"), None, Some(c"dog")]);
    assert_eq!([3, usize::MAX].map(|class| label(0, class)), [None, None]);
    assert_eq!(label(1, 0), None);
    let mut place = core::ptr::null();
    let beyond = unsafe {
        server::TRITONSERVER_InferenceResponseOutputClassificationLabel(
            response,
            2,
            0,
            &raw mut place,
        )
    };
    assert_eq!(refused(beyond), "out of bounds index 2: response has 2 outputs");
    unsafe { ok(server::TRITONSERVER_InferenceResponseDelete(response)) };
}

#[test]
fn memory_is_borrowed_until_the_request_is_released() {
    let caller = Caller::holding();
    let data: Vec<i32> = vec![4, 5];
    let request = caller.request();
    caller.add_input(request, c"IN", &data);
    ok(caller.infer(request));
    assert_eq!(caller.events(), []);
    let (held, sender) = caller.held.recv().unwrap();
    let seen = held.inputs[0].data.host_bytes().unwrap().as_ptr();
    assert_eq!(seen, data.as_ptr().cast(), "the input is read in place");
    sender.finish_without_response();
    assert_eq!(caller.events(), [Event::Response { null: true, final_: true }]);
    drop(held);
    assert_eq!(caller.events(), [Event::Released]);
}

/// A callback may wait for the response to another request, so the wake-ups of the threads that
/// work on that request must not stay deferred.
#[test]
fn callbacks_run_outside_of_wake_batches() {
    let caller = Caller::holding();
    let request = caller.request();
    caller.add_input(request, c"IN", &[4, 5]);
    ok(caller.infer(request));
    let (held, sender) = caller.held.recv().unwrap();
    let _batch = WakeBatch::begin();
    sender.finish_without_response();
    drop(held);
    let expected = [Event::Response { null: true, final_: true }, Event::Released];
    assert_eq!(caller.events(), expected);
}

#[test]
fn a_refused_request_still_belongs_to_the_caller() {
    let caller = Caller::new();
    let mut request = core::ptr::null_mut();
    unsafe {
        let unknown = server::TRITONSERVER_InferenceRequestNew(
            &raw mut request,
            caller.server,
            c"unknown".as_ptr(),
            -1,
        );
        let text = "Request for unknown model: 'unknown' is not found";
        assert_eq!(refused(unknown), text);
        ok(server::TRITONSERVER_InferenceRequestNew(
            &raw mut request,
            caller.server,
            c"echo".as_ptr(),
            -1,
        ));
        assert!(refused(caller.infer(request)).contains("response callback must be set"));
        assert!(refused(caller.infer(core::ptr::null_mut())).contains("must not be null"));
        assert!(refused(caller.infer(caller.server.cast())).contains("is not a"));
        ok(server::TRITONSERVER_InferenceRequestDelete(request));
        assert!(refused(caller.infer(request)).contains("released"));
    }
    assert_eq!(caller.events(), []);
}

#[test]
fn a_request_that_fails_at_once_still_belongs_to_the_caller() {
    let caller = Caller::new();
    let request = caller.request_for(c"refusing");
    caller.add_input(request, c"A", &[1, 2]);
    unsafe {
        assert_eq!(refused(caller.infer(request)), "nicht jetzt – später");
        assert_eq!(caller.events(), []);
        // A failure that occurs later or on another thread is reported to the callback.
        caller.fake.holds_all.store(true, Ordering::Relaxed);
        ok(caller.infer(request));
        let (_, sender) = caller.held.recv().unwrap();
        sender.send_final(Err(Status::internal("too late")));
        assert_eq!(
            caller.events(),
            [Event::Released, Event::Response { null: false, final_: true }]
        );
        ok(caller.infer(request));
        drop(caller.held.recv().unwrap());
        assert!(caller.events().contains(&Event::Released));
        ok(server::TRITONSERVER_InferenceRequestDelete(request));
    }
}

unsafe extern "C" fn begin(
    _: *mut TRITONSERVER_ResponseAllocator,
    userp: *mut c_void,
) -> *mut TRITONSERVER_Error {
    let log = unsafe { &*userp.cast::<CallbackLog>() };
    log.events.send(Event::Allocated(String::from("begins"), 0)).unwrap();
    core::ptr::null_mut()
}

#[test]
fn the_allocator_is_started_for_errors_too() {
    let mut caller = Caller::holding();
    unsafe {
        ok(server::TRITONSERVER_ResponseAllocatorNew(
            &raw mut caller.allocator,
            Some(allocate),
            Some(free),
            Some(begin),
        ));
        let request = caller.request();
        ok(caller.infer(request));
        let (request, sender) = caller.held.recv().unwrap();
        drop(request);
        sender.send_final(Err(Status::internal("no")));
    }
    assert_eq!(
        caller.events(),
        [
            Event::Released,
            Event::Allocated(String::from("begins"), 0),
            Event::Response { null: false, final_: true }
        ]
    );
}

#[test]
fn a_model_with_batches_has_the_batch_flag() {
    let caller = Caller::new();
    let (mut flags, mut reserved) = (0, core::ptr::dangling_mut());
    ok(unsafe {
        server::TRITONSERVER_ServerModelBatchProperties(
            caller.server,
            c"echo".as_ptr(),
            -1,
            &raw mut flags,
            &raw mut reserved,
        )
    });
    assert_eq!(flags, TRITONSERVER_BATCH_FIRST_DIM.0);
    assert!(reserved.is_null());
}

#[test]
fn a_getter_without_an_out_pointer_does_nothing() {
    let fake = Arc::new(FakeServer::plain());
    let server = into_server_pointer(Arc::new(RunningServer {
        service: fake.clone(),
        control: fake,
        devices: Devices::default(),
        metrics: Box::new(|| unreachable!("the result could not be deleted")),
        poll: Box::new(|| Ok(())),
        stop: Box::new(|_| Ok(())),
    }));
    let answer =
        unsafe { galatea_capi::control::TRITONSERVER_ServerMetrics(server, core::ptr::null_mut()) };
    assert_eq!(refused(answer), "metrics must not be null");
    ok(unsafe { galatea_capi::server::TRITONSERVER_ServerDelete(server) });
}

#[test]
fn deleting_null_succeeds() {
    use galatea_capi::metric::functions::*;
    use galatea_capi::{allocator::*, control::*, options::*, request::*, response::*};
    use galatea_capi::{server::*, trace::*};

    fn null<T>() -> *mut T {
        core::ptr::null_mut()
    }
    // SAFETY: all pointers are null.
    let deleted = unsafe {
        [
            TRITONSERVER_ServerOptionsDelete(null()),
            TRITONSERVER_ServerDelete(null()),
            TRITONSERVER_ResponseAllocatorDelete(null()),
            TRITONSERVER_InferenceRequestDelete(null()),
            TRITONSERVER_InferenceResponseDelete(null()),
            TRITONSERVER_InferenceTraceDelete(null()),
            TRITONSERVER_MetricsDelete(null()),
            TRITONSERVER_MetricFamilyDelete(null()),
            TRITONSERVER_MetricArgsDelete(null()),
            TRITONSERVER_MetricDelete(null()),
        ]
    };
    assert!(deleted.iter().all(|error| error.is_null()));
}
