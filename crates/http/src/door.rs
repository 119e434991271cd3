//! Listening, connections and stopping.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use galatea_infer::{InferenceService, ServerControl};
use hyper::server::conn::http1;
use hyper_util::rt::TokioTimer;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

use crate::HttpOptions;
use crate::api::Api;
use crate::body::RequestBody;
use crate::connection::Connection;
use crate::head::Head;
use crate::mailroom::Mailrooms;
use crate::metrics::Metrics;
use crate::plain::LastServed;
use crate::respond::Reply;

/// Whoever answers the requests of a door.
pub(crate) trait Endpoint: Send + Sync + 'static {
    /// Answers a request.
    fn respond<B: RequestBody>(
        &self,
        head: &Head<'_>,
        body: &mut B,
    ) -> impl Future<Output = Result<Reply, Closed>> + Send;

    /// Whether it looks at headers that [`Head`] doesn't name.
    fn wants_headers(&self) -> bool {
        false
    }

    /// The door begins to stop.
    fn stop(&self);
}

/// The connection is to be closed without a response.
#[derive(Debug)]
pub(crate) struct Closed;

impl std::fmt::Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the connection ended within a request")
    }
}

impl std::error::Error for Closed {}

/// How far a door is on its way; it only goes forward.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Serving,
    Draining,
    Closed,
}

/// A door that listens. Dropping it closes it.
pub struct RunningDoor {
    address: SocketAddr,
    phase: watch::Sender<Phase>,
    connections: Arc<Connections>,
    endpoint: Arc<dyn Stop>,
}

/// The part of [`Endpoint`] that a door keeps.
trait Stop: Send + Sync {
    fn stop(&self);
}

impl<E: Endpoint> Stop for E {
    fn stop(&self) {
        Endpoint::stop(self);
    }
}

impl RunningDoor {
    /// Where it listens, with the port that the system chose if none was
    /// given.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes idle connections, and each other one after the response that
    /// it is waiting for. A request that has not arrived whole is refused, or
    /// its connection closed. Later requests find a server that isn't ready.
    pub fn stop_accepting(&self) {
        self.endpoint.stop();
        self.phase.send_if_modified(|phase| {
            let serving = *phase == Phase::Serving;
            if serving {
                *phase = Phase::Draining;
            }
            serving
        });
    }

    /// How many connections are open that were made before
    /// [`RunningDoor::stop_accepting`].
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.open.load(Ordering::Acquire)
    }

    /// Waits until [`RunningDoor::connections`] is zero; callers bound the
    /// wait.
    pub async fn drained(&self) {
        loop {
            let mut emptied = std::pin::pin!(self.connections.emptied.notified());
            emptied.as_mut().enable();
            if self.connections() == 0 {
                return;
            }
            emptied.await;
        }
    }

    /// Closes the port and every connection, in the middle of a request or
    /// not; requests on the way are cancelled.
    pub fn close(&self) {
        self.endpoint.stop();
        self.phase.send_replace(Phase::Closed);
    }
}

impl Drop for RunningDoor {
    fn drop(&mut self) {
        self.close();
    }
}

#[derive(Default)]
struct Connections {
    open: AtomicUsize,
    emptied: Notify,
}

/// Counts a connection while it is held.
pub(crate) struct OpenConnection(Arc<Connections>);

impl OpenConnection {
    fn new(connections: &Arc<Connections>) -> Self {
        connections.open.fetch_add(1, Ordering::AcqRel);
        Self(connections.clone())
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        if self.0.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.emptied.notify_waiters();
        }
    }
}

/// Opens the inference door on `listener`. Connections are handed to the
/// `workers` in turn; each is the handle of a runtime with I/O and time that
/// somebody drives. The first worker also accepts.
///
/// # Errors
///
/// If there is no worker, or the listener can't be used.
pub fn start(
    workers: &[Handle],
    listener: TcpListener,
    service: Arc<dyn InferenceService>,
    control: Arc<dyn ServerControl>,
    options: HttpOptions,
) -> io::Result<RunningDoor> {
    let header_read_timeout = options.header_read_timeout;
    let api = Api::new(service, control, Mailrooms::open(workers), &options);
    open(workers, listener, api, header_read_timeout)
}

/// Opens the metrics door: `GET /metrics` answers with what `render` returns.
///
/// # Errors
///
/// As [`start`].
pub fn start_metrics(
    workers: &[Handle],
    listener: TcpListener,
    render: Arc<dyn Fn() -> String + Send + Sync>,
) -> io::Result<RunningDoor> {
    open(workers, listener, Metrics::new(render), None)
}

fn open<E: Endpoint>(
    workers: &[Handle],
    listener: TcpListener,
    endpoint: E,
    header_read_timeout: Option<Duration>,
) -> io::Result<RunningDoor> {
    let first = workers
        .first()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a door needs a worker"))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let listener = {
        let _inside = first.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    let endpoint = Arc::new(endpoint);
    let connections = Arc::<Connections>::default();
    let phase = watch::Sender::new(Phase::Serving);
    let acceptor = Acceptor {
        workers: workers.iter().map(|worker| (worker.clone(), Arc::default())).collect(),
        endpoint: endpoint.clone(),
        connections: connections.clone(),
        phase: phase.subscribe(),
        protocol: protocol(header_read_timeout),
        has_head_timeout: header_read_timeout.is_some(),
    };
    first.spawn(acceptor.run(listener));
    Ok(RunningDoor { address, phase, connections, endpoint })
}

fn protocol(header_read_timeout: Option<Duration>) -> http1::Builder {
    let mut protocol = http1::Builder::new();
    // Each response is flushed by itself: gathering pipelined responses into
    // one write would hold an answer back until later requests have theirs.
    protocol
        .timer(TokioTimer::new())
        .header_read_timeout(header_read_timeout)
        .pipeline_flush(false)
        .title_case_headers(true);
    protocol
}

struct Acceptor<E> {
    /// Each with what it served last at this door.
    workers: Vec<(Handle, Arc<LastServed>)>,
    endpoint: Arc<E>,
    connections: Arc<Connections>,
    phase: watch::Receiver<Phase>,
    protocol: http1::Builder,
    has_head_timeout: bool,
}

/// How long accepting rests when the system refuses, as it does when there
/// are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

impl<E: Endpoint> Acceptor<E> {
    async fn run(self, listener: tokio::net::TcpListener) {
        let mut phase = self.phase.clone();
        let mut turns = self.workers.iter().cycle();
        loop {
            let accepted = tokio::select! {
                closed = phase.wait_for(|phase| *phase == Phase::Closed) => {
                    // Without a sender the door is gone, which is closed too.
                    drop(closed);
                    return;
                }
                accepted = listener.accept() => accepted,
            };
            let Ok((stream, _)) = accepted else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            if let (Ok(stream), Some((worker, last_served))) = (detach(stream), turns.next()) {
                self.hand_over(stream, worker, last_served);
            }
        }
    }

    fn hand_over(&self, stream: TcpStream, worker: &Handle, last_served: &Arc<LastServed>) {
        let phase = self.phase.clone();
        let draining = *phase.borrow() != Phase::Serving;
        let connection = Connection {
            stream,
            endpoint: self.endpoint.clone(),
            last_served: last_served.clone(),
            phase,
            protocol: self.protocol.clone(),
            has_head_timeout: self.has_head_timeout,
            open: (!draining).then(|| OpenConnection::new(&self.connections)),
        };
        worker.spawn(connection.run());
    }
}

/// Takes a connection out of the runtime that accepted it.
fn detach(stream: tokio::net::TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.into_std()
}
