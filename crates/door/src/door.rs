//! Door lifecycle: listening, accepting connections and stopping.

use std::io;
use std::net::{self, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;

use crate::activity::{ClientTimeouts, UptimeSeconds};
use crate::connections::{Connections, CountedConnection};
use crate::limit::{ConnectionLimit, take_places};
use crate::phase::{DoorPhase, PhaseSender, PhaseWatch};
use crate::refusal::Refusals;
use crate::scarcity::DescriptorShortage;
use crate::stream::ConnectionStream;
use crate::tls::SharedTlsAcceptor;
use crate::watch::{Watch, WatchedConnection, WatchedConnectionGuard};

/// The maximum number of clients that are refused at the same time.
const REFUSED_MAX: usize = 64;

/// Returns the settings for the system's probes of inactive connections.
const fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new()
        .with_time(Duration::from_secs(300))
        .with_interval(Duration::from_secs(30))
        .with_retries(4)
}

/// The protocol that a door's connections speak.
pub trait ConnectionHandler: Send + Sync + 'static {
    /// Serves a connection until it ends, on the I/O thread that owns it.
    ///
    /// The connection is ended when [`Connection::phase`] is `Closed`. While the phase is
    /// `Draining`, the protocol decides what to do.
    fn serve(self: Arc<Self>, connection: Connection) -> impl Future<Output = ()> + Send;

    /// Returns the bytes to send to a connection that is refused for lack of a place, before it is
    /// closed.
    fn refusal(&self) -> &'static [u8] {
        &[]
    }

    /// Reports that the door has entered `phase`, on the thread that caused the transition.
    fn phase_changed(&self, phase: DoorPhase) {
        let _ = phase;
    }

    /// Returns the bytes for a client that speaks plain text to a door with TLS, which are sent
    /// before its connection is closed.
    fn reply_to_plain_text(&self) -> &[u8] {
        &[]
    }
}

/// An accepted connection.
#[derive(Debug)]
pub struct Connection {
    /// The connection's bytes. The socket sends without delay.
    pub stream: ConnectionStream,
    /// The index of the I/O thread that serves the connection.
    pub worker: usize,
    /// The phase of the door.
    pub phase: PhaseWatch,
    /// The connection's share of the drain counter. `None` if the connection was opened while the
    /// door was draining; its requests are then refused, and the drain doesn't wait for it.
    pub open: Option<CountedConnection>,
    /// The connection's place. It is dropped last, because a place becomes free only when the
    /// socket is closed.
    pub place: WatchedConnectionGuard,
}

/// The settings for a door's connections.
#[derive(Clone, Debug)]
pub struct DoorOptions {
    /// The time limits for clients.
    pub timeouts: ClientTimeouts,
    /// The limits on the number of connections. Several doors may share a limit.
    pub limits: Vec<Arc<ConnectionLimit>>,
    /// The start of the connections' clock. Doors that share a limit also share this time, because
    /// the limit compares their connections' idle times.
    pub epoch: Instant,
    /// The maximum number of refused clients that get a second to read the reason. Each of them
    /// needs a descriptor.
    pub refused_max: usize,
}

impl Default for DoorOptions {
    fn default() -> Self {
        Self {
            timeouts: ClientTimeouts::default(),
            limits: Vec::new(),
            epoch: Instant::now(),
            refused_max: REFUSED_MAX,
        }
    }
}

/// A door that is not listening yet.
pub struct DoorBuilder {
    phase: PhaseSender,
    connections: Arc<Connections>,
    tls: Option<SharedTlsAcceptor>,
    options: DoorOptions,
}

impl Default for DoorBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl DoorBuilder {
    /// Creates a door without limits.
    #[must_use]
    pub fn new() -> Self {
        Self::with_options(DoorOptions::default())
    }

    /// Creates a door with these options.
    #[must_use]
    pub fn with_options(options: DoorOptions) -> Self {
        Self { phase: PhaseSender::new(), connections: Arc::default(), tls: None, options }
    }

    /// Encrypts the door's connections if `tls` is `Some`.
    #[must_use]
    pub fn with_tls(self, tls: Option<SharedTlsAcceptor>) -> Self {
        Self { tls, ..self }
    }

    /// Returns a watch on this door's phase.
    #[must_use]
    pub fn watch_phase(&self) -> PhaseWatch {
        self.phase.watch()
    }

    /// Starts listening. Connections are handed to the `workers` in rotation. Each worker is the
    /// handle of a runtime with I/O and timers that some thread drives. The first worker also
    /// accepts.
    ///
    /// # Errors
    ///
    /// Returns an error if there are no workers, or the listener can't be used.
    pub fn listen<P: ConnectionHandler>(
        self,
        workers: &[Handle],
        listener: net::TcpListener,
        protocol: Arc<P>,
    ) -> io::Result<RunningDoor> {
        let first = workers
            .first()
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a door needs a worker"))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let listener = {
            let _inside = first.enter();
            TcpListener::from_std(listener)?
        };
        let workers = self.watch(workers);
        let watches = workers.iter().map(|worker| worker.watch.clone()).collect();
        let acceptor = Acceptor {
            workers,
            protocol: protocol.clone(),
            phase: self.phase.watch(),
            connections: self.connections.clone(),
            tls: self.tls.clone(),
            limits: self.options.limits.clone(),
            refusals: Refusals::new(self.options.refused_max),
        };
        first.spawn(acceptor.run(listener));
        let phase_changed = Box::new(move |phase| protocol.phase_changed(phase));
        Ok(RunningDoor { address, door: self, watches, phase_changed })
    }

    /// Makes each worker watch its connections until the door is closed.
    fn watch(&self, workers: &[Handle]) -> Vec<DoorWorker> {
        let watch = |runtime: &Handle| {
            let watch = Arc::new(Watch::new(self.options.timeouts, self.options.epoch));
            self.options.limits.iter().for_each(|limit| limit.add(&watch));
            let (watching, mut phase) = (watch.clone(), self.watch_phase());
            runtime.spawn(async move {
                tokio::select! {
                    () = watching.run() => {}
                    () = phase.closed() => {}
                }
            });
            DoorWorker { runtime: runtime.clone(), watch }
        };
        workers.iter().map(watch).collect()
    }
}

/// A worker that serves connections.
struct DoorWorker {
    runtime: Handle,
    watch: Arc<Watch>,
}

/// A listening door. Dropping it closes it.
pub struct RunningDoor {
    address: SocketAddr,
    door: DoorBuilder,
    /// The workers' watches.
    watches: Vec<Arc<Watch>>,
    /// Calls [`ConnectionHandler::phase_changed`].
    phase_changed: Box<dyn Fn(DoorPhase) + Send + Sync>,
}

impl RunningDoor {
    /// Returns the address on which the door listens. If port 0 was requested, it contains the port
    /// that the system chose.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Begins to drain. From now on, new connections are not counted, and the protocol decides when
    /// the others end.
    pub fn begin_drain(&self) {
        self.advance(DoorPhase::Draining);
    }

    /// The number of open connections that were opened before [`RunningDoor::begin_drain`].
    #[must_use]
    pub fn draining_connection_count(&self) -> usize {
        self.door.connections.count()
    }

    /// Closes all connections if each has been idle for this many seconds. A connection on which a
    /// request arrives at this moment stays open.
    pub fn close_if_all_idle(&self, seconds: u32) {
        let mut idle = Vec::new();
        self.watches.iter().for_each(|watch| watch.add_idle(&mut idle));
        let is_old = |(since, watch): &(UptimeSeconds, WatchedConnection)| {
            watch.activity.has_passed(*since, seconds)
        };
        if idle.len() == self.draining_connection_count() && idle.iter().all(is_old) {
            for (since, watched) in idle {
                watched.activity.evict(since);
            }
        }
    }

    /// Waits until [`RunningDoor::draining_connection_count`] is zero. The caller must limit the
    /// wait.
    pub async fn drained(&self) {
        self.door.connections.drained().await;
    }

    /// Closes the port and all connections. Requests in progress are cancelled.
    pub fn close(&self) {
        self.advance(DoorPhase::Closed);
    }

    fn advance(&self, phase: DoorPhase) {
        if self.door.phase.advance(phase) {
            (self.phase_changed)(phase);
        }
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

struct Acceptor<P> {
    workers: Vec<DoorWorker>,
    protocol: Arc<P>,
    phase: PhaseWatch,
    connections: Arc<Connections>,
    tls: Option<SharedTlsAcceptor>,
    limits: Vec<Arc<ConnectionLimit>>,
    refusals: Refusals,
}

impl<P: ConnectionHandler> Acceptor<P> {
    async fn run(self, listener: TcpListener) {
        let mut phase = self.phase.clone();
        let mut scarcity = DescriptorShortage::new();
        let mut rotation = self.workers.iter().enumerate().cycle();
        loop {
            let accepted = tokio::select! {
                biased;
                () = phase.closed() => return,
                accepted = listener.accept() => accepted,
            };
            match (accepted, rotation.next()) {
                (Ok((stream, _)), Some((number, worker))) => {
                    scarcity.is_over();
                    self.hand_over(stream, number, worker);
                }
                (Ok(_), None) => return,
                // The client disconnected before its connection was accepted.
                (Err(error), _) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                (Err(_), _) => {
                    scarcity.relieve(&listener, &self.limits, self.refusal()).await;
                }
            }
        }
    }

    /// Returns the bytes for a connection that is refused for lack of a place. With TLS, nothing
    /// can be sent without a handshake.
    fn refusal(&self) -> &'static [u8] {
        if self.tls.is_some() { &[] } else { self.protocol.refusal() }
    }

    /// Moves a connection to the worker that will own it. Failures affect only its client.
    fn hand_over(&self, stream: TcpStream, number: usize, worker: &DoorWorker) {
        let Some(places) = take_places(&self.limits) else {
            return self.refusals.refuse(stream, self.refusal());
        };
        // This eventually detects a peer that has vanished, for example after a power failure.
        let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive());
        // Responses are complete when they are written, so waiting for more data would only delay
        // them.
        let _ = stream.set_nodelay(true);
        // A socket belongs to the runtime in which it was created, so it must leave this runtime
        // before it enters the other.
        let Ok(stream) = stream.into_std() else { return };
        let (protocol, tls) = (self.protocol.clone(), self.tls.clone());
        let mut phase = self.phase.clone();
        let mut open = (!phase.is_stopping()).then(|| self.connections.open());
        let place = worker.watch.open(places);
        worker.runtime.spawn(async move {
            let Ok(stream) = TcpStream::from_std(stream) else { return };
            let stream = match tls {
                None => ConnectionStream::Tcp(stream),
                Some(tls) => {
                    let reply = protocol.reply_to_plain_text();
                    // The state of a handshake is large. Boxing it frees it when the handshake is
                    // done.
                    let accepting = Box::pin(tls.accept(stream, &mut phase, &mut open, reply));
                    let Some(stream) = accepting.await else { return };
                    ConnectionStream::Tls(stream)
                }
            };
            protocol.serve(Connection { stream, worker: number, phase, open, place }).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::mpsc;

    use galatea_stdx::testing::wait_until;
    use tokio::io::AsyncWriteExt;

    use super::*;

    /// Reports the phase and the worker that serves a connection, and ends with the door.
    struct Echo(mpsc::Sender<DoorPhase>);

    impl ConnectionHandler for Echo {
        async fn serve(self: Arc<Self>, mut connection: Connection) {
            let text = format!("{} {:?}\n", connection.worker, connection.phase.phase());
            let _ = connection.stream.write_all(text.as_bytes()).await;
            if connection.open.is_some() {
                connection.phase.wait_until_stopping().await;
            }
        }

        fn phase_changed(&self, phase: DoorPhase) {
            let _ = self.0.send(phase);
        }
    }

    fn text_of(client: &mut net::TcpStream) -> String {
        let mut text = String::new();
        while !text.ends_with('\n') {
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            text.push(char::from(byte[0]));
        }
        text
    }

    /// Runs `test` with a door on two workers.
    fn check(test: impl FnOnce(RunningDoor, mpsc::Receiver<DoorPhase>) + Send + 'static) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (sender, phases) = mpsc::channel();
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let workers = [runtime.handle().clone(), runtime.handle().clone()];
        let door = DoorBuilder::new().listen(&workers, listener, Arc::new(Echo(sender))).unwrap();
        let tested = runtime.handle().spawn_blocking(move || test(door, phases));
        runtime.block_on(tested).unwrap();
    }

    #[test]
    fn connections_go_to_the_workers_in_rotation() {
        check(|door, _phases| {
            let mut clients: Vec<_> =
                (0..3).map(|_| net::TcpStream::connect(door.address()).unwrap()).collect();
            let texts: Vec<String> = clients.iter_mut().map(text_of).collect();
            assert_eq!(texts, ["0 Serving\n", "1 Serving\n", "0 Serving\n"]);
            assert_eq!(door.draining_connection_count(), 3);
        });
    }

    #[test]
    fn a_draining_door_accepts_and_waits_for_earlier_connections() {
        check(|door, phases| {
            let mut early = net::TcpStream::connect(door.address()).unwrap();
            text_of(&mut early);
            door.begin_drain();
            let mut late = net::TcpStream::connect(door.address()).unwrap();
            assert_eq!(text_of(&mut late), "1 Draining\n");
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(door.drained());
            assert_eq!(door.draining_connection_count(), 0);
            let address = door.address();
            door.begin_drain();
            drop(door);
            wait_until("the port is closed", || net::TcpStream::connect(address).is_err());
            assert_eq!(phases.iter().collect::<Vec<_>>(), [DoorPhase::Draining, DoorPhase::Closed]);
        });
    }

    #[test]
    fn a_door_without_a_worker_is_an_error() {
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let error = DoorBuilder::new().listen(&[], listener, Arc::new(Echo(mpsc::channel().0)));
        assert_eq!(error.unwrap_err().to_string(), "a door needs a worker");
    }
}
