//! One connection: a task that reads calls, hands them on and writes answers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use galatea_codec::forward::forward;
use galatea_codec::grpc::{GrpcCode, InferMessage, parse_version};
use galatea_infer::{CancelToken, ResponseSender, Status};
use h2::RecvStream;
use h2::server::Connection;
use http::Request;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::answer::{self, Failure, Responder};
use crate::body::MessageReader;
use crate::call::{Arrival, Arrived, Calls, Forwarded, Phase};
use crate::deadline::{Alarm, Timeout};
use crate::dispatch;
use crate::door::{Door, OpenConnection, Origin};
use crate::in_progress::{Arriving, InProgress, taken};
use crate::output::{Flusher, Gathering, gather};
use crate::route::{Method, Route, route};
use crate::signal::{CallKey, Limits, News, Signal, Use};
use crate::sink::{CallSink, overrun};
use crate::staged::Spares;
use crate::unwritten::{Holder, Outgoing};

mod streams;

/// What a client may send of one call before the task reads it.
const CALL_WINDOW_BYTES: u32 = 16 << 20;
/// The same for all calls of a connection.
const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;
/// The longest frame. A message in one frame isn't copied; longer ones are put
/// together from frames that are still in the processor's caches.
const FRAME_BYTES_MAX: u32 = 2 << 20;
/// What is read before the task looks at what there is.
const READ_BYTES_MAX: usize = 1 << 20;
/// What gRPC servers usually take of headers.
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// How many calls a client may give up before they were looked at; more is an
/// attack, and ends the connection.
const UNSEEN_RESETS_MAX: usize = 256;
/// How often the task looks for more to do before others have their turn.
const ROUNDS_MAX: u32 = 8;

/// Serves a client until it or the door is done.
///
/// `counted` is there if the connection was made while the door served.
pub(crate) async fn serve(
    door: Arc<Door>,
    stream: TcpStream,
    mut counted: Option<OpenConnection>,
    spares: Arc<Spares>,
) {
    let origin = if counted.is_some() { Origin::Serving } else { Origin::Stopping };
    // Answers are whole when they are written; waiting for more to send with
    // them only makes clients wait.
    let _ = stream.set_nodelay(true);
    let (socket, flusher) = gather(stream, &spares);
    let handshake = h2::server::Builder::new()
        .initial_window_size(CALL_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .max_concurrent_streams(door.options.concurrent_calls_max)
        .max_pending_accept_reset_streams(UNSEEN_RESETS_MAX)
        .handshake(socket);
    let shaken = {
        let handshake = tokio::time::timeout(door.options.handshake_timeout, handshake);
        let mut handshake = std::pin::pin!(handshake);
        tokio::select! {
            biased;
            shaken = handshake.as_mut() => shaken,
            () = door.stops(), if counted.is_some() => {
                // Nobody waits for a client that hasn't said anything yet.
                drop(counted.take());
                handshake.await
            }
        }
    };
    let Ok(Ok(h2)) = shaken else { return };
    flusher.take_over();
    let signal = Arc::new(Signal::new(Limits {
        call_bytes_max: door.options.call_unwritten_bytes_max,
        bytes_max: door.options.unwritten_bytes_max,
        bytes_dropped: door.options.unwritten_bytes_dropped,
        beside_bytes_max: door.options.unwritten_beside_bytes_max,
        request_bytes_max: door.options.request_bytes_max,
        arriving_bytes_max: door.options.arriving_bytes_max,
    }));
    let _presence = door.enter(&signal, origin);
    ConnectionTask::new(door, signal, h2, flusher).await;
}

struct ConnectionTask {
    door: Arc<Door>,
    signal: Arc<Signal>,
    /// The signal as a waker.
    waker: Waker,
    h2: Connection<Gathering, Outgoing>,
    flusher: Flusher,
    calls: Calls,
    /// Calls whose messages are arriving.
    reading: Vec<CallKey>,
    /// Streams to look at; kept for its memory.
    streams: Vec<CallKey>,
    /// Streams that wait until the connection has less to write.
    paused_streams: Vec<CallKey>,
    /// Whether calls are not read because there is so much to write.
    calls_paused: bool,
    resets: Arc<ResetFlag>,
    resets_waker: Waker,
    alarm: Alarm,
    /// Kept for its memory.
    news: Vec<News>,
}

/// Raised when `h2` says that some call may have been given up.
///
/// It wakes nobody: `h2` learns such things when the task polls it, and the
/// task looks here right after.
#[derive(Default)]
struct ResetFlag(AtomicBool);

impl Wake for ResetFlag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// The connection is over.
struct Closed;

impl Future for ConnectionTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let task = self.get_mut();
        task.signal.begin(cx.waker());
        for _ in 0..ROUNDS_MAX {
            if let Err(Closed) = task.round() {
                return Poll::Ready(());
            }
            if task.signal.rest() {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl ConnectionTask {
    fn new(
        door: Arc<Door>,
        signal: Arc<Signal>,
        h2: Connection<Gathering, Outgoing>,
        flusher: Flusher,
    ) -> Self {
        let resets = Arc::<ResetFlag>::default();
        Self {
            door,
            waker: Waker::from(signal.clone()),
            signal,
            h2,
            flusher,
            calls: Calls::default(),
            reading: Vec::new(),
            streams: Vec::new(),
            paused_streams: Vec::new(),
            calls_paused: false,
            resets_waker: Waker::from(resets.clone()),
            resets,
            alarm: Alarm::default(),
            news: Vec::new(),
        }
    }

    /// Does everything that there is to do, once: answers first, so that they
    /// are on their way before new calls are begun.
    fn round(&mut self) -> Result<(), Closed> {
        self.take_news()?;
        // The answers made `h2` want to run, and now it does. A wake-up from
        // elsewhere that is forgotten with those is answered below too.
        self.signal.settle();
        self.resets.0.store(false, Ordering::Release);
        self.flusher.allow_reading(READ_BYTES_MAX);
        self.accept()?;
        self.calls_paused = false;
        self.read();
        self.serve_streams();
        if self.resets.0.load(Ordering::Acquire) {
            self.drop_reset_calls();
        }
        self.expire();
        if self.can_resume() {
            // Calls that ended took their answers with them.
            self.waker.wake_by_ref();
        }
        match self.flusher.poll_flush(&mut Context::from_waker(&self.waker)) {
            Poll::Ready(Err(_)) => Err(Closed),
            Poll::Ready(Ok(())) | Poll::Pending => Ok(()),
        }
    }

    /// Whether something waits for room that is there.
    fn can_resume(&self) -> bool {
        (self.calls_paused && !self.signal.is_full(Use::Call))
            || (!self.paused_streams.is_empty() && !self.signal.is_full(Use::Stream))
    }

    fn take_news(&mut self) -> Result<(), Closed> {
        let mut news = std::mem::take(&mut self.news);
        self.signal.take(&mut news);
        for item in news.drain(..) {
            match item {
                News::Answer { call, outcome } => self.finish(call, outcome),
                News::Reply { call, place, answer, is_final } => {
                    self.reply(call, place, answer, is_final);
                }
                News::Overrun { call } => self.reset_stream(call),
                News::Stop => {
                    self.h2.graceful_shutdown();
                    self.end_idle_streams();
                }
                News::Close => return Err(Closed),
            }
        }
        self.news = news;
        Ok(())
    }

    fn accept(&mut self) -> Result<(), Closed> {
        loop {
            match self.h2.poll_accept(&mut Context::from_waker(&self.waker)) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Some(Ok((request, respond)))) => {
                    self.open(request, respond);
                }
                Poll::Ready(Some(Err(_)) | None) => return Err(Closed),
            }
        }
    }

    /// Looks at a call's head; answers at once if that is enough.
    fn open(&mut self, request: Request<RecvStream>, mut respond: Responder) {
        let (head, body) = request.into_parts();
        let route = match route(&head) {
            Ok(route) => route,
            Err(refusal) => {
                answer::send_refusal(&mut respond, &refusal);
                return;
            }
        };
        let deadline = deadline(&route);
        if let Some(deadline) = deadline {
            self.alarm.set(deadline);
        }
        let forwarded = self.door.forwarded(&head.headers);
        if route.method == Method::ModelStreamInfer {
            self.open_stream(respond, body, deadline, route.errors, forwarded);
            return;
        }
        let reader =
            MessageReader::new(self.door.options.message_bytes_max, self.door.kept.clone());
        let arriving = Arriving::new(self.signal.clone());
        let arrival = Arrival { method: route.method, body, reader, arriving };
        let key = self.calls.insert(respond, deadline, |_| Phase::Reading(arrival));
        self.calls.set_forwarded(key, forwarded);
        self.reading.push(key);
    }

    /// Reads what has arrived of every message that is not whole.
    fn read(&mut self) {
        let mut reading = std::mem::take(&mut self.reading);
        reading.retain(|&key| self.read_call(key));
        self.reading = reading;
    }

    /// Reads one call; returns whether more of it is to come.
    fn read_call(&mut self, key: CallKey) -> bool {
        let Some(call) = self.calls.get_mut(key) else { return false };
        let Phase::Reading(arrival) = &mut call.phase else { return false };
        if self.signal.is_full(Use::Call) && !arrival.method.is_brief() {
            self.calls_paused = true;
            let mut cx = Context::from_waker(Waker::noop());
            let is_given_up = call.respond.poll_reset(&mut cx).is_ready();
            if is_given_up {
                self.calls.remove(key);
            }
            return !is_given_up;
        }
        match arrival.read() {
            Some(Ok(Arrived::NotYet)) => true,
            Some(Ok(Arrived::Message(method, message))) => {
                self.dispatch(key, method, message);
                false
            }
            Some(Err(failure)) => {
                self.fail(key, &failure);
                false
            }
            None => {
                self.calls.remove(key);
                false
            }
        }
    }

    fn dispatch(&mut self, key: CallKey, method: Method, message: Bytes) {
        let Some(call) = self.calls.get_mut(key) else { return };
        let cancel = CancelToken::new();
        call.phase = Phase::Working(cancel.clone());
        let mut cx = Context::from_waker(&self.resets_waker);
        if call.respond.poll_reset(&mut cx).is_ready() {
            self.calls.remove(key);
            return;
        }
        if method == Method::ModelInfer {
            let forwarded = std::mem::replace(&mut call.forwarded, Ok(Vec::new()));
            let begun =
                catch_unwind(AssertUnwindSafe(|| self.infer(key, &message, cancel, forwarded)));
            match begun {
                Ok(Ok(())) => {}
                Ok(Err(status)) => self.fail(key, &status.into()),
                Err(_panic) => self.fail(key, &panicked()),
            }
        } else if dispatch::may_wait(method) {
            let (door, signal) = (self.door.clone(), self.signal.clone());
            let in_progress = InProgress::new(signal.clone(), message.len(), Use::Call);
            tokio::task::spawn_blocking(move || {
                let _in_progress = in_progress;
                let outcome = answer_control(&door, &signal, method, message);
                signal.push(News::Answer { call: key, outcome });
            });
        } else if dispatch::asks_backend(&self.door, method, &message) {
            self.ask(key, method, message, cancel);
        } else {
            let outcome = answer_control(&self.door, &self.signal, method, message);
            self.finish(key, outcome);
        }
    }

    /// Has a backend asked on a thread that may wait, when it is the call's turn.
    fn ask(&self, key: CallKey, method: Method, message: Bytes, cancel: CancelToken) {
        let (door, signal) = (self.door.clone(), self.signal.clone());
        let in_progress = InProgress::new(signal.clone(), message.len(), Use::Call);
        tokio::spawn(async move {
            // The door never closes it.
            let Ok(turn) = door.questions.clone().acquire_owned().await else { return };
            if cancel.is_cancelled() {
                return;
            }
            tokio::task::spawn_blocking(move || {
                let _turn = turn;
                let _in_progress = in_progress;
                let outcome = answer_control(&door, &signal, method, message);
                signal.push(News::Answer { call: key, outcome });
            });
        });
    }

    fn infer(
        &self,
        key: CallKey,
        message: &Bytes,
        cancel: CancelToken,
        forwarded: Forwarded,
    ) -> Result<(), Status> {
        refuse_while_stopping(&self.door)?;
        let message_bytes = message.len();
        let message = InferMessage::parse(message)?;
        let version = parse_version(message.model_version())?;
        if self.door.control.is_decoupled(message.model_name(), version)? {
            return Err(Status::unsupported(
                "ModelInfer RPC doesn't support models with decoupled transaction policy",
            ));
        }
        let (mut request, classification) = message.into_request(version)?;
        forward(&mut request.parameters, forwarded?);
        request.cancel = cancel;
        let bytes = taken(message_bytes, &request);
        let in_progress = InProgress::new(self.signal.clone(), bytes, Use::Call);
        let sink = CallSink::new(in_progress, key, classification);
        self.door.service.infer(request, ResponseSender::new(Box::new(sink)));
        Ok(())
    }

    /// Answers a call, unless it is over.
    fn finish(&mut self, key: CallKey, outcome: Result<Outgoing, Failure>) {
        match outcome {
            Ok(message) => {
                if let Some(mut call) = self.calls.remove(key) {
                    answer::send_message(&mut call.respond, message);
                }
            }
            Err(failure) => self.fail(key, &failure),
        }
    }

    /// Ends a call with a failure, unless it is over.
    fn fail(&mut self, key: CallKey, failure: &Failure) {
        let Some(mut call) = self.calls.remove(key) else { return };
        match &mut call.phase {
            Phase::Streaming(stream) => stream.fail(failure),
            Phase::Reading(_) | Phase::Working(_) => {
                answer::send_failure(&mut call.respond, failure);
            }
        }
    }

    fn drop_reset_calls(&mut self) {
        let mut cx = Context::from_waker(&self.resets_waker);
        let reset = self.calls.select(|call| match call.phase {
            // Reading finds out by itself, and a stream is told.
            Phase::Reading(_) | Phase::Streaming(_) => false,
            Phase::Working(_) => call.respond.poll_reset(&mut cx).is_ready(),
        });
        for key in reset {
            if let Some(call) = self.calls.remove(key) {
                call.cancel();
            }
        }
    }

    fn expire(&mut self) {
        if !self.alarm.poll(&mut Context::from_waker(&self.waker)) {
            return;
        }
        let now = Instant::now();
        let expired =
            self.calls.select(|call| call.deadline.is_some_and(|deadline| deadline <= now));
        for key in expired {
            if let Some(call) = self.calls.get_mut(key) {
                call.cancel();
            }
            self.fail(key, &Failure::new(GrpcCode::DeadlineExceeded, "Deadline Exceeded"));
        }
        if let Some(deadline) = self.calls.next_deadline() {
            self.alarm.set(deadline);
            // The timer is asked once more, so that it knows whom to wake.
            self.waker.wake_by_ref();
        }
    }
}

/// Whatever the task leaves behind is nobody's any more.
impl Drop for ConnectionTask {
    fn drop(&mut self) {
        self.signal.close();
    }
}

fn deadline(route: &Route) -> Option<Instant> {
    match route.timeout {
        Some(Timeout::Within(timeout)) => Instant::now().checked_add(timeout),
        Some(Timeout::Never) | None => None,
    }
}

fn refuse_while_stopping(door: &Door) -> Result<(), Status> {
    if door.is_stopping() {
        return Err(Status::unavailable(
            "GRPC server is shutting down and has stopped accepting new requests.",
        ));
    }
    Ok(())
}

fn answer_control(
    door: &Door,
    signal: &Arc<Signal>,
    method: Method,
    message: Bytes,
) -> Result<Outgoing, Failure> {
    let answer = catch_unwind(AssertUnwindSafe(|| dispatch::answer(door, method, message)))
        .unwrap_or_else(|_panic| Err(Status::internal(PANICKED)))?;
    Outgoing::new(answer, Holder::Call(signal.clone())).ok_or_else(overrun)
}

const PANICKED: &str = "the server failed on this request";

fn panicked() -> Failure {
    Failure::new(GrpcCode::Internal, PANICKED)
}

impl Arrival {
    /// Reads what has arrived; `None` if the client gave up.
    ///
    /// Nobody is woken when more arrives: that happens when the connection's
    /// task polls `h2`, and it comes here right after.
    fn read(&mut self) -> Option<Result<Arrived, Failure>> {
        let mut cx = Context::from_waker(Waker::noop());
        while !self.body.is_end_stream() {
            match self.body.poll_data(&mut cx) {
                Poll::Pending => return Some(Ok(Arrived::NotYet)),
                Poll::Ready(Some(Ok(bytes))) => {
                    // What was read may be sent again; how much a call may
                    // bring in all is the reader's affair, and how much all
                    // calls may is counted.
                    let _ = self.body.flow_control().release_capacity(bytes.len());
                    let counted = self.arriving.add(bytes.len());
                    if let Err(failure) = counted.and_then(|()| self.reader.push(bytes)) {
                        return Some(Err(failure));
                    }
                }
                Poll::Ready(Some(Err(_))) => return None,
                Poll::Ready(None) => break,
            }
        }
        Some(self.reader.finish().map(|message| Arrived::Message(self.method, message)))
    }
}
