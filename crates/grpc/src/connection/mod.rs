//! A connection's task, which reads calls, starts them and writes responses.
//!
//! - this file: the task and its rounds
//! - `calls.rs`: unary calls
//! - `streams.rs`: streams
//! - `upkeep.rs`: pings, and the end of the connection

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use galatea_codec_grpc::GrpcCode;
use galatea_door::ConnectionActivity;
use galatea_explain::LatencyExplanation;
use galatea_gate::ledger::MemoryAccount;
use galatea_infer::{Deadline, Status};
use galatea_stdx::Inbox;
use h2::RecvStream;
use h2::server::{Connection, Handshake};
use http::HeaderMap;
use http::Request;
use http::header::HeaderValue;
use tokio::time::Instant;

use self::upkeep::UpkeepState;
use crate::budget::{BudgetLimits, CallKind, MemoryBudget, Outgoing};
use crate::buffers::{Flusher, GatheringSocket, MessageMemory, StagingPool, gather};
use crate::call_headers::CallHeaders;
use crate::call_key::CallKey;
use crate::call_response::{self, CallResponder};
use crate::call_trace::{MessageWait, trace_context};
use crate::calls::{CallHead, CallState, Calls};
use crate::compression::{INFLATE_BYTES, response_coding};
use crate::context::{AcceptPhase, DoorContext, RegisteredConnection};
use crate::deadline::{DeadlineTimer, Timeout};
use crate::event::ConnectionEvent;
use crate::failure::Failure;
use crate::options::GrpcOptions;
use crate::route::{Method, Route, explained_detail, route};

mod calls;
mod streams;
mod upkeep;

/// The number of bytes that a client may send for one call before the task reads any.
const CALL_WINDOW_BYTES: u32 = 16 << 20;
/// The number of bytes that a client may send for all calls of a connection before the task reads
/// any.
const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;
/// The maximum length of a frame. A message in one frame isn't copied; longer messages are
/// assembled from frames that are still in the processor's caches.
const FRAME_BYTES_MAX: u32 = 2 << 20;
/// The divisor of the memory limit that yields the maximum frame length. For each connection, `h2`
/// has an uncharged buffer for the longest frame, and another while the previous frame is read.
/// With 64 connections, the buffers use at most an eighth of the limit.
const FRAME_SHARE: usize = 1024;
/// The lower bound for the maximum frame length: shorter frames cost more than they save.
const FRAME_BYTES_MIN: u32 = 64 << 10;
/// The number of bytes that are read before the task processes them.
const READ_BYTES_MAX: usize = 1 << 20;
/// The maximum size of a call's headers, as is usual for gRPC servers.
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// The number of calls that a client may reset before the task has seen them. A higher number
/// counts as an attack and ends the connection.
const UNSEEN_RESETS_MAX: usize = 256;
/// The number of rounds that the task runs before it yields to other tasks.
const ROUNDS_MAX: u32 = 8;

/// The error message after a panic.
const PANICKED: &str = "the server failed on this request";

/// Serves a client until the client disconnects or the door closes.
pub(crate) async fn serve(
    context: Arc<DoorContext>,
    connection: galatea_door::Connection,
    pool: Arc<StagingPool>,
) {
    let galatea_door::Connection { place, stream, mut phase, mut open, .. } = connection;
    let activity = place.activity().clone();
    poll_fn(|context| {
        activity.set_waker(context.waker());
        Poll::Ready(())
    })
    .await;
    let accept_phase = if open.is_some() { AcceptPhase::Serving } else { AcceptPhase::Draining };
    let (socket, flusher) = gather(stream, &pool);
    let handshake = handshake(&context.options, socket);
    let shaken = {
        let handshake = tokio::time::timeout(context.options.handshake_timeout, handshake);
        let mut handshake = std::pin::pin!(handshake);
        tokio::select! {
            biased;
            shaken = handshake.as_mut() => shaken,
            () = phase.wait_until_stopping(), if open.is_some() => {
                // The drain doesn't wait for a client that hasn't sent anything.
                drop(open.take());
                handshake.await
            }
        }
    };
    let Ok(Ok(h2)) = shaken else { return };
    flusher.take_over();
    let inbox = Arc::new(Inbox::new());
    let waker = inbox.waker();
    let account = Arc::new(MemoryAccount::of_connection(context.options.ledger.clone()));
    let budget = Arc::new(MemoryBudget::new(limits(&context.options), account, waker.clone()));
    let registered = RegisteredConnection { inbox: inbox.clone(), budget: budget.clone() };
    let _registration = context.register(registered, accept_phase);
    let mut task = ConnectionTask::new(context, activity, inbox, budget, waker, h2, flusher);
    task.plan_upkeep();
    task.await;
}

fn handshake(
    options: &GrpcOptions,
    socket: GatheringSocket,
) -> Handshake<GatheringSocket, Outgoing> {
    h2::server::Builder::new()
        .initial_window_size(CALL_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(frame_bytes_max(options.ledger.limit()))
        .max_header_list_size(HEADER_BYTES_MAX)
        .max_concurrent_streams(options.concurrent_calls_max)
        .max_pending_accept_reset_streams(UNSEEN_RESETS_MAX)
        .handshake(socket)
}

/// Returns the maximum length of a frame under this memory limit.
fn frame_bytes_max(limit: Option<usize>) -> u32 {
    let share = limit.and_then(|limit| u32::try_from(limit / FRAME_SHARE).ok());
    share.unwrap_or(FRAME_BYTES_MAX).clamp(FRAME_BYTES_MIN, FRAME_BYTES_MAX)
}

const fn limits(options: &GrpcOptions) -> BudgetLimits {
    BudgetLimits {
        call_unwritten_bytes_max: options.call_unwritten_bytes_max,
        unwritten_bytes_max: options.unwritten_bytes_max,
        unwritten_bytes_dropped: options.unwritten_bytes_dropped,
        retained_bytes_max: options.retained_bytes_max,
        request_bytes_max: options.request_bytes_max,
        arriving_bytes_max: options.arriving_bytes_max,
    }
}

struct ConnectionTask {
    context: Arc<DoorContext>,
    /// The connection's activity, which reports when the connection is idle and may be closed to
    /// make room for another.
    activity: Arc<ConnectionActivity>,
    inbox: Arc<Inbox<ConnectionEvent>>,
    budget: Arc<MemoryBudget>,
    /// Wakes this task through the inbox. `h2` and the socket receive this waker instead of the
    /// task's own, because `h2` wakes its task for every response, even one that the task itself
    /// hands over.
    waker: Waker,
    h2: Connection<GatheringSocket, Outgoing>,
    flusher: Flusher,
    calls: Calls,
    /// The unary calls whose messages are arriving.
    receiving: Vec<CallKey>,
    /// The streams to be served in this round.
    ready_streams: Vec<CallKey>,
    /// The streams that wait for room in the connection's budget.
    paused_streams: Vec<CallKey>,
    /// True if unary calls wait for room in the connection's budget.
    are_calls_paused: bool,
    /// The number of bytes that may still be inflated in this round.
    inflates: usize,
    /// The account to which the connection's memory is charged.
    account: Arc<MemoryAccount>,
    /// The charged size of the `h2` buffer.
    buffer_bytes: usize,
    resets: Arc<ResetFlag>,
    resets_waker: Waker,
    timer: DeadlineTimer,
    state: UpkeepState,
    /// True if the socket has accepted all output.
    is_flushed: bool,
    /// A buffer for events. It is empty between rounds and kept only to reuse its memory.
    events: VecDeque<ConnectionEvent>,
}

/// Set when `h2` reports that a call may have been reset.
///
/// Setting the flag wakes no task: `h2` reports resets while the task polls it, and the task checks
/// the flag afterwards.
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

/// The error for a connection that has ended.
struct ConnectionClosed;

impl Future for ConnectionTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let task = self.get_mut();
        if task.end_idleness().is_err() {
            return Poll::Ready(());
        }
        task.inbox.register_reader(cx.waker());
        for _ in 0..ROUNDS_MAX {
            if let Err(ConnectionClosed) = task.round() {
                return Poll::Ready(());
            }
            if task.inbox.try_sleep() {
                task.begin_idleness();
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl ConnectionTask {
    fn new(
        context: Arc<DoorContext>,
        activity: Arc<ConnectionActivity>,
        inbox: Arc<Inbox<ConnectionEvent>>,
        budget: Arc<MemoryBudget>,
        waker: Waker,
        h2: Connection<GatheringSocket, Outgoing>,
        flusher: Flusher,
    ) -> Self {
        let resets = Arc::<ResetFlag>::default();
        let account = budget.account().clone();
        let state = UpkeepState::new(&context.options.keepalive, flusher.frames().clone());
        Self {
            context,
            activity,
            inbox,
            budget,
            waker,
            h2,
            flusher,
            calls: Calls::default(),
            receiving: Vec::new(),
            ready_streams: Vec::new(),
            paused_streams: Vec::new(),
            are_calls_paused: false,
            inflates: 0,
            account,
            buffer_bytes: MemoryAccount::SMALL_BYTES_MAX,
            resets_waker: Waker::from(resets.clone()),
            resets,
            timer: DeadlineTimer::default(),
            state,
            is_flushed: true,
            events: VecDeque::new(),
        }
    }

    /// Does all available work once. Responses come first, so that they are on their way before new
    /// calls start.
    fn round(&mut self) -> Result<(), ConnectionClosed> {
        self.handle_events()?;
        // Responses notify `h2` to run, which happens below. The code below also handles the other
        // notifications that were cleared.
        self.inbox.clear_notifications();
        self.resets.0.store(false, Ordering::Release);
        self.flusher.set_read_quota(READ_BYTES_MAX);
        self.accept()?;
        self.charge_buffer();
        self.police_pings()?;
        self.are_calls_paused = false;
        self.inflates = INFLATE_BYTES;
        self.receive_messages();
        // Streams that have become ready in `h2` in the meantime are also served in this round.
        self.handle_events()?;
        self.serve_streams();
        if self.resets.0.load(Ordering::Acquire) {
            self.drop_reset_calls();
        }
        let is_due = self.timer.poll(&mut Context::from_waker(&self.waker));
        if is_due {
            self.expire_calls();
        }
        if self.can_resume() {
            // The responses of calls that have ended were dropped with them.
            self.waker.wake_by_ref();
        }
        let is_flushed = match self.flusher.poll_flush(&mut Context::from_waker(&self.waker)) {
            Poll::Ready(Err(_)) => return Err(ConnectionClosed),
            Poll::Ready(Ok(())) => true,
            Poll::Pending => false,
        };
        self.is_flushed = is_flushed;
        self.keep_up(is_due, is_flushed)
    }

    /// Charges the buffer of `h2`, which lives as long as the connection and has grown to the
    /// longest frame. The account's base charge covers a small buffer.
    fn charge_buffer(&mut self) {
        let longest = self.flusher.frames().longest_received();
        if longest > self.buffer_bytes {
            self.account.force_charge(longest.saturating_sub(self.buffer_bytes));
            self.buffer_bytes = longest;
        }
    }

    /// The source of message memory.
    fn message_memory(&self) -> MessageMemory {
        MessageMemory {
            pool: self.context.message_pool.clone(),
            account: self.budget.account().clone(),
        }
    }

    /// Returns true if calls or streams wait for room that has become available.
    fn can_resume(&self) -> bool {
        (self.are_calls_paused && !self.budget.is_full(CallKind::Unary))
            || (!self.paused_streams.is_empty() && !self.budget.is_full(CallKind::Stream))
    }

    fn handle_events(&mut self) -> Result<(), ConnectionClosed> {
        self.inbox.drain_into(&mut self.events);
        while let Some(event) = self.events.pop_front() {
            match event {
                ConnectionEvent::CallStarted { call, message, cancel } => {
                    self.start_inference(call, &message, cancel);
                }
                ConnectionEvent::CallModelFound { call, waiting, result } => {
                    self.resume_inference(call, *waiting, result);
                }
                ConnectionEvent::StreamModelFound { call, message, result } => {
                    self.resume_stream(call, &message, result);
                }
                ConnectionEvent::CallFinished { call, result } => self.finish_call(call, result),
                ConnectionEvent::StreamReply { call, slot, message, is_final } => {
                    self.stream_reply(call, slot, message, is_final);
                }
                ConnectionEvent::StreamOverrun { call } => self.reset_stream(call),
                ConnectionEvent::StreamReady { call } => self.ready_streams.push(call),
                ConnectionEvent::Drain => {
                    self.begin_goaway();
                    self.end_idle_streams();
                }
                ConnectionEvent::Close => {
                    self.cancel_calls();
                    self.events.clear();
                    return Err(ConnectionClosed);
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<(), ConnectionClosed> {
        loop {
            match self.h2.poll_accept(&mut Context::from_waker(&self.waker)) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Some(Ok((request, responder)))) => self.open(request, responder),
                Poll::Ready(Some(Err(_)) | None) => return Err(ConnectionClosed),
            }
        }
    }

    /// Opens a call, or refuses it based on its headers.
    fn open(&mut self, request: Request<RecvStream>, mut responder: CallResponder) {
        self.state.upkeep.call_begun();
        let (head, body) = request.into_parts();
        let known = CallHeaders::of(&head.headers);
        let route = match route(&head, &known, &self.context.options.gate) {
            Ok(route) => route,
            Err(refusal) => {
                call_response::send_refusal(&mut responder, &refusal);
                return;
            }
        };
        let deadline = deadline(&route);
        if let Some(deadline) = deadline {
            self.timer.set(deadline);
        }
        let forwarded = self.context.forwarded(&head.headers);
        let response_coding = match route.method {
            Method::ModelInfer | Method::ModelStreamInfer => {
                response_coding(self.context.options.response_compression, &head.headers)
            }
            _ => None,
        };
        let request_coding = route.request_coding;
        let answer_by = deadline.map_or(Deadline::None, |at| Deadline::At(at.into_std()));
        let head = CallHead {
            deadline,
            answer_by: answer_by.earliest(known.timeouts.deadline()),
            admission: route.admission,
            request_coding,
            response_coding,
            waiting: MessageWait::begin(self.context.options.tracing.as_ref()),
            trace_context: trace_context(self.context.options.tracing.as_ref(), &head.headers),
            explanation: explanation(
                route.method,
                known.explain,
                &self.context.options,
                &head.headers,
            ),
            forwarded,
        };
        if route.method == Method::ModelStreamInfer {
            self.open_stream(responder, body, head, route.errors);
        } else {
            self.open_call(responder, body, head, route.method);
        }
    }

    /// Ends a call with a failure, unless the call has already ended.
    fn fail(&mut self, key: CallKey, failure: &Failure) {
        let Some(mut call) = self.calls.remove(key) else { return };
        match &mut call.state {
            CallState::Streaming(stream) => stream.fail(failure),
            CallState::Receiving(_) | CallState::Executing(_) => {
                let explanation = call.head.explanation.as_ref();
                call_response::send_failure(&mut call.responder, failure, explanation);
            }
        }
    }

    fn drop_reset_calls(&mut self) {
        let mut cx = Context::from_waker(&self.resets_waker);
        let reset = self.calls.select(|call| match call.state {
            // A reset of an incomplete call is noticed when its message is read, and a stream has
            // its own waker.
            CallState::Receiving(_) | CallState::Streaming(_) => false,
            CallState::Executing(_) => call.responder.poll_reset(&mut cx).is_ready(),
        });
        for key in reset {
            if let Some(call) = self.calls.remove(key) {
                call.cancel();
            }
        }
    }

    /// Ends all calls as gRPC's own server does when it is stopped, but without waiting: a client
    /// that does not read is not notified.
    fn cancel_calls(&mut self) {
        for key in self.calls.select(|_| true) {
            if let Some(call) = self.calls.get_mut(key) {
                call.cancel();
            }
            self.fail(key, &Failure::new(GrpcCode::Cancelled, "CANCELLED"));
        }
        // `h2` writes when polled. Calls that it receives now end with the connection.
        let mut cx = Context::from_waker(&self.waker);
        drop(self.h2.poll_accept(&mut cx));
        let _ = self.flusher.poll_flush(&mut cx);
    }

    /// Fails the calls whose deadlines have passed, if the timer has expired.
    fn expire_calls(&mut self) {
        let now = Instant::now();
        let expired =
            self.calls.select(|call| call.head.deadline.is_some_and(|deadline| deadline <= now));
        for key in expired {
            if let Some(call) = self.calls.get_mut(key) {
                call.cancel();
            }
            self.fail(key, &Failure::new(GrpcCode::DeadlineExceeded, "Deadline Exceeded"));
        }
        if let Some(deadline) = self.calls.next_deadline() {
            self.timer.set(deadline);
        }
        // Polling the timer again registers the waker.
        self.waker.wake_by_ref();
    }
}

/// Drops events that arrive later.
impl Drop for ConnectionTask {
    fn drop(&mut self) {
        self.inbox.close();
        self.inbox.drain_into(&mut self.events);
        // Dropping a response releases its budget without taking a lock of the inbox.
        self.events.clear();
    }
}

/// Begins an explanation, if the call is an inference and its metadata asks for one.
fn explanation(
    method: Method,
    header: Option<&HeaderValue>,
    options: &GrpcOptions,
    headers: &HeaderMap,
) -> Option<Arc<LatencyExplanation>> {
    let is_inference = matches!(method, Method::ModelInfer | Method::ModelStreamInfer);
    let is_asked = header.is_some_and(|value| LatencyExplanation::is_asked(value.as_bytes()));
    let writer = options.explanations.filter(|_| is_inference && is_asked)?;
    let detail = explained_detail(&options.gate, headers);
    Some(LatencyExplanation::begin(detail, std::time::Instant::now(), writer))
}

fn deadline(route: &Route) -> Option<Instant> {
    match route.timeout {
        Some(Timeout::Within(timeout)) => Instant::now().checked_add(timeout),
        Some(Timeout::Never) | None => None,
    }
}

fn panicked() -> Failure {
    Failure::new(GrpcCode::Internal, PANICKED)
}

fn panicked_status() -> Status {
    Status::internal(PANICKED)
}
