//! Network doors of a server that runs in a program's own process. The program opens and closes
//! them.

use galatea_infer::Status;
use tokio::runtime::Handle;

use crate::doors::{DoorSetup, OpenDoors, SharedByDoors};
use crate::environment::CloudVariables;
use crate::error_paths::door_services;
use crate::in_process::{InProcessServer, parse};
use crate::startup::poll_gauges;
use crate::tenants::TenantsFile;
use crate::workers::Workers;
use crate::{make, tracing, watched_files};

/// Open doors and the threads that serve them. Dropping this value closes them: connections end,
/// and their executing requests are cancelled.
pub struct Frontend {
    // This field is dropped before the threads that serve the doors.
    doors: OpenDoors,
    workers: Workers,
}

impl Frontend {
    /// The port of the first door. If port 0 was specified, this is the port that the system chose.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.doors.port()
    }
}

/// Notifies clients that their gRPC calls are cancelled, before the I/O threads end.
impl Drop for Frontend {
    fn drop(&mut self) {
        // A callback of the program may drop this value on a runtime thread, which must not wait
        // for another runtime.
        let may_wait = Handle::try_current().is_err();
        if let Some(worker) = self.workers.handles().first().filter(|_| may_wait) {
            worker.block_on(self.doors.close_grpc());
        }
    }
}

impl InProcessServer {
    /// Opens the doors that command-line flags enable.
    ///
    /// # Errors
    ///
    /// Returns an error if a flag is invalid or an address can't be listened on.
    pub fn open_frontend(&self, flags: &[String]) -> Result<Frontend, Status> {
        let settings = parse(flags)?;
        let shared = self.shared_by_doors()?;
        let workers = Workers::start(settings.http_threads)
            .map_err(|error| Status::internal(format!("starting worker threads: {error}")))?;
        let doors = DoorSetup {
            meters: std::sync::Arc::default(),
            settings: &settings,
            ledger: &shared.ledger,
            workers: &workers,
            server: &self.server,
            served: door_services(&self.server, &settings, &self.environment.temporary_folder),
            regions: shared.regions.clone(),
            grpc_delays: self.environment.grpc_delays,
            hub_cache: self.environment.hub_cache.clone(),
            clouds: &CloudVariables::default(),
            tracer: &shared.tracer,
            devices: &self.devices,
            metrics: self.exporter.clone(),
            tenants: TenantsFile::open(settings.tenants_file.as_deref(), &self.logger)?,
            logger: &self.logger,
        };
        let mut doors = doors.open()?;
        if let Some(worker) = workers.handles().first() {
            let watched = doors.take_watched_files();
            worker.spawn(watched_files::reload_changed(watched, self.logger.clone()));
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
        // If two threads open doors at the same time, only one thread's part is kept.
        Ok(self.shared.get_or_init(|| SharedByDoors {
            ledger: self.ledger.clone(),
            regions: make::regions(settings, &self.devices, &self.logger),
            tracer,
        }))
    }
}
