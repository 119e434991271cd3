//! The gRPC door: its listener, and the service for its connections.

use std::io;
use std::net::TcpListener;
use std::ops::Deref;
use std::sync::Arc;

use galatea_control::ServerControl;
use galatea_door::{
    BlockingPermits, Connection, ConnectionHandler, DoorBuilder, DoorPhase, RepositoryPermits,
};
use galatea_infer::InferenceService;
use galatea_stdx::Lock;
use slab::Slab;
use tokio::runtime::Handle;

use crate::budget::MemoryBudget;
use crate::buffers::{MessagePool, StagingPool};
use crate::connection;
use crate::context::DoorContext;
use crate::options::GrpcOptions;

/// A listening gRPC door. Dropping it closes it.
///
/// [`begin_drain`](galatea_door::RunningDoor::begin_drain) makes clients reconnect elsewhere
/// (GOAWAY) and closes each connection once its calls have received their responses. Later
/// inferences are refused, and health checks report that the server is not serving.
pub struct RunningGrpcServer {
    door: galatea_door::RunningDoor,
    context: Arc<DoorContext>,
}

impl RunningGrpcServer {
    /// The number of response bytes that have not been written to clients yet.
    #[must_use]
    pub fn unwritten_bytes(&self) -> usize {
        self.context.sum_over_connections(MemoryBudget::unwritten_bytes)
    }

    /// The number of bytes in requests that are arriving or in progress.
    #[must_use]
    pub fn request_bytes(&self) -> usize {
        self.context.sum_over_connections(MemoryBudget::request_bytes)
    }
}

impl Deref for RunningGrpcServer {
    type Target = galatea_door::RunningDoor;

    fn deref(&self) -> &galatea_door::RunningDoor {
        &self.door
    }
}

impl std::fmt::Debug for RunningGrpcServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.door.fmt(f)
    }
}

/// Opens the door on `listener`.
///
/// `workers` are runtimes with I/O and timers enabled, each driven by a thread. One current-thread
/// runtime per core works best, because a connection stays with its runtime.
///
/// # Errors
///
/// Returns an error if there are no workers, or the listener can't be used.
pub fn start(
    workers: &[Handle],
    listener: TcpListener,
    service: Arc<dyn InferenceService>,
    control: Arc<dyn ServerControl>,
    options: GrpcOptions,
) -> io::Result<RunningGrpcServer> {
    let door = DoorBuilder::with_options(options.door.clone()).with_tls(options.tls.clone());
    let message_pool = Arc::new(MessagePool::new(options.ledger.clone()));
    let context = Arc::new(DoorContext {
        service,
        control,
        options,
        message_pool,
        blocking_permits: BlockingPermits::default(),
        repository_permits: RepositoryPermits::default(),
        statistics_permits: BlockingPermits::single(),
        phase: door.watch_phase(),
        connections: Lock::new(Slab::new()),
    });
    let staging_pools = workers.iter().map(|_| Arc::default()).collect();
    let grpc = Arc::new(Grpc { context: context.clone(), staging_pools });
    let door = door.listen(workers, listener, grpc)?;
    if let Some(first) = workers.first() {
        first.spawn(shrink_message_pool(context.clone()));
    }
    Ok(RunningGrpcServer { door, context })
}

/// The gRPC protocol in front of the server.
struct Grpc {
    context: Arc<DoorContext>,
    /// The memory that a worker's connections share, by worker.
    staging_pools: Vec<Arc<StagingPool>>,
}

impl ConnectionHandler for Grpc {
    // This is not an `async fn`, because its future would hold the connection twice.
    fn serve(self: Arc<Self>, connection: Connection) -> impl Future<Output = ()> + Send {
        let pool = self.staging_pools.get(connection.worker).cloned().unwrap_or_default();
        connection::serve(self.context.clone(), connection, pool)
    }

    fn phase_changed(&self, phase: DoorPhase) {
        self.context.announce(phase);
    }
}

/// Periodically frees unused buffers for long messages, until the door is closed.
async fn shrink_message_pool(context: Arc<DoorContext>) {
    let mut phase = context.phase.clone();
    tokio::select! {
        biased;
        () = phase.closed() => {}
        never = context.message_pool.shrink_in_time() => match never {},
    }
}
