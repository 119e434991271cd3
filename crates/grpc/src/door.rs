//! Accepting connections, and stopping.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{io, net};

use galatea_codec::grpc::MESSAGE_BYTES_MAX;
use galatea_infer::{InferenceService, ServerControl};
use slab::Slab;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::connection;
use crate::signal::Signal;

/// How long a refused `accept` waits before the next: the process is out of
/// descriptors, and only closing connections helps.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What can be chosen about the door.
#[derive(Copy, Clone, Debug)]
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
}

impl Default for GrpcOptions {
    fn default() -> Self {
        Self {
            message_bytes_max: MESSAGE_BYTES_MAX,
            concurrent_calls_max: 4096,
            handshake_timeout: Duration::from_secs(120),
        }
    }
}

/// What all connections of a door share.
pub(crate) struct Door {
    pub(crate) service: Arc<dyn InferenceService>,
    pub(crate) control: Arc<dyn ServerControl>,
    pub(crate) options: GrpcOptions,
    stopping: AtomicBool,
    connections: Mutex<Slab<Arc<Signal>>>,
    /// The tasks that run: the one that accepts, and one per connection.
    tasks: watch::Sender<usize>,
    accepting: watch::Sender<bool>,
}

impl Door {
    /// Whether new inferences are refused.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.accepting.send_replace(false);
        let connections: Vec<Arc<Signal>> = {
            let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
            connections.iter().map(|(_, signal)| signal.clone()).collect()
        };
        for signal in connections {
            signal.stop();
        }
    }

    /// Makes a connection known, so that stopping reaches it.
    pub(crate) fn enter(self: &Arc<Self>, signal: &Arc<Signal>) -> Presence {
        let key = {
            let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
            connections.insert(signal.clone())
        };
        // Whoever stopped the door before this connection was in the list
        // could not tell it.
        if self.is_stopping() {
            signal.stop();
        }
        Presence { door: self.clone(), key }
    }
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

/// Counts a task of the door for as long as it runs.
struct TaskCount(Arc<Door>);

impl TaskCount {
    fn new(door: &Arc<Door>) -> Self {
        door.tasks.send_modify(|count| *count = count.saturating_add(1));
        Self(door.clone())
    }
}

impl Drop for TaskCount {
    fn drop(&mut self) {
        self.0.tasks.send_modify(|count| *count = count.saturating_sub(1));
    }
}

/// A door that is open; dropping it changes nothing.
#[derive(Clone)]
pub struct RunningDoor {
    door: Arc<Door>,
    address: SocketAddr,
}

impl RunningDoor {
    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no further connections and inferences; what is in progress goes
    /// on. Clients are told to go elsewhere, and health checks say that the
    /// server does not serve.
    pub fn stop_accepting(&self) {
        self.door.stop();
    }

    /// Waits until every connection is gone, which needs
    /// [`stop_accepting`](Self::stop_accepting) first.
    pub async fn drained(&self) {
        let mut tasks = self.door.tasks.subscribe();
        // The sender lives in the door, which lives here.
        let _ = tasks.wait_for(|count| *count == 0).await;
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
        stopping: AtomicBool::new(false),
        connections: Mutex::new(Slab::new()),
        tasks: watch::Sender::new(0),
        accepting: watch::Sender::new(true),
    });
    let counted = TaskCount::new(&door);
    first.spawn(accept(door.clone(), listener, workers.to_vec(), counted));
    Ok(RunningDoor { door, address })
}

async fn accept(door: Arc<Door>, listener: TcpListener, workers: Vec<Handle>, _counted: TaskCount) {
    let mut accepting = door.accepting.subscribe();
    let mut turns = workers.iter().cycle();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = accepting.wait_for(|accepting| !accepting) => return,
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

/// Moves a connection to the worker that will keep it.
fn hand_over(door: &Arc<Door>, stream: TcpStream, worker: &Handle) {
    let counted = TaskCount::new(door);
    let door = door.clone();
    // A socket belongs to the runtime that it was made in, so it leaves this
    // one before it enters the other. Failures here concern this client only.
    let Ok(stream) = stream.into_std() else { return };
    worker.spawn(async move {
        let _counted = counted;
        if let Ok(stream) = TcpStream::from_std(stream) {
            connection::serve(door, stream).await;
        }
    });
}
