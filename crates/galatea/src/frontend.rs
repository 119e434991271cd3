//! Network doors of a server in a program's own process: opened and closed by the program.

use galatea_infer::Status;
use tokio::runtime::Handle;

use crate::certificates;
use crate::doors::{DoorSetup, OpenDoors, SharedByDoors};
use crate::environment::CloudVariables;
use crate::error_paths::door_services;
use crate::in_process::{InProcessServer, parse};
use crate::startup::poll_gauges;
use crate::workers::Workers;
use crate::{make, tracing};

/// Open doors, with the threads that serve them. They close when this is dropped: connections
/// end, and requests of theirs that are executed are cancelled.
pub struct Frontend {
    // Dropped before the threads that serve them.
    doors: OpenDoors,
    workers: Workers,
}

impl Frontend {
    /// The port of its first door, which the system chose if it was given as 0.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.doors.port()
    }
}

/// Clients learn that their calls over gRPC are cancelled before the threads end that tell them.
impl Drop for Frontend {
    fn drop(&mut self) {
        // A thread of a runtime, where a callback of the program may drop this, must not wait for
        // one.
        let may_wait = Handle::try_current().is_err();
        if let Some(worker) = self.workers.handles().first().filter(|_| may_wait) {
            worker.block_on(self.doors.close_grpc());
        }
    }
}

impl InProcessServer {
    /// Opens the doors that flags of the command line allow.
    ///
    /// # Errors
    ///
    /// If a flag is wrong or an address can't be listened at.
    pub fn open(&self, flags: &[String]) -> Result<Frontend, Status> {
        let settings = parse(flags)?;
        let shared = self.shared_by_doors()?;
        let workers = Workers::start(settings.http_threads)
            .map_err(|error| Status::internal(format!("starting worker threads: {error}")))?;
        let doors = DoorSetup {
            settings: &settings,
            ledger: &shared.ledger,
            workers: &workers,
            server: &self.server,
            served: door_services(&self.server, &settings, &self.environment.temporary_folder),
            regions: shared.regions.clone(),
            grpc_delays: self.environment.grpc_delays,
            clouds: &CloudVariables::default(),
            tracer: &shared.tracer,
            devices: &self.devices,
            metrics: self.exporter.clone(),
            logger: &self.logger,
        };
        let mut doors = doors.open()?;
        if let Some(worker) = workers.handles().first() {
            worker.spawn(certificates::reload_changed(doors.take_certificates()));
            let (exporter, is_allowed) = (self.exporter.clone(), settings.metrics.allow);
            worker.spawn(async move { poll_gauges(&exporter, is_allowed).await });
        }
        Ok(Frontend { doors, workers })
    }

    fn shared_by_doors(&self) -> Result<&SharedByDoors, Status> {
        if let Some(shared) = self.shared.get() {
            return Ok(shared);
        }
        let (settings, collector) = (&self.settings, &self.environment.collector);
        let tracer = tracing::make(&settings.trace, collector, &self.server, &self.logger)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        // Of two threads that open doors at a time, one keeps its part.
        Ok(self.shared.get_or_init(|| SharedByDoors {
            ledger: self.ledger.clone(),
            regions: make::regions(settings, &self.devices, &self.logger),
            tracer,
        }))
    }
}
