//! From a request of C to one of the server, and back.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use bytes::Bytes;
use galatea_abi::server::TRITONSERVER_ServerInferAsync;
use galatea_abi::*;
use galatea_c_objects::{guard, handle, log};
use galatea_codec::http::raw_input;
use galatea_infer::{
    CancelToken, ClassesCell, CorrelationId, Finality, InferenceRequest, InputTensor, Reply,
    ResponseSender, ResponseSink, SequenceFlags, ServerControl, Status,
};
use galatea_stdx::run_foreign;
use galatea_tensor::{Buffer, DataType, Shape};

use crate::flight::Away;
use crate::request::{Correlation, Input, Piece, ReleaseCallback, RequestObject, ResponseCallback};
use crate::response::{Origin, ResponseObject};
use crate::server::running;
use crate::trace::{self, Told};

const _: TRITONSERVER_ServerInferAsync = TRITONSERVER_ServerInferAsync;
/// Hands a request over. On success it is the server's until its release
/// callback, and responses come to its response callback, from any thread. A
/// request that fails before the call returns stays the caller's, who is told by
/// the error and by no callback.
///
/// # Safety
///
/// `server` must be null or a server, `request` null or a request that nobody
/// changes, `trace` null or a trace; the memory of inputs must stay as it is until
/// the release callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerInferAsync(
    server: *mut TRITONSERVER_Server,
    request: *mut TRITONSERVER_InferenceRequest,
    trace: *mut TRITONSERVER_InferenceTrace,
) -> *mut TRITONSERVER_Error {
    guard("TRITONSERVER_ServerInferAsync", || {
        // SAFETY: the caller's promises are passed on.
        let server = unsafe { running(server)? };
        // SAFETY: as above.
        let object = unsafe { handle::borrow::<RequestObject>(request, "inference_request")? };
        let response = object.response.clone().ok_or_else(|| {
            Status::invalid_argument("inference response callback must be set before infer")
        })?;
        let release = object.release.ok_or_else(|| {
            Status::invalid_argument("inference request release callback must be set before infer")
        })?;
        // SAFETY: the caller's promise is passed on.
        unsafe { trace::check(trace)? };
        let (away, cancel) = object.flight.begin().ok_or_else(|| on_its_way(object))?;
        let loan = Arc::new(Loan { request: Address(request), release, away: Some(away) });
        let control = server.control.as_ref();
        let mut infer = match inference_request(object, cancel, control, &loan) {
            Ok(infer) => infer,
            Err(status) => {
                loan.forgive();
                return Err(status);
            }
        };
        let origin = Origin {
            model_name: object.model_name.clone(),
            model_version: object.model_version.unwrap_or(-1),
            id: infer.id.clone(),
        };
        infer.trace = (!trace.is_null()).then(|| Told::begin(trace, &loan));
        infer.output_query = Some(Arc::new(response.allocator.output_query()));
        let classes = ClassesCell::default();
        infer.classes = Some(classes.clone());
        let caller = Arc::new(Caller { origin, classes, response, call: Call::begin() });
        let sink = Sink(caller.clone());
        server.service.infer(infer, ResponseSender::new(Box::new(sink)));
        match caller.call.end() {
            Some(status) => refuse(loan, &caller, status),
            None => Ok(()),
        }
    })
}

/// As in the original, a request is handed over once at a time: it has one release.
fn on_its_way(object: &RequestObject) -> Status {
    let text = "Invalid request state transition: the server has this request already";
    let id = object.id.to_string_lossy().into_owned();
    let request = InferenceRequest { id, ..InferenceRequest::default() };
    Status::internal(text).prefixed(request.log_prefix())
}

struct Address(*mut TRITONSERVER_InferenceRequest);

// SAFETY: the address is only handed to the release callback.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

/// A request's memory, which the server has borrowed. When nobody needs it any
/// more, the caller is told.
pub(crate) struct Loan {
    request: Address,
    release: ReleaseCallback,
    /// None once the caller may hand it over anew.
    away: Option<Away>,
}

impl Loan {
    /// The server does not take the request after all: it stays the caller's, who
    /// learns so from the error.
    /// False if somebody still has a share, who then gives it back as usual.
    fn forgive(self: Arc<Self>) -> bool {
        let Some(mut last) = Arc::into_inner(self) else { return false };
        last.release.function = None;
        true
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        // The callback may hand the request over again.
        drop(self.away.take());
        if let Some(release) = self.release.function {
            let flags = TRITONSERVER_REQUEST_RELEASE_ALL.0;
            // SAFETY: the caller set a function that takes these from any thread;
            // the request was handed over with it and is given back once.
            run_foreign(|| unsafe { release(self.request.0, flags, self.release.userp) });
        }
    }
}

/// A piece of the caller's memory, borrowed as long as anybody reads it.
struct Borrowed {
    piece: Piece,
    _loan: Arc<Loan>,
}

impl AsRef<[u8]> for Borrowed {
    fn as_ref(&self) -> &[u8] {
        if self.piece.byte_size == 0 {
            return &[];
        }
        // SAFETY: the caller promised so many readable bytes that stay as they are
        // until the request is released, which is when the loan ends.
        unsafe { core::slice::from_raw_parts(self.piece.base.cast(), self.piece.byte_size) }
    }
}

fn inference_request(
    object: &RequestObject,
    cancel: CancelToken,
    control: &dyn ServerControl,
    loan: &Arc<Loan>,
) -> Result<InferenceRequest, Status> {
    let mut request = without_inputs(object, cancel);
    for input in &object.inputs {
        let data = data(&input.pieces, loan);
        let mut tensor = match &input.form {
            Some(form) => input_tensor(&input.name, form, data),
            None => raw_tensor(object, &data, control)
                .map_err(|status| status.prefixed(request.log_prefix())),
        }?;
        if input.form.is_none()
            && !input.host_policies.is_empty()
            && tensor.datatype == DataType::Bytes
        {
            let text = "Raw input with data associated with a host policy setting is not \
                        currently supported";
            return Err(Status::invalid_argument(text).prefixed(request.log_prefix()));
        }
        tensor.data = for_host_policies(tensor.data, input, loan);
        request.inputs.push(tensor);
    }
    Ok(request)
}

fn without_inputs(object: &RequestObject, cancel: CancelToken) -> InferenceRequest {
    InferenceRequest {
        id: object.id.to_string_lossy().into_owned(),
        model_name: object.model_name.clone(),
        model_version: object.model_version,
        outputs: object.outputs.clone(),
        parameters: object.parameters.clone(),
        priority: object.priority,
        timeout_microseconds: object.timeout_microseconds,
        correlation_id: match &object.correlation {
            Correlation::Number(0) => CorrelationId::None,
            Correlation::Number(number) => CorrelationId::Number(*number),
            Correlation::Text(text) if text.is_empty() => CorrelationId::None,
            Correlation::Text(text) => CorrelationId::Text(text.to_string_lossy().into_owned()),
        },
        sequence_flags: SequenceFlags {
            start: object.flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START.0 != 0,
            end: object.flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END.0 != 0,
        },
        cancel,
        ..InferenceRequest::default()
    }
}

fn input_tensor(
    name: &str,
    form: &(DataType, Vec<i64>),
    data: Bytes,
) -> Result<InputTensor, Status> {
    let (datatype, dims) = form;
    let shape = Shape::new(dims)
        .map_err(|error| Status::invalid_argument(format!("input '{name}': {error}")))?;
    let data = Buffer::from_bytes(data);
    Ok(InputTensor { name: name.to_owned(), datatype: *datatype, shape, data })
}

/// An input of which the bytes alone are given: the model's configuration says the rest.
fn raw_tensor(
    object: &RequestObject,
    data: &Bytes,
    control: &dyn ServerControl,
) -> Result<InputTensor, Status> {
    let name = &object.model_name;
    let config = control.model_config(name, object.model_version)?;
    raw_input(data, object.inputs.len(), name, &config)
}

/// An input with what it has for host policies, which the model holds to the input's
/// shape. As in the original an input isn't complete with these alone.
fn for_host_policies(all: Buffer, input: &Input, loan: &Arc<Loan>) -> Buffer {
    if all.is_empty() {
        return all;
    }
    let own = input.host_policies.iter();
    let own = own.map(|(policy, pieces)| (policy.clone(), Buffer::from_bytes(data(pieces, loan))));
    all.with_host_policies(own.collect())
}

/// Bytes, in place if they are in one piece.
fn data(pieces: &[Piece], loan: &Arc<Loan>) -> Bytes {
    let borrowed = |piece: &Piece| Borrowed { piece: *piece, _loan: loan.clone() };
    match pieces {
        [only] => Bytes::from_owner(borrowed(only)),
        pieces => {
            let mut joined = Vec::new();
            for piece in pieces {
                joined.extend_from_slice(borrowed(piece).as_ref());
            }
            Bytes::from(joined)
        }
    }
}

/// A request failed before its call returned: the caller is told by the call, unless
/// the server couldn't let go of the request.
fn refuse(loan: Arc<Loan>, caller: &Caller, status: Status) -> Result<(), Status> {
    if loan.forgive() {
        return Err(status);
    }
    caller.tell(Reply::Response { result: Err(status), finality: Finality::Final });
    Ok(())
}

/// Where the call stands that hands a request over.
struct Call {
    thread: ThreadId,
    state: Mutex<State>,
}

enum State {
    /// It hasn't returned, and no reply has come.
    Open,
    /// It hasn't returned, and the request has failed.
    Failed(Status),
    /// Replies go to the callback.
    Over,
}

impl Call {
    fn begin() -> Self {
        Self { thread: thread::current().id(), state: Mutex::new(State::Open) }
    }

    /// Gives a reply back that the callback must be told.
    fn take(&self, reply: Reply) -> Option<Reply> {
        let mut state = self.lock();
        match (&*state, reply) {
            (State::Open, Reply::Response { result: Err(status), finality: Finality::Final })
                if thread::current().id() == self.thread =>
            {
                *state = State::Failed(status);
                None
            }
            (_, reply) => {
                *state = State::Over;
                Some(reply)
            }
        }
    }

    /// What the request failed with before this.
    fn end(&self) -> Option<Status> {
        match core::mem::replace(&mut *self.lock(), State::Over) {
            State::Failed(status) => Some(status),
            State::Open | State::Over => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who handed a request over.
struct Caller {
    origin: Origin,
    /// Says what labels the model's outputs have, for callers may ask for them later.
    classes: ClassesCell,
    response: ResponseCallback,
    call: Call,
}

impl Caller {
    /// Hands a reply to the callback.
    fn tell(&self, reply: Reply) {
        let is_final = reply.is_final();
        let object = match reply {
            Reply::Response { result, .. } => {
                let classes = self.classes.get().cloned();
                let allocator = &self.response.allocator;
                let object = ResponseObject::new(result, &self.origin, classes, allocator);
                handle::into_raw(object)
            }
            Reply::Finished => core::ptr::null_mut(),
        };
        let flags = if is_final { TRITONSERVER_RESPONSE_COMPLETE_FINAL.0 } else { 0 };
        match self.response.function {
            // SAFETY: the caller set a function that takes these from any thread.
            Some(complete) => unsafe { complete(object, flags, self.response.userp) },
            None => log::error("a response has no callback to go to"),
        }
    }
}

/// Where the server sends replies.
struct Sink(Arc<Caller>);

impl ResponseSink for Sink {
    fn deliver(&mut self, reply: Reply) {
        if let Some(reply) = self.0.call.take(reply) {
            run_foreign(|| self.0.tell(reply));
        }
    }
}
