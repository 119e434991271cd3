//! Accepting connections, and stopping.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{io, net};

use galatea_codec::forward::HeaderForward;
use galatea_codec::grpc::MESSAGE_BYTES_MAX;
use galatea_infer::{InferenceService, ServerControl};
use http::HeaderMap;
use slab::Slab;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

use crate::call::Forwarded;
use crate::connection;
use crate::memory::Kept;
use crate::signal::{News, Signal};
use crate::staged::Spares;

/// How long a refused `accept` waits before the next: the process is out of
/// descriptors, and only closing connections helps.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How many threads may wait for backends that are asked whether they are ready. Calls
/// that ask beyond that wait for their turn; each counts among its connection's calls.
const QUESTIONS_MAX: usize = 16;

/// What can be chosen about the door.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GrpcOptions {
    /// The longest message taken, in bytes; a longer one is refused when its
    /// length is read.
    pub message_bytes_max: usize,
    /// How many calls a connection may have in progress; clients queue more
    /// on their side.
    pub concurrent_calls_max: u32,
    /// How long a new connection may take to say that it speaks HTTP/2.
    pub handshake_timeout: Duration,
    /// How many bytes of answers to single calls a connection may have
    /// unwritten before no further calls are read from it.
    pub call_unwritten_bytes_max: usize,
    /// How many bytes of any answers a connection may have unwritten before
    /// nothing more is read from it, neither calls nor requests of streams.
    pub unwritten_bytes_max: usize,
    /// From how many bytes of unwritten answers on a connection drops further
    /// ones: requests that were read before may be answered at any time after.
    /// Calls fail then, and streams end.
    pub unwritten_bytes_dropped: usize,
    /// How many bytes a connection's unwritten answers may keep alive beside their
    /// own, as parts of batches' outputs or of requests; further ones are copied.
    pub unwritten_beside_bytes_max: usize,
    /// How many bytes the requests of single calls may take that a connection has
    /// in progress, before no further calls are read from it; the same for the
    /// requests of all its streams together. Counted is the larger of message and
    /// decoded tensors, and 2 KiB for each request.
    pub request_bytes_max: usize,
    /// How many bytes of messages may be there that are not whole; the message
    /// that brings more fails, unless it is the only one.
    pub arriving_bytes_max: usize,
    /// How many requests of a stream may be without their last response, with
    /// the responses that are unwritten, before further ones have to wait.
    pub stream_messages_max: usize,
    /// The same in bytes of their messages.
    pub stream_bytes_max: usize,
    /// Which metadata of inference calls becomes parameters of their requests.
    pub header_forward: Option<HeaderForward>,
}

impl Default for GrpcOptions {
    fn default() -> Self {
        Self {
            message_bytes_max: MESSAGE_BYTES_MAX,
            concurrent_calls_max: 4096,
            handshake_timeout: Duration::from_secs(120),
            call_unwritten_bytes_max: 64 << 20,
            unwritten_bytes_max: 512 << 20,
            unwritten_bytes_dropped: 2 << 30,
            unwritten_beside_bytes_max: 256 << 20,
            request_bytes_max: 512 << 20,
            arriving_bytes_max: 1 << 30,
            stream_messages_max: 4096,
            stream_bytes_max: 32 << 20,
            header_forward: None,
        }
    }
}

/// What all connections of a door share.
pub(crate) struct Door {
    pub(crate) service: Arc<dyn InferenceService>,
    pub(crate) control: Arc<dyn ServerControl>,
    pub(crate) options: GrpcOptions,
    /// Memory for long messages.
    pub(crate) kept: Arc<Kept>,
    /// As many backends may be asked at once whether they are ready.
    pub(crate) questions: Arc<Semaphore>,
    phase: watch::Sender<Phase>,
    connections: Mutex<Slab<Arc<Signal>>>,
    /// How many connections are open that were made while the door served.
    open: watch::Sender<usize>,
}

/// Where a door stands; it only ever moves down this list.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serving,
    /// New connections are accepted still, so that a client hears why it is
    /// not served.
    Draining,
    Closed,
}

impl Door {
    /// Whether new inferences are refused.
    pub(crate) fn is_stopping(&self) -> bool {
        *self.phase.borrow() != Phase::Serving
    }

    /// What a call's metadata says to its requests.
    pub(crate) fn forwarded(&self, headers: &HeaderMap) -> Forwarded {
        let Some(forwarding) = &self.options.header_forward else { return Ok(Vec::new()) };
        let headers = headers.iter();
        forwarding.parameters(headers.map(|(name, value)| (name.as_str(), value.as_bytes())))
    }

    /// Waits until new inferences are refused.
    pub(crate) async fn stops(&self) {
        // It can't fail: the sender is right here.
        let _ = self.phase.subscribe().wait_for(|phase| *phase != Phase::Serving).await;
    }

    /// Moves on to `phase` and tells every connection.
    fn advance(&self, phase: Phase) {
        let moved = self.phase.send_if_modified(|now| {
            let moves = *now < phase;
            *now = (*now).max(phase);
            moves
        });
        if !moved {
            return;
        }
        let connections: Vec<Arc<Signal>> = {
            let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
            connections.iter().map(|(_, signal)| signal.clone()).collect()
        };
        for signal in connections {
            signal.push(if phase == Phase::Closed { News::Close } else { News::Stop });
        }
    }

    /// Makes a connection known, so that stopping and closing reach it.
    pub(crate) fn enter(self: &Arc<Self>, signal: &Arc<Signal>, origin: Origin) -> Presence {
        let key = {
            let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
            connections.insert(signal.clone())
        };
        // Whoever stopped or closed the door before this connection was in the
        // list could not tell it.
        match (*self.phase.borrow(), origin) {
            (Phase::Closed, _) => signal.push(News::Close),
            (Phase::Draining, Origin::Serving) => signal.push(News::Stop),
            (Phase::Draining, Origin::Stopping) | (Phase::Serving, _) => {}
        }
        Presence { door: self.clone(), key }
    }
}

/// What the door did when a connection was accepted.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It served: the connection is counted, and ends when the door stops.
    Serving,
    /// It was stopping: the connection may stay until the door is closed.
    Stopping,
}

/// A connection's place in the list of the door; given back on drop.
pub(crate) struct Presence {
    door: Arc<Door>,
    key: usize,
}

impl Drop for Presence {
    fn drop(&mut self) {
        let mut connections = self.door.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.try_remove(self.key);
    }
}

/// Counts a connection that was made while the door served.
pub(crate) struct OpenConnection(Arc<Door>);

impl OpenConnection {
    fn new(door: &Arc<Door>) -> Option<Self> {
        if door.is_stopping() {
            return None;
        }
        door.open.send_modify(|count| *count = count.saturating_add(1));
        Some(Self(door.clone()))
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open.send_modify(|count| *count = count.saturating_sub(1));
    }
}

/// A door that listens. Dropping it closes it.
pub struct RunningDoor {
    door: Arc<Door>,
    address: SocketAddr,
}

impl RunningDoor {
    /// Where it listens, with the port that the system chose if none was
    /// given.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends clients elsewhere and lets go of each connection when the calls
    /// on it have their answers. Inferences that come later are refused, and
    /// health checks say that the server does not serve.
    pub fn stop_accepting(&self) {
        self.door.advance(Phase::Draining);
    }

    /// How many connections are open that were made before
    /// [`RunningDoor::stop_accepting`].
    #[must_use]
    pub fn connections(&self) -> usize {
        *self.door.open.borrow()
    }

    /// What the answers take that were made and not yet written to their
    /// clients.
    #[must_use]
    pub fn unwritten_bytes(&self) -> usize {
        let connections = self.door.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = connections.iter().map(|(_, signal)| signal.unwritten_bytes());
        bytes.fold(0, usize::saturating_add)
    }

    /// What the messages take that are arriving, and those of requests that
    /// somebody works on.
    #[must_use]
    pub fn request_bytes(&self) -> usize {
        let connections = self.door.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = connections.iter().map(|(_, signal)| signal.request_bytes());
        bytes.fold(0, usize::saturating_add)
    }

    /// Waits until [`RunningDoor::connections`] is zero; callers bound the
    /// wait.
    pub async fn drained(&self) {
        let mut open = self.door.open.subscribe();
        // It can't fail: the sender lives in the door, which lives here.
        let _ = open.wait_for(|count| *count == 0).await;
    }

    /// Closes the port and every connection; calls on the way are cancelled.
    pub fn close(&self) {
        self.door.advance(Phase::Closed);
    }
}

impl Drop for RunningDoor {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for RunningDoor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RunningDoor({})", self.address)
    }
}

/// Opens the door on `listener`.
///
/// `workers` are runtimes that someone drives, with I/O and time enabled; a
/// current-thread runtime per core serves best, as a connection stays with
/// its runtime for life. The first one also accepts.
///
/// # Errors
///
/// If there is no worker, or the listener can't be used.
pub fn start(
    workers: &[Handle],
    listener: net::TcpListener,
    service: Arc<dyn InferenceService>,
    control: Arc<dyn ServerControl>,
    options: GrpcOptions,
) -> io::Result<RunningDoor> {
    let Some(first) = workers.first() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a door needs a worker"));
    };
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let listener = {
        let _inside = first.enter();
        TcpListener::from_std(listener)?
    };
    let door = Arc::new(Door {
        service,
        control,
        options,
        kept: Arc::default(),
        questions: Arc::new(Semaphore::new(QUESTIONS_MAX)),
        phase: watch::Sender::new(Phase::Serving),
        connections: Mutex::new(Slab::new()),
        open: watch::Sender::new(0),
    });
    let workers = workers.iter().map(|worker| (worker.clone(), Arc::default())).collect();
    first.spawn(accept(door.clone(), listener, workers));
    first.spawn(free_kept(door.clone()));
    Ok(RunningDoor { door, address })
}

/// A runtime that serves connections, and the memory that these share.
type Worker = (Handle, Arc<Spares>);

async fn accept(door: Arc<Door>, listener: TcpListener, workers: Vec<Worker>) {
    let mut phase = door.phase.subscribe();
    let mut turns = workers.iter().cycle();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = phase.wait_for(|phase| *phase == Phase::Closed) => return,
            accepted = listener.accept() => accepted,
        };
        match (accepted, turns.next()) {
            (Ok((stream, _)), Some(worker)) => hand_over(&door, stream, worker),
            (Ok(_), None) => return,
            // The client left between connecting and being accepted.
            (Err(error), _) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            (Err(_), _) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Frees what is kept for long messages and nobody takes, until the door is closed.
async fn free_kept(door: Arc<Door>) {
    let mut phase = door.phase.subscribe();
    tokio::select! {
        biased;
        _ = phase.wait_for(|phase| *phase == Phase::Closed) => {}
        never = door.kept.free_in_time() => match never {},
    }
}

/// Moves a connection to the worker that will keep it.
fn hand_over(door: &Arc<Door>, stream: TcpStream, (worker, spares): &Worker) {
    let counted = OpenConnection::new(door);
    let (door, spares) = (door.clone(), spares.clone());
    // A socket belongs to the runtime that it was made in, so it leaves this
    // one before it enters the other. Failures here concern this client only.
    let Ok(stream) = stream.into_std() else { return };
    worker.spawn(async move {
        if let Ok(stream) = TcpStream::from_std(stream) {
            connection::serve(door, stream, counted, spares).await;
        }
    });
}
